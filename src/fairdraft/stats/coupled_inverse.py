"""Laws of an inverse-CDF sampler that uses one uniform number twice.

Axes: N tokens, C columns. p is the target's law, q the draft's, r the residual max(p - q, 0).
Columns are in the order in which the sampler adds up: ascending ids. A rest cell comes last though
its ids lie anywhere, so with one the laws are close, not exact.
"""

from __future__ import annotations

import numpy as np

from fairdraft.stats.coupled_flat import rejection

__all__ = ["inverse_cdf_law", "tested_by_its_own_number"]


def inverse_cdf_law(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Law of the token if one number u draws the draft from q and its replacement from r.

    Token j replaces where u falls into its interval of r. What is rejected there is the integral
    of max(1 - p / q, 0), at the draft of u, over that interval: piecewise linear in its ends.

    Args:
        p: float64 [N, C], rows sum to 1.
        q: float64 [N, C], rows sum to 1.

    Returns:
        float64 [N, C]; p where nothing is rejected.
    """
    _, rest = rejection(p, q)
    lost = np.maximum(q - p, 0.0)
    end = np.cumsum(q, axis=1)
    begin = end - q
    row = np.arange(len(p))[:, None]
    # one search for all rows: row i lies in 2 i .. 2 i + 1
    edge = np.minimum(np.cumsum(rest, axis=1), 1.0)
    keys = np.maximum.accumulate((begin + 2.0 * row).ravel())
    at = np.searchsorted(keys, (edge + 2.0 * row).ravel(), side="right") - 1
    before = np.cumsum(lost, axis=1) - lost
    density = np.divide(lost, q, out=np.zeros_like(q), where=q > 0)
    inside = np.clip(edge.ravel() - begin.ravel()[at], 0.0, q.ravel()[at])
    reached = (before.ravel()[at] + inside * density.ravel()[at]).reshape(p.shape)
    replaced = np.diff(reached, axis=1, prepend=0.0)
    return np.minimum(p, q) + np.maximum(replaced, 0.0)


def tested_by_its_own_number(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Law of the token if the number u that drew the draft also tests it, u q < p.

    Args:
        p: float64 [N, C], rows sum to 1.
        q: float64 [N, C], rows sum to 1.

    Returns:
        float64 [N, C]; rows sum to 1.
    """
    rejected, rest = rejection(p, q)
    end = np.cumsum(q, axis=1)
    limit = np.divide(p, q, out=np.ones_like(q), where=q > p)
    kept = np.clip(np.minimum(end, limit) - (end - q), 0.0, None)
    kept = np.minimum(kept, q)
    replacement = np.where(rejected > 0, rest, p)
    return kept + (1.0 - kept.sum(axis=1, keepdims=True)) * replacement
