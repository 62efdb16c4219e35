"""What the planted faults emit, in closed form: the alternatives that trials are planned against.

p is the target's law and q the draft's.
"""

from __future__ import annotations

import numpy as np


def accepted(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """min(1, p / q) for each draft; 0 where q is 0."""
    return np.minimum(1.0, np.divide(p, q, out=np.zeros_like(p), where=q > 0))


def residual(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Normalized max(p - q, 0); p where that is empty."""
    rest = np.maximum(p - q, 0.0)
    return rest / rest.sum() if rest.any() else p


def misjudged(p: np.ndarray, claimed: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """First token if drafts follow `drawn` and the verifier is told `claimed`."""
    keep = drawn * accepted(p, claimed)
    return keep + (1 - keep.sum()) * residual(p, claimed)


def p_for_residual(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """First token if a rejected draft is replaced from p."""
    keep = np.minimum(p, q)
    return keep + (1 - keep.sum()) * p


def coupled(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """First token if draft and residual race with the same exponentials.

    Given the winner's time T ~ Exp(1), a loser j has E_j = q_j T + Exp(1), so the replacement is
    argmin (q_j T + E'_j) / r_j whichever token was drafted. With x = time / T and R, Q the sums of
    r and q over the tokens with q_j / r_j < x: density r_j / (1 + R x - Q)^2, integrated piecewise.
    """
    rest = residual(p, q)
    ids = np.flatnonzero(rest)
    start = q[ids] / rest[ids]
    order = ids[np.argsort(start)]
    borders = np.append(np.sort(start), np.inf)
    won = np.zeros_like(p)
    for size in range(1, len(order) + 1):
        active = order[:size]
        total, offset = rest[active].sum(), q[active].sum()
        begin, end = 1 / (1 + total * borders[size - 1 : size + 1] - offset)
        won[active] += rest[active] / total * (begin - end)
    keep = np.minimum(p, q)
    return keep + (1 - keep.sum()) * won / won.sum()


def shared_uniform(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """First token if one uniform draws the draft by inverse CDF and then tests it."""
    end = np.cumsum(q)
    keep = np.clip(np.minimum(end, accepted(p, q)) - (end - q), 0.0, None)
    return keep + (1 - keep.sum()) * residual(p, q)


def shared_proposal(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """First tokens [V, V] of two samples of one request that verify the same draft."""
    keep = accepted(p, q)
    emitted = np.diag(keep) + (1 - keep)[:, None] * residual(p, q)
    return np.einsum("x,xy,xz->yz", q, emitted, emitted)
