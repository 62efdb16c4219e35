"""How many tokens a verdict needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fairdraft.stats.equivalence import equivalence_width, expected_distance, mixture_weight
from fairdraft.stats.families import FAMILIES
from fairdraft.stats.templates import TEMPLATES

__all__ = ["MAX_TOKENS", "TokenPlan", "plan_tokens", "tokens_to_fail", "tokens_to_pass"]

#: plans beyond this are called unreachable
MAX_TOKENS = 10**12
#: families that share delta
NUM_FAMILIES = sum(not family.is_diagnostic for family in FAMILIES)
#: processes that share the merged evidence: families, templates and the count of impossible tokens
NUM_PROCESSES = NUM_FAMILIES + len(TEMPLATES) + 1
# standard deviations of the observed distance, times sqrt(n), that a pass should survive
_PASS_MARGIN = 0.4


@dataclass(frozen=True)
class TokenPlan:
    """Tokens that a family needs, counting only those it can speak about.

    Attributes:
        num_cells: Cells of the family.
        to_pass: Tokens until the upper bound is below eps in about nine of ten audits; None if
            the deviation leaves no room or it takes more than `MAX_TOKENS`.
        to_fail: Tokens until the evidence reaches 1 / alpha, about; None without a deviation.
    """

    num_cells: int
    to_pass: int | None
    to_fail: int | None


def plan_tokens(
    *,
    eps: float = 0.01,
    alpha: float = 1e-3,
    delta: float = 0.01,
    num_cells: int = 24,
    tv: float = 0.0,
    num_families: int = NUM_FAMILIES,
    num_processes: int = NUM_PROCESSES,
) -> TokenPlan:
    """Plans one family of equal cells.

    Args:
        eps: Largest total variation that is let pass, in (0, 1).
        alpha: Probability of a false FAIL, in (0, 1).
        delta: Probability of a false PASS, in (0, 1); split over the families.
        num_cells: Cells of the family, from 2 on; 24 is the largest family's number.
        tv: True total variation over the cells, in [0, 1).
        num_families: Families that share delta.
        num_processes: Families, templates and other processes that share the evidence.

    Raises:
        ValueError: If an argument is outside its range.
    """
    for name, value in (("eps", eps), ("alpha", alpha), ("delta", delta)):
        if not 0.0 < value < 1.0:
            raise ValueError(f"{name} lies strictly between 0 and 1, got {value}")
    if not 0.0 <= tv < 1.0:
        raise ValueError(f"tv lies in [0, 1), got {tv}")
    if num_cells < 2:
        raise ValueError(f"a family has at least 2 cells, got {num_cells}")
    probs = np.full(num_cells, 1.0 / num_cells)
    return TokenPlan(
        num_cells,
        tokens_to_pass(probs, eps=eps, delta=delta / num_families, tv=tv),
        tokens_to_fail(num_cells, alpha=alpha, tv=tv, num_processes=num_processes),
    )


def tokens_to_pass(probs: np.ndarray, *, eps: float, delta: float, tv: float = 0.0) -> int | None:
    """Tokens until a family's upper bound is below eps; None if that is out of reach.

    Args:
        probs: float [m], about the cells' mean probabilities.
        eps: Largest deviation that is let pass.
        delta: The family's share of the probability of a false PASS.
        tv: The deviation over the cells.
    """
    if tv >= eps:
        return None
    rho = mixture_weight(eps)

    def is_enough(num_tokens: float) -> bool:
        seen = expected_distance(tv, probs, num_tokens) + _PASS_MARGIN / math.sqrt(num_tokens)
        return seen + equivalence_width(num_tokens, len(probs), delta, rho) <= eps

    low, high = 1.0, 2.0
    while not is_enough(high):
        low, high = high, 2.0 * high
        if high > MAX_TOKENS:
            return None
    while high - low > 1e-4 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return math.ceil(high)


def tokens_to_fail(
    num_cells: int, *, alpha: float, tv: float, num_processes: int = NUM_PROCESSES
) -> int | None:
    """Tokens until the merged evidence reaches 1 / alpha by one family of even deviation.

    Bets at the true odds gain chi-square / 2 = 2 tv^2 a token; odds that are being learned lose
    about 1/2 ln(1 + n tv^2) a degree of freedom.
    """
    if tv <= 0.0:
        return None
    gain, goal = 2.0 * tv * tv, math.log(num_processes / alpha)
    num_tokens = goal / gain
    for _ in range(50):
        loss = 0.5 * (num_cells - 1) * math.log1p(num_tokens * tv * tv)
        num_tokens = (goal + loss) / gain
    return math.ceil(num_tokens) if num_tokens <= MAX_TOKENS else None
