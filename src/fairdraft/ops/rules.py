"""The verification rules as formulas: weights in, decisions out, no noise.

`token`: Leviathan et al. 2023 (arXiv 2211.17192, section 2.3 and appendix A.1). `block`: Sun et al.
2024 (arXiv 2403.10444, algorithm 2). `common_noise`: Daliri et al. 2024 (arXiv 2408.07978).
p is the target's law and q the draft's; rho is what algorithm 2 calls p_i. Exact enumeration of
these functions is a test. Axes: K drafts, V vocabulary.
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


def path_ratio(rho: float, p_x: float, q_x: float) -> float:
    """Rule `block`: min(rho p(x) / q(x), 1) takes a path's rho past a draft x; 0 where p or q is 0.

    Given the path, a prefix as long as that or longer is accepted with chance rho.
    """
    if not (p_x > 0 and q_x > 0):
        return 0.0
    return 1.0 if rho * p_x >= q_x else rho * p_x / q_x


def residual_mass(weights: np.ndarray) -> float:
    """The sum of weights in [0, 1] of at most 1 in all, each rounded to a multiple of 2^-52.

    Every partial sum is exact, so no order of summation changes it.
    """
    return float(((weights + 1.0) - 1.0).sum())


def block_odds(rho: float, mass: float | None) -> tuple[float, float]:
    """Rule `block`: h_i = favorable / total, for the prefix of i drafts once no longer one stands.

    `mass` is the sum of max(rho p - q, 0) over the row after them, None after the last draft.
    """
    return (rho, 1.0) if mass is None else (mass, mass + (1.0 - rho))


def stands(favorable: float, total: float, u: float) -> bool:
    """Rule `block`: the test of one prefix, u < h; h = 0 never passes, 0 / 0 always does."""
    return favorable >= total or u * total < favorable


def block_accept_probability(favorable: float, total: float) -> float:
    """Rule `block`: h_i, the chance that the test of one prefix passes."""
    return 1.0 if favorable >= total else favorable / total


def ends_by_first_failure(accept: np.ndarray) -> np.ndarray:
    """Chances [B, K + 1] that a walk ends at each row if the first test to fail ends it."""
    one, none = np.ones((len(accept), 1)), np.zeros((len(accept), 1))
    reached = np.hstack([one, accept]).cumprod(1)
    return reached * (1 - np.hstack([accept, none]))


def ends_by_last_pass(accept: np.ndarray) -> np.ndarray:
    """The same if the last test to pass ends it, and row 0 if none does."""
    one = np.ones((len(accept), 1))
    all_later_failed = np.hstack([1 - accept, one])[:, ::-1].cumprod(1)[:, ::-1]
    return np.hstack([one, accept]) * all_later_failed


def match_probability(p: np.ndarray, q: np.ndarray) -> float:
    """Rule `common_noise`, flat noise: the chance that one set of exponentials picks the same id.

    Id i wins both races if E_j / E_i >= max(p_j / p_i, q_j / q_i) for every j, which has chance
    1 / sum_j max(p_j / p_i, q_j / q_i): at least min(p_i, q_i) / (1 + TV), so (1 - TV) / (1 + TV)
    in all.
    """
    both = np.flatnonzero((p > 0) & (q > 0))
    ratios = np.maximum(p / p[both, None], q / q[both, None])
    return float((1.0 / ratios.sum(1)).sum())


def race_match_probability(p: np.ndarray, q: np.ndarray, tile: int) -> float:
    """The same for the two-level race: the same tile, then the same id in that tile."""
    edges = np.arange(0, len(p), tile)
    p_tiles, q_tiles = np.add.reduceat(p, edges), np.add.reduceat(q, edges)
    chance = 0.0
    for t in np.flatnonzero((p_tiles > 0) & (q_tiles > 0)):
        same_tile = 1.0 / np.maximum(p_tiles / p_tiles[t], q_tiles / q_tiles[t]).sum()
        ids = slice(edges[t], edges[t] + tile)
        chance += same_tile * match_probability(p[ids] / p_tiles[t], q[ids] / q_tiles[t])
    return float(chance)
