"""Tests of counts against laws, with error rates stated in advance. NumPy only.

`LawTest.plan(...)` says how many trials a fault needs; `.judge(counts)` gives the verdict.
`Evidence` judges a stream of scored tokens and may be asked at any time.
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
from fairdraft.stats.equivalence import Bounds, bounds, equivalence_width, mixture_weight
from fairdraft.stats.evidence import IMPOSSIBLE, Evidence, EvidenceSettings
from fairdraft.stats.families import FAMILIES, Cells, Family
from fairdraft.stats.fdr import e_bh
from fairdraft.stats.law import Partition
from fairdraft.stats.law_test import LawTest, LawVerdict
from fairdraft.stats.likelihood import LikelihoodProcess, likelihood_ratios
from fairdraft.stats.planner import TokenPlan, plan_tokens
from fairdraft.stats.power import noncentrality_for, num_trials_for
from fairdraft.stats.ratio import ratio_interval, student_quantile
from fairdraft.stats.summary import (
    AgreementSummary,
    EvidenceSummary,
    FamilySummary,
    HeatSummary,
    PositionSummary,
    SlotSummary,
    TemplateSummary,
)
from fairdraft.stats.templates import TEMPLATES, Template
from fairdraft.stats.tilt import TiltProcess
from fairdraft.stats.tokens import NO_TOKEN, REST, ScoredTokens, Source, compact
from fairdraft.stats.verdict import EXIT_CODES, Verdict, VerdictState

__all__ = [
    "EXIT_CODES",
    "FAMILIES",
    "IMPOSSIBLE",
    "NO_TOKEN",
    "REST",
    "TEMPLATES",
    "AgreementSummary",
    "Bounds",
    "Cells",
    "Distance",
    "Evidence",
    "EvidenceSettings",
    "EvidenceSummary",
    "Family",
    "FamilySummary",
    "HeatSummary",
    "LawTest",
    "LawVerdict",
    "LikelihoodProcess",
    "Partition",
    "PositionSummary",
    "ScoredTokens",
    "SlotSummary",
    "Source",
    "Template",
    "TemplateSummary",
    "TiltProcess",
    "TokenPlan",
    "Verdict",
    "VerdictState",
    "binomial_log_p_value",
    "binomial_log_tails",
    "bounds",
    "chi_square_log_survival",
    "chi_square_statistic",
    "chi_square_survival",
    "chi_square_threshold",
    "clopper_pearson",
    "compact",
    "e_bh",
    "equivalence_width",
    "likelihood_ratios",
    "measure_distance",
    "mixture_weight",
    "noncentral_log_cdf",
    "noncentrality_for",
    "num_trials_for",
    "plan_tokens",
    "ratio_interval",
    "student_quantile",
    "total_variation",
    "total_variation_floor",
]
