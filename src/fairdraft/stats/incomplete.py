"""Regularized incomplete gamma and beta functions, each tail in log space.

Series below the mean and a continued fraction (modified Lentz) above it, so the smaller tail is
always the one computed and neither is ever got from one minus the other where it is small.
"""

from __future__ import annotations

import math

from fairdraft.stats.pointmass import log_binomial, log_poisson

_TINY = 1e-300
_MAX_TERMS = 1_000_000


def _log_complement(log_value: float) -> float:
    """log(1 - exp(v)) for v <= 0."""
    if log_value >= 0.0:
        return -math.inf
    if log_value > -math.log(2.0):
        return math.log(-math.expm1(log_value))
    return math.log1p(-math.exp(log_value))


def log_gamma_tails(a: float, x: float) -> tuple[float, float]:
    """Returns (log P(a, x), log Q(a, x)), the lower and the upper regularized gamma function.

    Raises:
        ValueError: If a <= 0 or x < 0, or either is not finite.
    """
    if not (0.0 < a < math.inf and 0.0 <= x < math.inf):
        raise ValueError(f"the incomplete gamma function needs a > 0 and x >= 0, got {a} and {x}")
    if x == 0.0:
        return -math.inf, 0.0
    if x < a + 1.0:
        lower = log_poisson(a, x) + math.log(_gamma_series(a, x))
        return min(lower, 0.0), _log_complement(lower)
    upper = log_poisson(a, x) + math.log(a * _gamma_fraction(a, x))
    return _log_complement(upper), min(upper, 0.0)


def _gamma_series(a: float, x: float) -> float:
    term = total = 1.0
    for n in range(1, _MAX_TERMS):
        term *= x / (a + n)
        total += term
        if term < total * 1e-17:
            return total
    raise AssertionError(f"gamma series did not converge at a={a}, x={x}")


def _gamma_fraction(a: float, x: float) -> float:
    b = x + 1.0 - a
    c, d = 1.0 / _TINY, 1.0 / b
    value = d
    for n in range(1, _MAX_TERMS):
        numerator = n * (a - n)
        b += 2.0
        d = 1.0 / _nonzero(numerator * d + b)
        c = _nonzero(b + numerator / c)
        value *= c * d
        if abs(c * d - 1.0) < 1e-16:
            return value
    raise AssertionError(f"gamma fraction did not converge at a={a}, x={x}")


def log_beta_tails(a: float, b: float, x: float) -> tuple[float, float]:
    """Returns (log I_x(a, b), log(1 - I_x(a, b))), the regularized incomplete beta function.

    Raises:
        ValueError: If a <= 0, b <= 0 or x is outside [0, 1].
    """
    if not (0.0 < a < math.inf and 0.0 < b < math.inf and 0.0 <= x <= 1.0):
        raise ValueError(
            f"the incomplete beta function needs a, b > 0 and x in [0, 1]: {a}, {b}, {x}"
        )
    if x == 0.0:
        return -math.inf, 0.0
    if x == 1.0:
        return 0.0, -math.inf
    n = a + b
    mass = log_binomial(a, n, x)
    if x < (a + 1.0) / (n + 2.0):
        lower = mass + math.log(b / n * _beta_fraction(a, b, x))
        return min(lower, 0.0), _log_complement(lower)
    upper = mass + math.log(a / n * _beta_fraction(b, a, 1.0 - x))
    return _log_complement(upper), min(upper, 0.0)


def _beta_fraction(a: float, b: float, x: float) -> float:
    n = a + b
    c = 1.0
    d = 1.0 / _nonzero(1.0 - n * x / (a + 1.0))
    value = d
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (n + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        change = 1.0
        for numerator in (even, odd):
            d = 1.0 / _nonzero(1.0 + numerator * d)
            c = _nonzero(1.0 + numerator / c)
            change *= c * d
        value *= change
        if abs(change - 1.0) < 1e-16:
            return value
    raise AssertionError(f"beta fraction did not converge at a={a}, b={b}, x={x}")


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
