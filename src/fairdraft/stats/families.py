"""Families of cells: the declared directions in which tokens are compared with the target.

Cells are functions of the laws and of what was decided before, never of the token itself, so that
its probability of each is known. Whether the token's own draft was accepted is no legal stratum:
accepted tokens do not follow the target. Whether the token *before* was replaced is, under both
rules, and so is the slot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fairdraft.stats.octiles import NUM_OCTILES, OCTILE_LABELS, Octiles
from fairdraft.stats.tokens import ScoredTokens, Source
from fairdraft.stats.view import LAGS, View

__all__ = ["FAMILIES", "NUM_SLOTS", "Cells", "Family"]

#: slots 0 and 1, and all later ones together
NUM_SLOTS = 3
# ranks (from 0) at which a new cell begins
_RANK_STARTS = (0, 1, 2, 3, 6, 10, 15, 25)


@dataclass(frozen=True)
class Cells:
    """Where tokens fell, and with what probabilities they should have.

    Attributes:
        rows: int64 [M], the tokens that the family can speak about, ascending.
        observed: int64 [M], the cell of each.
        expected: float64 [M, m], the cells' probabilities; rows sum to 1.
        reachable: bool [M, m], the cells open to each token before it was drawn; None: all.
    """

    rows: np.ndarray
    observed: np.ndarray
    expected: np.ndarray
    reachable: np.ndarray | None = None


@dataclass(frozen=True)
class Family:
    """A declared partition.

    Attributes:
        name: Unique.
        title: What a deviation here means, a clause.
        labels: Names of the m cells.
        count: Finds the cells of a batch; None if no token is eligible.
        is_diagnostic: Reported, but no part of the verdict.
        rules: Rules under which the cells' probabilities hold; None: all.
    """

    name: str
    title: str
    labels: tuple[str, ...]
    count: Callable[[View], Cells | None]
    is_diagnostic: bool = False
    rules: frozenset[str] | None = None

    @property
    def num_cells(self) -> int:
        """m."""
        return len(self.labels)

    def cells(self, tokens: ScoredTokens | View) -> Cells | None:
        """The cells of tokens, or None if the family can speak about none of them."""
        cells = self.count(tokens if isinstance(tokens, View) else View(tokens))
        return None if cells is None or not len(cells.rows) else cells


def _octile(view: View) -> Cells | None:
    found = view.octiles
    return None if found is None else Cells(found.rows, found.observed, found.expected)


def _stratified(view: View, stratum: np.ndarray, num_strata: int) -> Cells | None:
    """Octile cells within strata [N]; -1 leaves a token out."""
    found = view.octiles
    if found is None:
        return None
    kept = np.flatnonzero(stratum[found.rows] >= 0)
    rows = found.rows[kept]
    place = stratum[rows].astype(np.int64)
    expected = np.zeros((len(rows), num_strata, NUM_OCTILES))
    expected[np.arange(len(rows)), place] = found.expected[kept]
    reachable = np.repeat(place[:, None] == np.arange(num_strata), NUM_OCTILES, axis=1)
    observed = NUM_OCTILES * place + found.observed[kept]
    return Cells(rows, observed, expected.reshape(len(rows), num_strata * NUM_OCTILES), reachable)


def _slot_octile(view: View) -> Cells | None:
    return _stratified(view, np.minimum(view.tokens.slot, NUM_SLOTS - 1), NUM_SLOTS)


def _previous_octile(view: View) -> Cells | None:
    before = view.before
    stratum = np.where(before == Source.UNKNOWN, -1, before == Source.REPLACED)
    return _stratified(view, stratum, 2)


def _rank(view: View) -> Cells | None:
    tokens = view.tokens
    target, column = tokens.target, tokens.column
    rows = np.arange(len(tokens))
    if view.is_rest is not None:
        # lumped ids are all behind the listed ones
        target = np.where(view.is_rest, -1.0, target)
    own = target[rows, column][:, None]
    ahead = target > own
    ahead |= (target == own) & (np.arange(target.shape[1]) < column[:, None])
    rank = np.where(view.is_listed, ahead.sum(axis=1), _RANK_STARTS[-1])
    observed = np.searchsorted(_RANK_STARTS, rank, side="right") - 1
    last = min(_RANK_STARTS[-1], target.shape[1])
    top = -np.sort(-target, axis=1)[:, :last]
    total = np.cumsum(np.maximum(top, 0.0), axis=1)
    ends = np.minimum(_RANK_STARTS[1:], last) - 1
    share = np.concatenate([total[:, ends], np.ones((len(rows), 1))], axis=1)
    expected = np.maximum(np.diff(share, axis=1, prepend=0.0), 0.0)
    return Cells(rows, observed, expected)


def _repeat(view: View) -> Cells | None:
    tokens = view.tokens
    rows = np.flatnonzero(tokens.previous[:, 0] >= 0)
    place = tokens.column_of(tokens.previous)[rows]
    place[:, 1] = np.where(place[:, 1] == place[:, 0], -1, place[:, 1])
    return _hits(view, rows, place)


def _hits(view: View, rows: np.ndarray, place: np.ndarray) -> Cells:
    """Cells "is column place[:, i]" and "none of them"; place [M, h], -1 where no column is."""
    tokens = view.tokens
    probs = np.where(place >= 0, tokens.target[rows[:, None], place], 0.0)
    other = np.maximum(1.0 - probs.sum(axis=1, keepdims=True), 0.0)
    hit = (place == tokens.column[rows, None]) & (place >= 0)
    observed = np.where(hit.any(axis=1), hit.argmax(axis=1), place.shape[1])
    return Cells(rows, observed, np.concatenate([probs, other], axis=1))


def _agreement(lag: int) -> Callable[[View], Cells | None]:
    at = LAGS.index(lag)

    def count(view: View) -> Cells | None:
        rows = np.flatnonzero(view.pairs.is_known[:, at])
        return _hits(view, rows, view.pairs.column[rows, at][:, None])

    return count


def _tested(view: View) -> np.ndarray:
    """Tokens [M] at which a draft of known law was tested."""
    tokens = view.tokens
    tested = (tokens.source == Source.ACCEPTED) | (tokens.source == Source.REPLACED)
    if view.draft is None:
        return np.empty(0, np.int64)
    return np.flatnonzero(tested & ~np.isnan(view.draft[:, 0]))


def _acceptance(view: View) -> Cells | None:
    tokens, rows = view.tokens, _tested(view)
    if view.draft is None or not len(rows):
        return None
    common = np.minimum(tokens.target[rows], view.draft[rows])
    if view.is_rest is not None:
        # what two lumps have in common is unknown: only listed tokens count as accepted
        common[view.is_rest[rows]] = 0.0
    prob = common.sum(axis=1)
    fixed = view.is_point_mass[rows]
    prob[fixed] = tokens.target[rows, tokens.drafted[rows]][fixed]
    if view.is_rest is not None:
        fixed_rest = fixed & view.is_rest[rows, tokens.drafted[rows]]
        rows, prob = rows[~fixed_rest], prob[~fixed_rest]
    accepted = (tokens.source[rows] == Source.ACCEPTED) & view.is_listed[rows]
    prob = np.clip(prob, 0.0, 1.0)
    return Cells(rows, np.where(accepted, 0, 1), np.stack([prob, 1.0 - prob], axis=1))


def _replacement(view: View) -> Cells | None:
    tokens, found = view.tokens, view.octiles
    if found is None or view.draft is None:
        return None
    kept = (tokens.source[found.rows] == Source.REPLACED) & view.is_listed[found.rows]
    rows = found.rows[kept]
    residual = np.maximum(tokens.target[rows] - view.draft[rows], 0.0)
    fixed = np.flatnonzero(view.is_point_mass[rows])
    residual[fixed] = tokens.target[rows[fixed]]
    residual[fixed, tokens.drafted[rows[fixed]]] = 0.0
    if view.is_rest is not None:
        # the residual of a lump is unknown: listed tokens, given that they are
        residual[view.is_rest[rows]] = 0.0
    total = residual.sum(axis=1, keepdims=True)
    some = np.flatnonzero(total[:, 0] > 0.0)
    cells = Octiles(rows[some], found.cell[kept][some], found.observed[kept][some], total)
    return Cells(cells.rows, cells.observed, cells.mass(residual[some] / total[some]))


_SLOT_LABELS = tuple(
    f"slot {slot}, {label}" for slot in ("0", "1", "2+") for label in OCTILE_LABELS
)
_PREVIOUS_LABELS = tuple(
    f"after {what}, {label}" for what in ("others", "a replaced token") for label in OCTILE_LABELS
)
_RANK_LABELS = ("rank 1", "rank 2", "rank 3", "4-6", "7-10", "11-15", "16-25", "26 and on")

#: every family, in the order of reports
FAMILIES: tuple[Family, ...] = (
    Family("q/p octile", "tokens that the draft prefers", OCTILE_LABELS, _octile),
    Family("rank", "likely against unlikely tokens", _RANK_LABELS, _rank),
    Family(
        "repeat",
        "repeats of one of the two tokens before",
        ("the token before", "the one before that", "another"),
        _repeat,
    ),
    Family("slot x q/p", "tokens that the draft prefers, by slot", _SLOT_LABELS, _slot_octile),
    Family(
        "previous replaced x q/p",
        "tokens that the draft prefers, after a replaced token",
        _PREVIOUS_LABELS,
        _previous_octile,
    ),
    *(
        Family(
            f"agreement lag {lag}",
            f"agreement with the text before, at lag {lag}",
            ("the same", "another"),
            _agreement(lag),
        )
        for lag in LAGS
    ),
    Family(
        "acceptance",
        "how often drafts are accepted",
        ("accepted", "not accepted"),
        _acceptance,
        is_diagnostic=True,
        rules=frozenset({"token"}),
    ),
    Family(
        "replacement x q/p",
        "which tokens replace a rejected draft",
        OCTILE_LABELS,
        _replacement,
        is_diagnostic=True,
        rules=frozenset({"token"}),
    ),
)
