"""Our distribution functions against scipy's, into tails of 1e-300 and beyond."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import example, given
from hypothesis import strategies as st

from fairdraft.stats import (
    binomial_log_p_value,
    binomial_log_tails,
    chi_square_log_survival,
    chi_square_survival,
    chi_square_threshold,
    clopper_pearson,
    noncentral_log_cdf,
)
from fairdraft.stats.incomplete import log_beta_tails, log_gamma_tails

RELATIVE = 1e-10


@pytest.mark.parametrize("df", [1, 2, 3, 7, 15, 31, 240, 255, 4095])
@pytest.mark.parametrize("log10_p", [-0.001, -0.3, -1, -3, -9, -50, -299])
def test_chi_square_survival_equals_scipy(df: int, log10_p: float) -> None:
    statistic = float(scipy.stats.chi2.isf(10.0**log10_p, df))
    expected = float(scipy.special.gammaincc(0.5 * df, 0.5 * statistic))
    assert chi_square_survival(statistic, df) == pytest.approx(expected, rel=RELATIVE)


def test_chi_square_survival_goes_on_below_the_smallest_float() -> None:
    """Two degrees of freedom have the survival function exp(-x / 2)."""
    assert chi_square_log_survival(20_000.0, 2) == pytest.approx(-10_000.0, rel=1e-14)
    assert chi_square_survival(20_000.0, 2) == 0.0


@pytest.mark.parametrize("df", [1, 15, 255])
@pytest.mark.parametrize("false_alarm", [0.5, 1e-3, 1e-9, 1e-200])
def test_threshold_inverts_survival(df: int, false_alarm: float) -> None:
    threshold = chi_square_threshold(false_alarm, df)
    assert chi_square_log_survival(threshold, df) <= math.log(false_alarm)
    assert threshold == pytest.approx(float(scipy.stats.chi2.isf(false_alarm, df)), rel=RELATIVE)


@example(0.03125, 2.225073858507e-311)
@given(st.floats(0.01, 3000.0), st.floats(0.0, 3000.0))
def test_gamma_tails_equal_scipy_and_add_to_one(a: float, x: float) -> None:
    lower, upper = log_gamma_tails(a, x)
    assert math.exp(lower) + math.exp(upper) == pytest.approx(1.0, abs=1e-12)
    for ours, theirs in (
        (lower, float(scipy.special.gammainc(a, x))),
        (upper, float(scipy.special.gammaincc(a, x))),
    ):
        if theirs > 1e-300:
            assert math.exp(ours) == pytest.approx(theirs, rel=RELATIVE)


@given(st.floats(0.05, 2000.0), st.floats(0.05, 2000.0), st.floats(0.0, 1.0))
def test_beta_tails_equal_scipy_and_add_to_one(a: float, b: float, x: float) -> None:
    lower, upper = log_beta_tails(a, b, x)
    assert math.exp(lower) + math.exp(upper) == pytest.approx(1.0, abs=1e-11)
    for ours, theirs in (
        (lower, float(scipy.special.betainc(a, b, x))),
        (upper, float(scipy.special.betaincc(a, b, x))),
    ):
        if theirs > 1e-290:
            assert math.exp(ours) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("df", [1, 7, 15, 63])
@pytest.mark.parametrize("noncentrality", [0.0, 0.5, 30.0, 160.0, 900.0])
def test_noncentral_cdf_equals_scipy(df: int, noncentrality: float) -> None:
    for quantile in (1e-9, 1e-4, 0.5, 0.999):
        statistic = float(scipy.stats.ncx2.ppf(quantile, df, noncentrality))
        expected = float(scipy.stats.ncx2.cdf(statistic, df, noncentrality))
        ours = math.exp(noncentral_log_cdf(statistic, df, noncentrality))
        assert ours == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    ("num_hits", "num_trials", "prob"),
    [
        (0, 1, 0.3),
        (1, 1, 0.3),
        (5, 20, 0.2),
        (19, 20, 0.2),
        (40, 262_144, 1.25e-4),
        (900, 1000, 0.5),
    ],
)
def test_binomial_tails_equal_scipy(num_hits: int, num_trials: int, prob: float) -> None:
    at_most, at_least = binomial_log_tails(num_hits, num_trials, prob)
    law = scipy.stats.binom(num_trials, prob)
    assert at_most == pytest.approx(float(law.logcdf(num_hits)), rel=1e-9, abs=1e-15)
    assert at_least == pytest.approx(float(law.logsf(num_hits - 1)), rel=1e-9, abs=1e-15)
    smaller = min(at_most, at_least)
    assert binomial_log_p_value(num_hits, num_trials, prob) == min(0.0, smaller + math.log(2.0))


@pytest.mark.parametrize(("num_hits", "num_trials"), [(0, 10), (3, 10), (10, 10), (77, 100_000)])
@pytest.mark.parametrize("error", [0.05, 1e-6])
def test_clopper_pearson_equals_scipy(num_hits: int, num_trials: int, error: float) -> None:
    ours = clopper_pearson(num_hits, num_trials, error=error)
    exact = scipy.stats.binomtest(num_hits, num_trials).proportion_ci(1.0 - error, method="exact")
    assert ours == pytest.approx((exact.low, exact.high), rel=1e-8)


def test_clopper_pearson_covers() -> None:
    """Exact coverage over all outcomes, which the definition promises to be at least 1 - error."""
    num_trials, prob, error = 30, 0.17, 0.1
    hits = np.arange(num_trials + 1)
    mass = scipy.stats.binom.pmf(hits, num_trials, prob)
    intervals = [clopper_pearson(int(k), num_trials, error=error) for k in hits]
    covered = sum(m for m, (low, high) in zip(mass, intervals, strict=True) if low <= prob <= high)
    assert covered >= 1.0 - error


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: chi_square_threshold(0.0, 3), "false_alarm"),
        (lambda: chi_square_log_survival(-1.0, 3), "x >= 0"),
        (lambda: chi_square_log_survival(float("nan"), 3), "nan"),
        (lambda: noncentral_log_cdf(1.0, 3, -1.0), "noncentrality"),
        (lambda: log_beta_tails(1.0, 1.0, 1.5), "1.5"),
        (lambda: binomial_log_tails(3, 2, 0.5), "3 hits in 2 trials"),
        (lambda: binomial_log_tails(1, 2, 1.5), "1.5"),
        (lambda: clopper_pearson(1, 2, error=0.0), "error"),
    ],
)
def test_bad_argument_is_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
