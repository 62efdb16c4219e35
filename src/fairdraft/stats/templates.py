"""Bug templates: the exact law of the emitted token under each known bug.

A likelihood ratio against such a law finds its bug soonest and names it. Whether and what a
template bets is read off a token's laws alone, never off the token, so every ratio is a fair bet
if the token follows its target, however well the template fits: sum target * law / target <= 1.
With a rest cell a law may be close instead of exact; that costs power, not validity.
Axes: N tokens, C columns. p is the target's law, q the draft's, a = sum min(p, q).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fairdraft.stats.coupled import shared_noise_law, shared_test_law
from fairdraft.stats.coupled_flat import rejection
from fairdraft.stats.tokens import REST, ScoredTokens

__all__ = ["TEMPLATES", "Law", "Template"]

Law = Callable[[ScoredTokens, str], "np.ndarray | None"]

#: rows worked on at once; their few arrays stay in the cache
BLOCK = 128
#: laws nearer than this in every column are one law, computed twice in float32
SAME = 1e-6


@dataclass(frozen=True)
class Template:
    """One bug and what it emits.

    Attributes:
        name: Short and unique.
        title: What the bug is: a clause for a verdict sentence.
        law: From tokens and the name of the sampler ("gumbel", "race", "inverse_cdf" or any other
            word) to float64 [N, C], the law of each token under the bug, rows that sum to 1; NaN
            rows where the template makes no bet; None where it makes none at all. A law has mass
            outside the target's support if and only if the bug emits such tokens.
    """

    name: str
    title: str
    law: Law


class _Rows(NamedTuple):
    """Some rows of tokens as float64 laws that sum to 1."""

    p: np.ndarray
    q: np.ndarray
    ids: np.ndarray | None
    raw: np.ndarray | None


def _normalized(law: np.ndarray) -> np.ndarray:
    wide = law.astype(np.float64)
    wide /= wide.sum(axis=1, keepdims=True)
    return wide


def _bet(
    tokens: ScoredTokens,
    bets: np.ndarray,
    law: Callable[[_Rows], np.ndarray],
    draft: np.ndarray | None,
    raw: np.ndarray | None = None,
) -> np.ndarray | None:
    """Applies a law block by block to the rows that bet.

    Args:
        tokens: N tokens.
        bets: bool [N].
        law: From rows to their law [M, C].
        draft: float [N, C], the q of the rows that bet; None: the law reads none.
        raw: float [N, C], another law of those rows, or None.
    """
    rows = np.flatnonzero(bets)
    if not len(rows):
        return None
    result = np.full(tokens.target.shape, np.nan)
    for first in range(0, len(rows), BLOCK):
        at = rows[first : first + BLOCK]
        p = _normalized(tokens.target[at])
        result[at] = _normalized(
            law(
                _Rows(
                    p,
                    p if draft is None else _normalized(draft[at]),
                    None if tokens.ids is None else tokens.ids[at],
                    None if raw is None else _normalized(raw[at]),
                )
            )
        )
    return result


def _is_sampled(tokens: ScoredTokens) -> np.ndarray:
    """bool [N], whether the draft was drawn from a known law."""
    if tokens.point_mass is None:
        return tokens.has_draft
    return tokens.has_draft & ~tokens.point_mass


def _best(tokens: ScoredTokens) -> tuple[np.ndarray, np.ndarray]:
    """Deterministic drafts that can be told from their softmax: bool [N], columns int64 [N].

    The column of the largest chance, ties to the lowest id; a rest cell tells nothing.
    """
    known = tokens.has_draft
    if tokens.point_mass is None or tokens.draft is None or not (known & tokens.point_mass).any():
        return np.zeros(len(tokens), np.bool_), np.zeros(len(tokens), np.int64)
    known &= tokens.point_mass
    tied = tokens.draft == tokens.draft.max(axis=1, keepdims=True)
    if tokens.ids is None:
        return known, tied.argmax(axis=1)
    best = np.where(tied, tokens.ids, np.iinfo(np.int64).max).argmin(axis=1)
    return known & (tokens.ids[np.arange(len(tokens)), best] != REST), best


def _tested(tokens: ScoredTokens) -> tuple[np.ndarray, np.ndarray | None]:
    """Where the law of the tested draft is known, and those laws; one-hot if deterministic."""
    is_best, best = _best(tokens)
    bets = _is_sampled(tokens) | is_best
    if not is_best.any() or tokens.draft is None:
        return bets, tokens.draft
    draft = tokens.draft.copy()
    draft[is_best] = 0.0
    draft[is_best, best[is_best]] = 1.0
    return bets, draft


def _divided(x: np.ndarray, y: np.ndarray, otherwise: float) -> np.ndarray:
    """min(1, x / y), `otherwise` where y is 0."""
    ratio = np.divide(x, y, out=np.full_like(x, otherwise), where=y > 0)
    return np.minimum(ratio, 1.0)


def _replaced(kept: np.ndarray, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """What is kept, and the residual of p and q, or p where that is empty, for what is not."""
    rejected, rest = rejection(p, q)
    return kept + (1.0 - kept.sum(axis=1, keepdims=True)) * np.where(rejected > 0, rest, p)


def _shared_noise(tokens: ScoredTokens, sampler: str) -> np.ndarray | None:
    def law(rows: _Rows) -> np.ndarray:
        return shared_noise_law(rows.p, rows.q, rows.ids, sampler)

    return _bet(tokens, _is_sampled(tokens), law, tokens.draft)


def _shared_test(tokens: ScoredTokens, sampler: str) -> np.ndarray | None:
    if sampler != "inverse_cdf":
        return None

    def law(rows: _Rows) -> np.ndarray:
        return shared_test_law(rows.p, rows.q, rows.ids)

    return _bet(tokens, _is_sampled(tokens), law, tokens.draft)


def _replaced_from_p(tokens: ScoredTokens, _: str) -> np.ndarray | None:
    def law(rows: _Rows) -> np.ndarray:
        kept = np.minimum(rows.p, rows.q)
        return kept + (1.0 - kept.sum(axis=1, keepdims=True)) * rows.p

    return _bet(tokens, *_with_law(tokens, law))


def _replaced_from_q(tokens: ScoredTokens, _: str) -> np.ndarray | None:
    def law(rows: _Rows) -> np.ndarray:
        kept = np.minimum(rows.p, rows.q)
        return kept + (1.0 - kept.sum(axis=1, keepdims=True)) * rows.q

    return _bet(tokens, *_with_law(tokens, law))


def _with_law(
    tokens: ScoredTokens, law: Callable[[_Rows], np.ndarray]
) -> tuple[np.ndarray, Callable[[_Rows], np.ndarray], np.ndarray | None]:
    bets, draft = _tested(tokens)
    return bets, law, draft


def _replaced_by_another(tokens: ScoredTokens, _: str) -> np.ndarray | None:
    def law(rows: _Rows) -> np.ndarray:
        kept = np.minimum(rows.p, rows.q)
        # a rejected draft d has p(d) < q(d) <= 1
        lost = (rows.q - kept) / np.where(rows.q > rows.p, 1.0 - rows.p, 1.0)
        return kept + rows.p * (lost.sum(axis=1, keepdims=True) - lost)

    return _bet(tokens, _is_sampled(tokens), law, tokens.draft)


def _swapped_test(tokens: ScoredTokens, _: str) -> np.ndarray | None:
    def law(rows: _Rows) -> np.ndarray:
        return _replaced(rows.q * _divided(rows.q, rows.p, 1.0), rows.p, rows.q)

    return _bet(tokens, _is_sampled(tokens), law, tokens.draft)


def _differ(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """bool [N], whether two laws differ; False where either is unknown."""
    return np.abs(a - b).max(axis=1) > SAME


def _raw_q(tokens: ScoredTokens, _: str) -> np.ndarray | None:
    if tokens.raw_draft is None or tokens.draft is None:
        return None

    def law(rows: _Rows) -> np.ndarray:
        assert rows.raw is not None
        kept = rows.q * _divided(rows.p, rows.raw, 0.0)
        return _replaced(kept, rows.p, rows.raw)

    bets = _is_sampled(tokens) & _differ(tokens.draft, tokens.raw_draft)
    return _bet(tokens, bets, law, tokens.draft, tokens.raw_draft)


def _raw_drafts(tokens: ScoredTokens, _: str) -> np.ndarray | None:
    if tokens.raw_draft is None or tokens.draft is None:
        return None

    def law(rows: _Rows) -> np.ndarray:
        assert rows.raw is not None
        return _replaced(rows.raw * _divided(rows.p, rows.q, 0.0), rows.p, rows.q)

    bets = _is_sampled(tokens) & _differ(tokens.draft, tokens.raw_draft)
    return _bet(tokens, bets, law, tokens.draft, tokens.raw_draft)


def _temperature(factor: float) -> Law:
    """The law at `factor` times the temperature, on the support that the filters left."""

    def law(rows: _Rows) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.exp(np.log(rows.p) / factor)

    def emitted(tokens: ScoredTokens, _: str) -> np.ndarray | None:
        return _bet(tokens, np.ones(len(tokens), np.bool_), law, None)

    return emitted


def _filters_dropped(tokens: ScoredTokens, _: str) -> np.ndarray | None:
    if tokens.unfiltered is None:
        return None

    def law(rows: _Rows) -> np.ndarray:
        assert rows.raw is not None
        return rows.raw

    bets = _differ(tokens.target, tokens.unfiltered)
    return _bet(tokens, bets, law, None, tokens.unfiltered)


def _draft_leak(tokens: ScoredTokens, _: str) -> np.ndarray | None:
    def law(rows: _Rows) -> np.ndarray:
        return 0.9 * rows.p + 0.1 * rows.q

    return _bet(tokens, *_with_law(tokens, law))


def _softmaxed_point_mass(tokens: ScoredTokens, _: str) -> np.ndarray | None:
    bets, best = _best(tokens)
    if not bets.any() or tokens.draft is None:
        return None
    drafted = np.zeros(tokens.draft.shape)
    drafted[np.arange(len(tokens)), best] = 1.0

    def law(rows: _Rows) -> np.ndarray:
        assert rows.raw is not None
        return _replaced(rows.raw * _divided(rows.p, rows.q, 0.0), rows.p, rows.q)

    return _bet(tokens, bets, law, tokens.draft, drafted)


TEMPLATES: tuple[Template, ...] = (
    Template("shared noise", "draft and residual share noise", _shared_noise),
    Template(
        "shared test",
        "the acceptance test re-uses the number that drew the draft",
        _shared_test,
    ),
    Template(
        "replaced from p",
        "rejected drafts are replaced from p instead of the residual",
        _replaced_from_p,
    ),
    Template(
        "replaced from q",
        "rejected drafts are replaced from q instead of the residual",
        _replaced_from_q,
    ),
    Template(
        "replaced by another",
        "sampled drafts are replaced as if deterministic, from p without the draft",
        _replaced_by_another,
    ),
    Template("swapped test", "the acceptance test divides q by p", _swapped_test),
    Template("raw q", "the acceptance test reads another q than drafts were drawn from", _raw_q),
    Template(
        "raw drafts",
        "drafts are drawn from the raw q and tested with the processed one",
        _raw_drafts,
    ),
    Template("temperature +5%", "temperature is about 5% too high", _temperature(1.05)),
    Template("temperature -5%", "temperature is about 5% too low", _temperature(0.95)),
    Template("filters dropped", "top-k/top-p/min-p are not applied", _filters_dropped),
    Template("draft leak", "drafts leak into the output unverified", _draft_leak),
    Template(
        "point mass as softmax",
        "deterministic drafts are scored by a softmax",
        _softmaxed_point_mass,
    ),
)
