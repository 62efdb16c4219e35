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
from fairdraft.stats.coupled_flat import quotient, with_replacements, with_residual
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
    """Some rows that bet: laws float64 [M, C] whose rows sum to 1, ids int64 [M, C] or None.

    Where a template reads no q or no other law, those fields hold p.
    """

    p: np.ndarray
    q: np.ndarray
    other: np.ndarray
    ids: np.ndarray | None
    sampler: str


_RowLaw = Callable[[_Rows], np.ndarray]


def _normalized(law: np.ndarray) -> np.ndarray:
    wide = law.astype(np.float64)
    wide /= wide.sum(axis=1, keepdims=True)
    return wide


def _bet(
    law: _RowLaw,
    tokens: ScoredTokens,
    sampler: str,
    bets: np.ndarray,
    draft: np.ndarray | None = None,
    other: np.ndarray | None = None,
) -> np.ndarray | None:
    """Applies a law, block by block, to the rows where bets [N] is true."""
    chosen = np.flatnonzero(bets)
    if not len(chosen):
        return None
    result = np.full(tokens.target.shape, np.nan)
    for first in range(0, len(chosen), BLOCK):
        at = chosen[first : first + BLOCK]
        p = _normalized(tokens.target[at])
        q = p if draft is None else _normalized(draft[at])
        r = p if other is None else _normalized(other[at])
        ids = None if tokens.ids is None else tokens.ids[at]
        result[at] = _normalized(law(_Rows(p, q, r, ids, sampler)))
    return result


def _is_sampled(tokens: ScoredTokens) -> np.ndarray:
    """bool [N], whether the draft was drawn from a known law."""
    return tokens.has_draft & ~_is_point_mass(tokens)


