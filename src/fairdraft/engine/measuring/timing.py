"""Interleaved timing: samples of several subjects taken in turn, and their spread."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Spread(NamedTuple):
    """Median and quartiles of some samples."""

    median: float
    p25: float
    p75: float


def spread(samples: Sequence[float]) -> Spread:
    """Summarizes samples; with fewer than two the quartiles are the sample itself."""
    if len(samples) < 2:
        return Spread(samples[0], samples[0], samples[0])
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Spread(middle, low, high)


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """Spread of a ratio taken within each round, so that a drift of the machine cancels."""
    return spread([a / b for a, b in zip(numerators, denominators, strict=True)])


def interleave(
    subjects: Mapping[str, Callable[[int], float]], rounds: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Samples every subject once a round, in turn; every second round runs backwards.

    Args:
        subjects: Name to a function of the round's number that returns one sample.
        rounds: Samples of each subject.
        warm_up: Rounds that are run first and thrown away.

    Returns:
        Name to samples, in the order of the rounds.
    """
    names = list(subjects)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-warm_up, rounds):
        for name in names if number % 2 else reversed(names):
            sample = subjects[name](number)
            if number >= 0:
                samples[name].append(sample)
    return samples
