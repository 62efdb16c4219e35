"""The law of drafts and replacements that share the exponentials of one flat race.

Axes: N tokens, C columns. p is the target's law, q the draft's, r the residual max(p - q, 0).
"""

from __future__ import annotations

import numpy as np

__all__ = ["NEVER", "entry_times", "flat_race_law", "rejection", "survival", "with_rejections"]

#: stands for the entry time of whoever never enters; its reciprocal and square root are normal
NEVER = 1e200


def rejection(p: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The chance of a rejection [N, 1] and the normalized residual [N, C], 0 where there is none."""
    rest = np.maximum(p - q, 0.0)
    rejected = rest.sum(axis=1, keepdims=True)
    rest /= np.where(rejected > 0, rejected, 1.0)
    return rejected, rest


def with_rejections(p: np.ndarray, q: np.ndarray, replacement: np.ndarray) -> np.ndarray:
    """min(p, q) + (1 - a) replacement, where `replacement` need not be normalized."""
    accepted = np.minimum(p, q)
    rejected = 1.0 - accepted.sum(axis=1, keepdims=True)
    total = replacement.sum(axis=1, keepdims=True)
    scale = np.where(total > 0, rejected / np.where(total > 0, total, 1.0), 0.0)
    return accepted + scale * replacement


def entry_times(rate: np.ndarray, head_start: np.ndarray) -> np.ndarray:
    """head_start / rate, NEVER for whoever has no rate."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        time = head_start / rate
    return np.minimum(np.where(rate > 0, time, NEVER), NEVER)


def survival(entry: np.ndarray, rates: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Chance that nobody won before `entry`, given the sums of rates and head starts until then.

    The sums are over whoever entered no later. Source: docs/the-bug.md, S_k.
    """
    return 1.0 / (1.0 + np.maximum(entry * rates - starts, 0.0))


def flat_race_law(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Law of the token if the residual is raced with the exponentials that drew the draft.

    Exact for Gumbel-max and for a race with one number a token. A rest cell races as one token.
    Source: the theorem of docs/the-bug.md, with (S_k - S_(k+1)) / rho_k written as
    (b_(k+1) - b_k) S_k S_(k+1), which keeps its precision where few have entered.

    Args:
        p: float64 [N, C], rows sum to 1.
        q: float64 [N, C], rows sum to 1.

    Returns:
        float64 [N, C]; p where nothing is rejected.
    """
    _, rest = rejection(p, q)
    entry = entry_times(rest, q)
    order = np.argsort(entry, axis=1)
    entry, rate, start = (np.take_along_axis(x, order, axis=1) for x in (entry, rest, q))
    survive = survival(entry, np.cumsum(rate, axis=1), np.cumsum(start, axis=1))
    wins = np.zeros_like(entry)
    wins[:, :-1] = np.diff(entry, axis=1) * survive[:, :-1] * survive[:, 1:]
    won = rate * np.cumsum(wins[:, ::-1], axis=1)[:, ::-1]
    replacement = np.empty_like(won)
    np.put_along_axis(replacement, order, won, axis=1)
    return with_rejections(p, q, replacement)
