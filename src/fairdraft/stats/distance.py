"""Total variation distance between counts and a law, with its floor and its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fairdraft.stats.law import checked_counts, checked_probs


def total_variation(probs: ArrayLike, other_probs: ArrayLike) -> float:
    """Returns half the sum of absolute differences of two laws over the same cells.

    Raises:
        ValueError: If the shapes differ or one is no law.
    """
    law, other = checked_probs(probs), checked_probs(other_probs)
    if law.shape != other.shape:
        raise ValueError(f"laws of {law.size} and {other.size} cells cannot be compared")
    return 0.5 * float(np.abs(law - other).sum())


def total_variation_floor(probs: ArrayLike, num_trials: int) -> float:
    """Returns about the distance that `num_trials` counts of the law itself show.

    Normal approximation of each cell's mean absolute deviation, capped by the cell's probability
    so that it stays meaningful where most cells expect less than one count.
    """
    law = checked_probs(probs)
    deviation = np.sqrt(law * (1.0 - law) / (2.0 * math.pi * num_trials))
    return float(np.minimum(law, deviation).sum())


@dataclass(frozen=True)
class Distance:
    """Total variation distance of counts to a law.

    Attributes:
        observed: Distance of the empirical law; above the true one on average.
        floor: What a correct sampler shows with as many trials.
        lower: Lower confidence bound of the true distance, at least 0.
        upper: Upper confidence bound of the true distance, at most 1.
        num_trials: Number of counts.
    """

    observed: float
    floor: float
    lower: float
    upper: float
    num_trials: int

    @property
    def debiased(self) -> float:
        """Observed distance less the floor, at least 0; for display."""
        return max(0.0, self.observed - self.floor)


def measure_distance(counts: ArrayLike, probs: ArrayLike, *, error: float = 0.01) -> Distance:
    """Measures the total variation distance of independent draws to a law.

    Each bound fails with probability at most `error`: the mean of the observed distance is at
    least the true one (Jensen) and it concentrates within sqrt(ln(1/error) / 2n) (McDiarmid). The
    lower bound also leans on the floor, which is a normal approximation.

    Args:
        counts: Nonnegative integers, any shape.
        probs: Law to compare with, same shape.
        error: Probability that a bound fails, in (0, 1).

    Raises:
        ValueError: If the shapes differ, `probs` is no law or `error` is outside (0, 1).
    """
    if not 0.0 < error < 1.0:
        raise ValueError(f"error is a probability in (0, 1), got {error}")
    law = checked_probs(probs)
    numbers = checked_counts(counts, law)
    num_trials = int(numbers.sum())
    observed = 0.5 * float(np.abs(numbers / num_trials - law).sum())
    floor = total_variation_floor(law, num_trials)
    margin = math.sqrt(math.log(1.0 / error) / (2.0 * num_trials))
    return Distance(
        observed=observed,
        floor=floor,
        lower=max(0.0, observed - floor - margin),
        upper=min(1.0, observed + margin),
        num_trials=num_trials,
    )
