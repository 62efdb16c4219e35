"""Exact tails and Clopper-Pearson intervals for one proportion."""

from __future__ import annotations

import math

from fairdraft.stats.incomplete import log_beta_tails
from fairdraft.stats.root import smallest_where


def binomial_log_tails(num_hits: int, num_trials: int, prob: float) -> tuple[float, float]:
    """Returns (log P(X <= num_hits), log P(X >= num_hits)) for a binomial law.

    Raises:
        ValueError: If the counts are no 0 <= num_hits <= num_trials or `prob` is outside [0, 1].
    """
    _check(num_hits, num_trials)
    if not 0.0 <= prob <= 1.0:
        raise ValueError(f"prob is a probability in [0, 1], got {prob}")
    at_most = at_least = 0.0
    if num_hits < num_trials:
        at_most = log_beta_tails(num_hits + 1, num_trials - num_hits, prob)[1]
    if num_hits > 0:
        at_least = log_beta_tails(num_hits, num_trials - num_hits + 1, prob)[0]
    return at_most, at_least


def binomial_log_p_value(num_hits: int, num_trials: int, prob: float) -> float:
    """Returns the log of the exact two-sided p-value: twice the smaller tail, at most 1."""
    return min(0.0, math.log(2.0) + min(binomial_log_tails(num_hits, num_trials, prob)))


def clopper_pearson(num_hits: int, num_trials: int, *, error: float = 0.05) -> tuple[float, float]:
    """Returns the exact interval (lower, upper) of a proportion; each side fails with error / 2.

    Raises:
        ValueError: If the counts are no 0 <= num_hits <= num_trials or `error` is outside (0, 1).
    """
    _check(num_hits, num_trials)
    if not 0.0 < error < 1.0:
        raise ValueError(f"error is a probability in (0, 1), got {error}")
    log_side = math.log(0.5 * error)
    lower, upper = 0.0, 1.0
    if num_hits > 0:
        lower = smallest_where(
            lambda p: binomial_log_tails(num_hits, num_trials, p)[1] >= log_side, 0.0, 1.0
        )
    if num_hits < num_trials:
        upper = smallest_where(
            lambda p: binomial_log_tails(num_hits, num_trials, p)[0] <= log_side, 0.0, 1.0
        )
    return lower, upper


def _check(num_hits: int, num_trials: int) -> None:
    if num_trials < 1 or not 0 <= num_hits <= num_trials:
        raise ValueError(f"{num_hits} hits in {num_trials} trials: need 0 <= hits <= trials >= 1")
