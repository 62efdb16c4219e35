"""Bisection, for inverses of monotone tails."""

from __future__ import annotations

from collections.abc import Callable


def smallest_where(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Returns the smallest x in (low, high] for which a monotone condition holds, to the last bit.

    `high` is doubled until the condition holds there.

    Raises:
        ValueError: If it holds nowhere below 1e300.
    """
    while not holds(high):
        low, high = high, high * 2.0
        if high > 1e300:
            raise ValueError("no value satisfies the condition")
    while True:
        middle = 0.5 * (low + high)
        if not low < middle < high:
            return high
        if holds(middle):
            high = middle
        else:
            low = middle
