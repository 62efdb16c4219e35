"""The `token` verification rule as formulas: weights in, decisions out, no noise.

Leviathan et al. 2023 (arXiv 2211.17192, section 2.3 and appendix A.1); p is the target's law and
q the draft's, as in the paper. Exact enumeration of these functions is a test.
"""

from __future__ import annotations

import numpy as np


def accept_probability(p_x: float, q_x: float) -> float:
    """min(1, p(x) / q(x)): the chance that a draft x is kept; 0 where p or q is 0."""
    if not (p_x > 0 and q_x > 0):
        return 0.0
    return 1.0 if p_x >= q_x else p_x / q_x


def is_accepted(p_x: float, q_x: float, u: float) -> bool:
    """The test of one draft with a uniform u in (0, 1): u q(x) < p(x)."""
    return p_x > 0 and q_x > 0 and (p_x >= q_x or u * q_x < p_x)


def residual(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """max(p - q, 0), not normalized: what replaces a rejected draft."""
    return np.maximum(p - q, 0.0)


def replacement(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The weights to draw from after a rejection: the residual, or p where that is empty.

    The draft itself is never kept: p may be 0 there.
    """
    weights = residual(p, q)
    return weights if weights.any() else p


def unmatched(p: np.ndarray, x: int) -> np.ndarray:
    """What follows a point-mass draft x that the target's own draw did not equal: p without x.

    Sample-and-match accepts x with chance p(x); p comes back whole where it holds nothing else.
    """
    rest = p.copy()
    if 0 <= x < len(p):
        rest[x] = 0.0
    return rest if rest.any() else p
