"""Pearson's chi-square: the statistic of counts, and both tails of its law in log space."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from fairdraft.stats.incomplete import log_gamma_tails
from fairdraft.stats.law import checked_counts, checked_probs, impossible_cells
from fairdraft.stats.pointmass import log_poisson
from fairdraft.stats.root import smallest_where

MIN_EXPECTED = 5.0


def chi_square_statistic(
    counts: ArrayLike, probs: ArrayLike, *, min_expected: float = MIN_EXPECTED
) -> tuple[float, int]:
    """Returns Pearson's statistic of observed counts under a known law, and its degrees of freedom.

    Cells of probability zero carry no freedom and must be empty. Nothing is merged: group rare
    cells with a `Partition` that you declare before you look at the counts.

    Args:
        counts: Nonnegative integers, any shape.
        probs: Law under test, same shape; sums to 1.
        min_expected: Smallest expected count for which the chi-square law is trusted.

    Raises:
        ValueError: If shapes differ, `probs` is no law, a possible cell expects fewer than
            `min_expected` counts, an impossible cell was hit, or fewer than two cells are possible.
    """
    law = checked_probs(probs)
    observed = checked_counts(counts, law)
    hit = impossible_cells(observed, law)
    if hit:
        raise ValueError(f"cells of probability zero were observed: {hit[:10]}")
    possible = law > 0.0
    df = int(possible.sum()) - 1
    if df < 1:
        raise ValueError("a law with one possible cell leaves nothing to test")
    expected = law[possible] * observed.sum()
    if expected.min() < min_expected:
        raise ValueError(
            f"smallest expected count {expected.min():.3g} is below {min_expected:g}: "
            "take more trials or group the cells with a Partition"
        )
    difference = observed[possible] - expected
    return float(np.sum(difference * difference / expected)), df


def chi_square_log_survival(statistic: float, df: float) -> float:
    """Returns log P(X >= statistic) for a chi-square law; good far below the smallest float."""
    return log_gamma_tails(0.5 * df, 0.5 * statistic)[1]


def chi_square_survival(statistic: float, df: float) -> float:
    """Returns P(X >= statistic) for a chi-square law."""
    return math.exp(chi_square_log_survival(statistic, df))


def chi_square_threshold(false_alarm: float, df: float) -> float:
    """Returns the smallest x with P(X >= x) <= false_alarm.

    Raises:
        ValueError: If `false_alarm` is outside (0, 1).
    """
    if not 0.0 < false_alarm < 1.0:
        raise ValueError(f"false_alarm is a probability in (0, 1), got {false_alarm}")
    log_alarm = math.log(false_alarm)
    return smallest_where(lambda x: chi_square_log_survival(x, df) <= log_alarm, 0.0, df + 1.0)


def noncentral_log_cdf(statistic: float, df: float, noncentrality: float) -> float:
    """Returns log P(X < statistic) for a noncentral chi-square law.

    Poisson mixture of central laws, summed downwards from far in the upper tail by
    P(a, x) = P(a + 1, x) + x^a e^-x / Gamma(a + 1), every term positive.

    Raises:
        ValueError: If `noncentrality` is negative or not finite.
    """
    if not 0.0 <= noncentrality < math.inf:
        raise ValueError(f"noncentrality is finite and at least 0, got {noncentrality}")
    if statistic <= 0.0:
        return -math.inf
    if noncentrality == 0.0:
        return log_gamma_tails(0.5 * df, 0.5 * statistic)[0]
    mean, x = 0.5 * noncentrality, 0.5 * statistic
    last = int(mean + 12.0 * math.sqrt(mean) + 50.0)
    shape = 0.5 * df + np.arange(last + 1)
    log_terms = np.array([log_poisson(a, x) for a in shape])
    log_lower = np.logaddexp.accumulate(
        np.append(log_gamma_tails(shape[-1] + 1.0, x)[0], log_terms[::-1])
    )[:0:-1]
    log_weights = np.array([log_poisson(float(j), mean) for j in range(last + 1)])
    return min(float(np.logaddexp.reduce(log_weights + log_lower)), 0.0)