def _best(tokens: ScoredTokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best token of a draft's law: whether it is known, bool [N], and its column, int64 [N].

    The column of the largest chance, ties to the lowest id; a rest cell tells nothing.

    Args:
        tokens: N tokens.
        rows: bool [N], where it is asked for.
    """
    columns = np.zeros(len(tokens), np.int64)
    if tokens.draft is None:
        return columns > 0, columns
    known = rows & tokens.has_draft
    at = np.flatnonzero(known)
    draft = tokens.draft[at]
    if tokens.ids is None:
        columns[at] = draft.argmax(axis=1)
        return known, columns
    ids = tokens.ids[at]
    tied = draft == draft.max(axis=1, keepdims=True, initial=0.0)
    columns[at] = np.where(tied, ids, np.iinfo(np.int64).max).argmin(axis=1)
    known[at] = ids[np.arange(len(at)), columns[at]] != REST
    return known, columns


def _is_point_mass(tokens: ScoredTokens) -> np.ndarray:
    """bool [N], whether the draft was deterministic."""
    return np.zeros(len(tokens), np.bool_) if tokens.point_mass is None else tokens.point_mass


def _one_hot(tokens: ScoredTokens, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The laws of drafts, with point masses in place of the softmax in the given rows."""
    assert tokens.draft is not None
    draft = tokens.draft.copy()
    draft[rows] = 0.0
    draft[rows, columns[rows]] = 1.0
    return draft


def _on_every_token(law: _RowLaw) -> Law:
    def emitted(tokens: ScoredTokens, sampler: str) -> np.ndarray | None:
        return _bet(law, tokens, sampler, np.ones(len(tokens), np.bool_))

    return emitted


def _on_sampled_drafts(law: _RowLaw) -> Law:
    def emitted(tokens: ScoredTokens, sampler: str) -> np.ndarray | None:
        return _bet(law, tokens, sampler, _is_sampled(tokens), tokens.draft)

    return emitted


def _on_drafts(law: _RowLaw) -> Law:
    """Sampled drafts, and deterministic ones as point masses where the softmax tells them."""

    def emitted(tokens: ScoredTokens, sampler: str) -> np.ndarray | None:
        known, columns = _best(tokens, _is_point_mass(tokens))
        bets, draft = _is_sampled(tokens) | known, tokens.draft
        if known.any():
            draft = _one_hot(tokens, known, columns)
        return _bet(law, tokens, sampler, bets, draft)

    return emitted


def _on_processed_drafts(law: _RowLaw) -> Law:
    """Sampled drafts whose law temperature or filters changed; `other` is the raw one."""

    def emitted(tokens: ScoredTokens, sampler: str) -> np.ndarray | None:
        if tokens.raw_draft is None or tokens.draft is None:
            return None
        bets = _is_sampled(tokens) & _differ(tokens.draft, tokens.raw_draft)
        return _bet(law, tokens, sampler, bets, tokens.draft, tokens.raw_draft)

    return emitted


def _on_best_drafts(law: _RowLaw) -> Law:
    """Drafts whose law q tells the best token; `other` is the point mass on that one."""

    def emitted(tokens: ScoredTokens, sampler: str) -> np.ndarray | None:
        known, columns = _best(tokens, np.ones(len(tokens), np.bool_))
        if not known.any():
            return None
        drawn = _one_hot(tokens, known, columns)
        return _bet(law, tokens, sampler, known, tokens.draft, drawn)

    return emitted


def _differ(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """bool [N], whether two laws differ; False where either is unknown."""
    return np.abs(a - b).max(axis=1, initial=0.0) > SAME


def _shared_noise(rows: _Rows) -> np.ndarray:
    return shared_noise_law(rows.p, rows.q, rows.ids, rows.sampler)


def _shared_test(tokens: ScoredTokens, sampler: str) -> np.ndarray | None:
    if sampler != "inverse_cdf":
        return None
    law = _on_sampled_drafts(lambda rows: shared_test_law(rows.p, rows.q, rows.ids))
    return law(tokens, sampler)


def _replaced_from_p(rows: _Rows) -> np.ndarray:
    return with_replacements(rows.p, rows.q, rows.p)


def _replaced_from_q(rows: _Rows) -> np.ndarray:
    return with_replacements(rows.p, rows.q, rows.q)


def _replaced_by_another(rows: _Rows) -> np.ndarray:
    lost = np.maximum(rows.q - rows.p, 0.0)
    # where a draft can be rejected, p < q <= 1
    lost /= np.where(lost > 0, 1.0 - rows.p, 1.0)
    return np.minimum(rows.p, rows.q) + rows.p * (lost.sum(axis=1, keepdims=True) - lost)


def _swapped_test(rows: _Rows) -> np.ndarray:
    kept = rows.q * np.fmin(quotient(rows.q, rows.p), 1.0)
    # the rule keeps no token that the target excludes
    kept *= rows.p > 0
    return with_residual(kept, rows.p, rows.q)


def _lenient_test(rows: _Rows) -> np.ndarray:
    return with_residual(np.minimum(2.0 * rows.p, rows.q), rows.p, rows.q)


def _verified(drawn: np.ndarray, p: np.ndarray, tested: np.ndarray) -> np.ndarray:
    """What the rule emits if drafts follow one law and are tested with another."""
    kept = drawn * np.fmin(quotient(p, tested), 1.0)
    # the rule keeps no draft that it is told was impossible
    kept *= tested > 0
    return with_residual(kept, p, tested)


def _at_temperature(factor: float) -> _RowLaw:
    """The law at `factor` times the temperature, on the support that the filters left."""

    def law(rows: _Rows) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.exp(np.log(rows.p) / factor)

    return law


def _filters_dropped(tokens: ScoredTokens, sampler: str) -> np.ndarray | None:
    if tokens.unfiltered is None:
        return None
    bets = _differ(tokens.target, tokens.unfiltered)
    return _bet(lambda rows: rows.other, tokens, sampler, bets, other=tokens.unfiltered)


def _leaked(rows: _Rows) -> np.ndarray:
    return 0.9 * rows.p + 0.1 * rows.q


TEMPLATES: tuple[Template, ...] = (
    Template("shared noise", "draft and residual share noise", _on_sampled_drafts(_shared_noise)),
    Template(
        "shared test", "the acceptance test re-uses the number that drew the draft", _shared_test
    ),
    Template(
        "replaced from p",
        "rejected drafts are replaced from p instead of the residual",
        _on_drafts(_replaced_from_p),
    ),
    Template(
        "replaced from q",
        "rejected drafts are replaced from q instead of the residual",
        _on_drafts(_replaced_from_q),
    ),
    Template(
        "replaced by another",
        "sampled drafts are replaced as if deterministic, from p without the draft",
        _on_sampled_drafts(_replaced_by_another),
    ),
    Template(
        "swapped test", "the acceptance test divides q by p", _on_sampled_drafts(_swapped_test)
    ),
    Template(
        "lenient test",
        "the acceptance test keeps drafts about twice as often as p / q",
        _on_sampled_drafts(_lenient_test),
    ),
    Template(
        "raw q",
        "the acceptance test reads another q than drafts were drawn from",
        _on_processed_drafts(lambda rows: _verified(rows.q, rows.p, rows.other)),
    ),
    Template(
        "raw drafts",
        "drafts are drawn from the raw q and tested with the processed one",
        _on_processed_drafts(lambda rows: _verified(rows.other, rows.p, rows.q)),
    ),
    Template(
        "temperature +5%",
        "temperature is about 5% too high",
        _on_every_token(_at_temperature(1.05)),
    ),
    Template(
        "temperature -5%",
        "temperature is about 5% too low",
        _on_every_token(_at_temperature(0.95)),
    ),
    Template("filters dropped", "top-k/top-p/min-p are not applied", _filters_dropped),
    Template("draft leak", "drafts leak into the output unverified", _on_drafts(_leaked)),
    Template("no test", "every draft is kept without a test", _on_drafts(lambda rows: rows.q)),
    Template(
        "point mass as softmax",
        "deterministic drafts are scored by a softmax",
        _on_best_drafts(lambda rows: _verified(rows.other, rows.p, rows.q)),
    ),
)
