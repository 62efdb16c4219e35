"""Timing of calls, beside what `fairdraft.engine.measuring.timing` does with samples."""

from __future__ import annotations

import time
from collections.abc import Callable

from fairdraft.engine.measuring.timing import Spread, interleave, paired_ratio, spread

__all__ = ["Spread", "calls_for", "interleave", "paired_ratio", "seconds_per_call", "spread"]


def seconds_per_call(call: Callable[[int], object], count: int) -> float:
    """Mean wall seconds of `count` calls in a row; each gets its own number."""
    begin = time.perf_counter()
    for number in range(count):
        call(number)
    return (time.perf_counter() - begin) / count


def calls_for(call: Callable[[int], object], seconds: float) -> int:
    """How many calls fill about `seconds`; at least one."""
    call(0)
    return max(1, round(seconds / seconds_per_call(call, 3)))
