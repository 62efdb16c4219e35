"""Laws of an inverse-CDF sampler that uses one uniform number twice.

Axes: N tokens, C columns. p is the target's law, q the draft's, r the residual max(p - q, 0).
Columns are in the order in which the sampler adds up: ascending ids. A rest cell comes last though
its ids lie anywhere, so with one the laws are close, not exact.
"""

from __future__ import annotations

import numpy as np

from fairdraft.stats.coupled_flat import quotient, with_replacements, with_residual

__all__ = ["inverse_cdf_law", "inverse_cdf_test_law"]


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
    edge = np.maximum(p - q, 0.0).cumsum(axis=1)
    edge /= np.where(edge[:, -1:] > 0, edge[:, -1:], 1.0)
    begin = np.zeros_like(q)
    q[:, :-1].cumsum(axis=1, out=begin[:, 1:])
    # merging two sorted runs: an edge lies behind its own number of edges and of beginnings
    merged = np.argsort(np.concatenate([begin, edge], axis=1), axis=1, kind="stable")
    behind = np.nonzero(merged >= p.shape[1])[1].reshape(p.shape)
    row = np.arange(len(p))[:, None] * p.shape[1]
    at = behind - np.arange(p.shape[1]) - 1 + row
    lost = np.maximum(q - p, 0.0)
    before = lost.cumsum(axis=1) - lost
    density = np.fmax(1.0 - quotient(p, q), 0.0)
    depth = np.minimum(np.maximum(edge - begin.take(at), 0.0), q.take(at))
    reached = before.take(at) + depth * density.take(at)
    replaced = np.maximum(np.diff(reached, axis=1, prepend=0.0), 0.0)
    return with_replacements(p, q, replaced)


def inverse_cdf_test_law(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Law of the token if the number u that drew the draft also tests it, u q < p.

    Args:
        p: float64 [N, C], rows sum to 1.
        q: float64 [N, C], rows sum to 1.

    Returns:
        float64 [N, C]; rows sum to 1.
    """
    limit = np.fmin(quotient(p, q), 1.0)
    end = q.cumsum(axis=1)
    begin = end - q
    kept = np.minimum(np.maximum(np.minimum(end, limit) - begin, 0.0), q)
    return with_residual(kept, p, q)
