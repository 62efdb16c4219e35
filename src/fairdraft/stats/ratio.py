"""Intervals for a ratio of two sums over independent groups, such as tokens over rounds."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from fairdraft.stats.incomplete import log_beta_tails
from fairdraft.stats.root import smallest_where


@functools.cache
def student_quantile(num_degrees: int, *, error: float = 0.05) -> float:
    """Returns the t that |T| exceeds with probability `error` under Student's law.

    Raises:
        ValueError: If there is no degree of freedom or `error` is outside (0, 1).
    """
    if num_degrees < 1 or not 0.0 < error < 1.0:
        raise ValueError(f"need num_degrees >= 1 and error in (0, 1): {num_degrees}, {error}")
    half = 0.5 * num_degrees

    def is_beyond(t: float) -> bool:
        tail = log_beta_tails(half, 0.5, num_degrees / (num_degrees + t * t))[0]
        return tail <= math.log(error)

    return smallest_where(is_beyond, 0.0, 1.0)


def ratio_interval(
    numerators: Sequence[float],
    denominators: Sequence[float],
    *,
    error: float = 0.05,
    bounds: tuple[float, float] | None = None,
) -> tuple[float, float] | None:
    """Returns an interval (lower, upper) of sum(numerators) / sum(denominators).

    The linearized variance of a ratio estimator (Cochran 1977, equation 6.9, without the correction
    for a finite population) and Student's quantile with one degree less than there are groups.
    Where all n groups have the same ratio the variance seen is 0, and says nothing: more than
    1 - error^(1/n) of all groups differing would have shown with chance 1 - error, so the interval
    is as wide as if so many did, by as much as `bounds` allow.

    Args:
        numerators: One a group; what is in a group may depend on each other.
        denominators: Likewise; their sum is above 0.
        error: Probability that the interval misses, about.
        bounds: Least and most that the ratio of a group can be; the interval stays within.

    Returns:
        None of fewer than two groups, and of groups of one ratio without bounds: their spread is
        unknown.

    Raises:
        ValueError: If the lists differ in length, the denominators sum to 0 or less, or the ratio
            is out of bounds.
    """
    count, total = len(numerators), sum(denominators)
    if len(denominators) != count or not total > 0:
        raise ValueError(f"{count} numerators over {len(denominators)} denominators of sum {total}")
    least, most = (-math.inf, math.inf) if bounds is None else bounds
    ratio = sum(numerators) / total
    if not least <= ratio <= most:
        raise ValueError(f"the ratio {ratio:g} is not within bounds = {bounds}")
    if count < 2:
        return None
    pairs = list(zip(numerators, denominators, strict=True))
    if all(math.isclose(above, ratio * below, rel_tol=1e-9) for above, below in pairs):
        if bounds is None:
            return None
        unseen = 1.0 - error ** (1.0 / count)
        return ratio - unseen * (ratio - least), ratio + unseen * (most - ratio)
    squares = sum((above - ratio * below) ** 2 for above, below in pairs)
    deviation = math.sqrt(count / (count - 1) * squares) / total
    width = student_quantile(count - 1, error=error) * deviation
    return max(ratio - width, least), min(ratio + width, most)
