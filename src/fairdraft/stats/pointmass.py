"""Poisson and binomial point masses in log space, for real arguments.

Saddle-point form of C. Loader, "Fast and accurate computation of binomial probabilities" (2000):
the large terms cancel on paper and not in floating point, so that tails keep their digits.
"""

from __future__ import annotations

import math

_LOG_2PI = math.log(2.0 * math.pi)
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)

_SMALLEST_RATIO = 1e-290


def stirling_error(n: float) -> float:
    """Returns log Gamma(n + 1) minus Stirling's formula, for n > 0."""
    if n < 16.0:
        return math.lgamma(n + 1.0) - (n + 0.5) * math.log(n) + n - 0.5 * _LOG_2PI
    inverse, square = 1.0 / n, 1.0 / (n * n)
    total = 0.0
    for coefficient in reversed(_STIRLING):
        total = total * square + coefficient
    return total * inverse


def deviance(x: float, mean: float) -> float:
    """Returns x log(x / mean) + mean - x for x, mean > 0 without cancellation."""
    if abs(x - mean) >= 0.1 * (x + mean):
        return x * math.log(x / mean) + mean - x
    ratio = (x - mean) / (x + mean)
    total = (x - mean) * ratio
    power, square = 2.0 * x * ratio, ratio * ratio
    for j in range(1, 1000):
        power *= square
        previous, total = total, total + power / (2 * j + 1)
        if total == previous:
            break
    return total


def log_poisson(k: float, mean: float) -> float:
    """Returns log of mean^k e^-mean / Gamma(k + 1) for k >= 0 and mean > 0."""
    if k == 0.0:
        return -mean
    if mean < k * _SMALLEST_RATIO:
        # mean / k would underflow in the deviance
        return k * math.log(mean) - mean - math.lgamma(k + 1.0)
    return -stirling_error(k) - deviance(k, mean) - 0.5 * (_LOG_2PI + math.log(k))


def log_binomial(k: float, n: float, prob: float) -> float:
    """Returns log of C(n, k) prob^k (1 - prob)^(n - k) for 0 <= k <= n and 0 < prob < 1."""
    if k == 0.0:
        return n * math.log1p(-prob)
    if k == n:
        return n * math.log(prob)
    rest = n - k
    errors = stirling_error(n) - stirling_error(k) - stirling_error(rest)
    away = deviance(k, n * prob) + deviance(rest, n * (1.0 - prob))
    return errors - away - 0.5 * (_LOG_2PI + math.log(k) + math.log(rest / n))
