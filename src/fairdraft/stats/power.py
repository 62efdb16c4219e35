"""How many trials a chi-square test needs before it may be believed."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from fairdraft.stats.chi_square import (
    MIN_EXPECTED,
    chi_square_threshold,
    noncentral_log_cdf,
)
from fairdraft.stats.law import checked_probs
from fairdraft.stats.root import smallest_where

FALSE_ALARM = 1e-9
MISS = 1e-6


def noncentrality_for(df: int, *, false_alarm: float = FALSE_ALARM, miss: float = MISS) -> float:
    """Returns the noncentrality at which a chi-square test misses with the given probability.

    Raises:
        ValueError: If `false_alarm` or `miss` is outside (0, 1).
    """
    if not 0.0 < miss < 1.0:
        raise ValueError(f"miss is a probability in (0, 1), got {miss}")
    threshold = chi_square_threshold(false_alarm, df)
    log_miss = math.log(miss)
    if noncentral_log_cdf(threshold, df, 0.0) <= log_miss:
        return 0.0
    return smallest_where(
        lambda value: noncentral_log_cdf(threshold, df, value) <= log_miss, 0.0, threshold
    )


def num_trials_for(
    *,
    null_probs: ArrayLike | None = None,
    alternative_probs: ArrayLike | None = None,
    effect: float | None = None,
    num_bins: int | None = None,
    false_alarm: float = FALSE_ALARM,
    miss: float = MISS,
    min_expected: float = MIN_EXPECTED,
) -> int:
    """Returns the number of trials after which a chi-square test may not miss its target fault.

    Give the faulty law (`alternative_probs`), or a total variation distance (`effect`) that is to
    be seen in whatever direction it points. Against an effect the least favorable law moves it
    between two halves of equal mass and has noncentrality 4 effect^2 a trial; `num_bins` may then
    stand in for `null_probs`. The power is the noncentral chi-square law's, corrected for the
    alternative's own spread where that is larger.

    Args:
        null_probs: Law under test, any shape.
        alternative_probs: Law of the fault, same shape.
        effect: Total variation distance in (0, 1].
        num_bins: Number of possible cells.
        false_alarm: Chance that a correct sampler is failed.
        miss: Chance that the fault is passed.
        min_expected: Smallest expected count; with `null_probs`, a floor on the trials.

    Raises:
        ValueError: If not exactly one of `alternative_probs` and `effect` is given, the law is
            missing, or the alternative equals the null.
    """
    if (alternative_probs is None) == (effect is None):
        raise ValueError("give either alternative_probs or effect")
    law = None if null_probs is None else checked_probs(null_probs)
    if law is None and (num_bins is None or alternative_probs is not None):
        raise ValueError("give null_probs, or num_bins beside an effect")
    df = (num_bins if law is None else int((law > 0.0).sum())) - 1  # type: ignore[operator]
    if df < 1:
        raise ValueError("a law with one possible cell leaves nothing to test")
    floor = 1 if law is None else math.ceil(min_expected / law[law > 0.0].min() * (1 - 1e-12))
    if effect is not None:
        if not 0.0 < effect <= 1.0:
            raise ValueError(f"effect is a total variation distance in (0, 1], got {effect}")
        needed = noncentrality_for(df, false_alarm=false_alarm, miss=miss)
        return max(floor, math.ceil(needed / (4.0 * effect * effect)))
    assert law is not None
    other = checked_probs(alternative_probs)  # type: ignore[arg-type]
    if other.shape != law.shape:
        raise ValueError(f"{other.size} alternative cells for a law of {law.size}")
    return max(floor, _num_trials_against(law, other, df, false_alarm, miss))


def _num_trials_against(
    law: np.ndarray, other: np.ndarray, df: int, false_alarm: float, miss: float
) -> int:
    outside = float(other[law == 0.0].sum())
    if outside > 0.0:
        # one hit of an impossible cell decides
        return math.ceil(math.log(miss) / math.log1p(-outside)) if outside < 1.0 else 1
    possible = law > 0.0
    ratio = (other[possible] - law[possible]) / law[possible]
    divergence = float(np.sum(law[possible] * ratio * ratio))
    if divergence == 0.0:
        raise ValueError("the alternative equals the law under test: no number of trials shows it")
    central = noncentrality_for(df, false_alarm=false_alarm, miss=miss) / divergence
    spread = float(np.sum(other[possible] * ratio * ratio) - divergence * divergence)
    threshold = chi_square_threshold(false_alarm, df)
    z = NormalDist().inv_cdf(1.0 - miss)

    def seen(n: float) -> bool:
        deviation = math.sqrt(2.0 * df + 4.0 * n * max(spread, 0.0))
        return df + n * divergence - z * deviation >= threshold

    return math.ceil(max(central, smallest_where(seen, 0.0, central)))
