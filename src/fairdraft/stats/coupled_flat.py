"""The law of drafts and replacements that share the exponentials of one flat race.

Axes: N tokens, C columns. p is the target's law, q the draft's, r the residual max(p - q, 0).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

__all__ = [
    "NEVER",
    "TINY",
    "entry_times",
    "flat_race_law",
    "sort_rows",
    "survival",
    "with_replacements",
    "with_residual",
]

#: stands for the entry time of whoever never enters; far enough, and its reciprocal is normal
NEVER = 1e200
#: what a sum must exceed to be divided by
TINY = 1e-280


def quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x / y, inf where it is too large and NaN for 0 / 0, without a warning."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return x / y


def with_replacements(p: np.ndarray, q: np.ndarray, replacement: np.ndarray) -> np.ndarray:
    """min(p, q) + (1 - a) replacement, where `replacement` need not be normalized.

    Where it is empty, nothing is rejected and p = q up to rounding.
    """
    law = np.minimum(p, q)
    rejected = (p - law).sum(axis=1, keepdims=True)
    total = replacement.sum(axis=1, keepdims=True)
    # a subnormal total has no usable inverse
    law += replacement * (rejected / np.where(total > TINY, total, np.inf))
    return law


def with_residual(kept: np.ndarray, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Adds the residual, or p where that is empty, with the chance that nothing was kept."""
    rest = np.maximum(p - q, 0.0)
    total = rest.sum(axis=1, keepdims=True)
    is_empty = total[:, 0] <= TINY
    if is_empty.any():
        rest[is_empty], total[is_empty] = p[is_empty], 1.0
    rest *= np.maximum(1.0 - kept.sum(axis=1, keepdims=True), 0.0) / total
    rest += kept
    return rest


def entry_times(rate: np.ndarray, head_start: np.ndarray) -> np.ndarray:
    """head_start / rate, at most NEVER, which is that of whoever has no rate."""
    return np.fmin(quotient(head_start, rate), NEVER)


def sort_rows(key: np.ndarray, kind: Literal["quicksort", "stable"] = "quicksort") -> np.ndarray:
    """Places of the sorted entries of each row, as indices into the flattened array."""
    order = np.argsort(key, axis=1, kind=kind)
    order += np.arange(len(key))[:, None] * key.shape[1]
    return order


def survival(entry: np.ndarray, rates: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Chance that nobody won before `entry`, from the sums of rates and head starts until then.

    The sums are over whoever entered no later. Source: docs/the-bug.md, S_k.
    """
    hazard = entry * rates
    hazard -= starts
    np.maximum(hazard, 0.0, out=hazard)
    hazard += 1.0
    return np.reciprocal(hazard, out=hazard)


def wins_by_rate(entry: np.ndarray, survive: np.ndarray) -> np.ndarray:
    """Chance to win between one entry and the next, for each unit of rate; last axis sorted.

    (S_k - S_(k+1)) / rho_k of docs/the-bug.md, written (b_(k+1) - b_k) S_k S_(k+1), which keeps
    its precision where few have entered; 0 in the last column.
    """
    wins = np.zeros_like(entry)
    inner = wins[..., :-1]
    np.subtract(entry[..., 1:], entry[..., :-1], out=inner)
    inner *= survive[..., :-1]
    inner *= survive[..., 1:]
    return wins


def from_here(x: np.ndarray) -> np.ndarray:
    """Sum of each column [N, C] and what follows it."""
    return x[:, ::-1].cumsum(axis=1)[:, ::-1]


def flat_race_law(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Law of the token if the residual is raced with the exponentials that drew the draft.

    Exact for Gumbel-max and for a race with one number a token. A rest cell races as one token.
    Source: the theorem of docs/the-bug.md.

    Args:
        p: float64 [N, C], rows sum to 1.
        q: float64 [N, C], rows sum to 1.

    Returns:
        float64 [N, C], rows sum to 1; p where nothing is rejected.
    """
    rest = np.maximum(p - q, 0.0)
    entry = entry_times(rest, q)
    order = sort_rows(entry)
    entry, rate, start = entry.take(order), rest.take(order), q.take(order)
    survive = survival(entry, rate.cumsum(axis=1), start.cumsum(axis=1))
    rate *= from_here(wins_by_rate(entry, survive))
    replacement = np.empty_like(rate)
    replacement.ravel()[order] = rate
    return with_replacements(p, q, replacement)
