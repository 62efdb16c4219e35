"""Tests of counts against laws, with error rates stated in advance. NumPy only.

`LawTest.plan(...)` says how many trials a fault needs; `.judge(counts)` gives the verdict.
"""

from fairdraft.stats.binomial import binomial_log_p_value, binomial_log_tails, clopper_pearson
from fairdraft.stats.chi_square import (
    chi_square_log_survival,
    chi_square_statistic,
    chi_square_survival,
    chi_square_threshold,
    noncentral_log_cdf,
)
from fairdraft.stats.distance import (
    Distance,
    measure_distance,
    total_variation,
    total_variation_floor,
)
from fairdraft.stats.law import Partition
from fairdraft.stats.law_test import LawTest, LawVerdict
from fairdraft.stats.power import noncentrality_for, num_trials_for

__all__ = [
    "Distance",
    "LawTest",
    "LawVerdict",
    "Partition",
    "binomial_log_p_value",
    "binomial_log_tails",
    "chi_square_log_survival",
    "chi_square_statistic",
    "chi_square_survival",
    "chi_square_threshold",
    "clopper_pearson",
    "measure_distance",
    "noncentral_log_cdf",
    "noncentrality_for",
    "num_trials_for",
    "total_variation",
    "total_variation_floor",
]
