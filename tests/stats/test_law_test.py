"""The judge of laws: calibrated under the null, powerful as planned, strict about its inputs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from fairdraft.stats import (
    LawTest,
    Partition,
    chi_square_statistic,
    chi_square_threshold,
    clopper_pearson,
    measure_distance,
    noncentrality_for,
    num_trials_for,
    total_variation,
    total_variation_floor,
)

STEEP = np.exp(-0.35 * np.arange(16)) / np.exp(-0.35 * np.arange(16)).sum()


def tilted(law: np.ndarray, distance: float) -> np.ndarray:
    """The law moved by a distance from its head to the rest."""
    move = np.where(np.arange(law.size) < 2, -law / law[:2].sum(), law / law[2:].sum())
    return law + distance * move


def test_planner_gives_the_published_numbers() -> None:
    """Narrow test of 16 bins, false alarm 1e-9, miss 1e-6."""
    assert num_trials_for(effect=0.01, num_bins=16) == 401_029
    assert num_trials_for(effect=0.02, num_bins=16) == 100_258


@pytest.mark.parametrize(
    ("df", "published"),
    [(1, 52.1), (15, 80.8), (240, 198.0)],
)
def test_noncentrality_gives_the_published_numbers(df: int, published: float) -> None:
    found = noncentrality_for(df, false_alarm=1e-6, miss=0.01)
    assert found == pytest.approx(published, rel=2e-3)


def test_effect_is_the_least_favorable_direction() -> None:
    law = np.full(16, 1 / 16)
    half = np.where(np.arange(16) < 8, 1.0, -1.0) / 16
    against_half = num_trials_for(null_probs=law, alternative_probs=law + 0.02 * half * 2)
    against_tilt = num_trials_for(null_probs=law, alternative_probs=tilted(law, 0.02))
    guaranteed = num_trials_for(null_probs=law, effect=0.02)
    assert against_tilt < guaranteed <= against_half * 1.01


def test_null_p_values_are_uniform() -> None:
    """2,000 p-values of a correct sampler; a fair judge fails this once in 1e6 seeds."""
    plan = LawTest.plan(STEEP, effect=0.1)
    generator = np.random.default_rng(7)
    counts = generator.multinomial(plan.num_trials, STEEP, size=2000)
    p_values = [plan.judge(row).p_value for row in counts]
    assert scipy.stats.kstest(p_values, "uniform").pvalue > 1e-6


RARE = np.append(np.full(15, 0.99 / 15), 0.01)
OFTEN = np.append(np.full(15, 0.96 / 15), 0.04)


@pytest.mark.parametrize(
    ("law", "faulty"),
    [(STEEP, tilted(STEEP, 0.02)), (STEEP, tilted(STEEP, 0.2)), (RARE, OFTEN)],
    ids=["near", "far", "rare cell too often"],
)
def test_planned_power_is_reached(law: np.ndarray, faulty: np.ndarray) -> None:
    """At miss 0.05 the miss rate of 2,000 runs may not lie above it, at an error of 1e-6."""
    plan = LawTest.plan(law, alternative_probs=faulty, false_alarm=1e-6, miss=0.05)
    counts = np.random.default_rng(11).multinomial(plan.num_trials, faulty, size=2000)
    misses = sum(plan.judge(row).passed for row in counts)
    assert clopper_pearson(misses, 2000, error=2e-6)[0] <= 0.05


def test_planned_miss_is_not_wasteful() -> None:
    """Half the planned trials do miss, so the plan is no mere over-estimate."""
    faulty = tilted(STEEP, 0.02)
    plan = LawTest.plan(STEEP, alternative_probs=faulty, false_alarm=1e-6, miss=0.05)
    threshold = chi_square_threshold(1e-6, 15)
    counts = np.random.default_rng(12).multinomial(plan.num_trials // 2, faulty, size=500)
    misses = sum(chi_square_statistic(row, STEEP)[0] < threshold for row in counts)
    assert misses > 0.3 * 500


def test_fault_is_refused_and_the_verdict_says_so() -> None:
    faulty = tilted(STEEP, 0.02)
    plan = LawTest.plan(STEEP, alternative_probs=faulty)
    generator = np.random.default_rng(3)
    good = plan.judge(generator.multinomial(plan.num_trials, STEEP))
    bad = plan.judge(generator.multinomial(plan.num_trials, faulty))
    assert good.passed and str(good).startswith("consistent with the law")
    assert not bad.passed and bad.p_value < 1e-9
    for part in ("log10 p", "TV", f"n = {plan.num_trials}"):
        assert part in str(bad)


def test_impossible_token_fails_at_once() -> None:
    law, faulty = np.array([0.5, 0.5, 0.0]), np.array([0.5, 0.49, 0.01])
    plan = LawTest.plan(law, alternative_probs=faulty)
    assert plan.num_trials == math.ceil(math.log(1e-6) / math.log(0.99))
    verdict = plan.judge([plan.num_trials // 2, plan.num_trials - plan.num_trials // 2, 1])
    assert not verdict.passed and verdict.impossible == (2,) and verdict.p_value == 0.0
    assert "impossible cells [2]" in str(verdict)


def test_two_cell_false_alarm_is_what_the_docstring_says() -> None:
    """Exact rate of Pearson's statistic on two cells, nominal 1e-9."""
    num_trials, threshold = 100_000, chi_square_threshold(1e-9, 1)
    k = np.arange(num_trials + 1)
    for expected, rate in ((5, 1.4e-6), (100, 8e-9)):
        p = expected / num_trials
        refused = (k - expected) ** 2 / (num_trials * p * (1 - p)) >= threshold
        exact = scipy.stats.binom.pmf(k, num_trials, p)[refused].sum()
        assert exact == pytest.approx(rate, rel=0.1)


def test_statistic_equals_scipy() -> None:
    counts = np.random.default_rng(5).multinomial(10_000, STEEP)
    statistic, df = chi_square_statistic(counts, STEEP)
    expected = scipy.stats.chisquare(counts, STEEP * 10_000)
    assert (statistic, df) == (pytest.approx(expected.statistic, rel=1e-12), 15)


def test_distance_bounds_hold() -> None:
    """Each bound at error 0.1 over 500 runs; failures above 0.1 by chance are below 1e-6."""
    generator = np.random.default_rng(9)
    for distance in (0.0, 0.03):
        truth = tilted(STEEP, distance)
        assert total_variation(truth, STEEP) == pytest.approx(distance)
        found = [
            measure_distance(generator.multinomial(5000, truth), STEEP, error=0.1)
            for _ in range(500)
        ]
        for failures in (
            sum(d.upper < distance for d in found),
            sum(d.lower > distance for d in found),
        ):
            assert clopper_pearson(failures, 500, error=2e-6)[0] <= 0.1
    clean = [measure_distance(generator.multinomial(5000, STEEP), STEEP) for _ in range(300)]
    mean = np.mean([d.observed for d in clean])
    assert mean == pytest.approx(total_variation_floor(STEEP, 5000), rel=0.03)
    assert min(d.debiased for d in clean) == 0.0


def test_partition_groups_and_keeps_mass() -> None:
    law = np.append(STEEP, 0.0)
    for partition in (Partition.by_mass(law, 0.02), Partition.by_score(law, np.arange(17), 4)):
        grouped = partition.apply(law)
        assert grouped.sum() == pytest.approx(1.0)
        assert grouped[partition.labels[16]] == 0.0
        assert np.unique(partition.labels).size == partition.num_groups
    rare = Partition.by_mass(law, 0.02).apply(law)
    assert rare[rare > 0].min() >= 0.02
    quarters = Partition.by_score(np.full(16, 1 / 16), -np.arange(16), 4)
    assert quarters.labels.tolist() == [3] * 4 + [2] * 4 + [1] * 4 + [0] * 4


def test_partitioned_test_judges_raw_counts() -> None:
    wide = np.exp(-0.02 * np.arange(1000))
    wide /= wide.sum()
    faulty = wide[::-1]
    partition = Partition.by_score(wide, np.log(faulty / wide))
    plan = LawTest.plan(wide, alternative_probs=faulty, partition=partition)
    generator = np.random.default_rng(1)
    assert plan.judge(generator.multinomial(plan.num_trials, wide)).passed
    assert not plan.judge(generator.multinomial(plan.num_trials, faulty)).passed


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: chi_square_statistic([3, 3], [0.5, 0.5]), "expected count 3 is below 5"),
        (lambda: chi_square_statistic([9, 9, 1], [0.5, 0.5, 0.0]), r"observed: \[2\]"),
        (lambda: chi_square_statistic([9, 9], [0.5, 0.4]), "sum to"),
        (lambda: chi_square_statistic([9, 9], [1.5, -0.5]), "nonnegative"),
        (lambda: chi_square_statistic([9, 9], [float("nan"), 1.0]), "finite"),
        (lambda: chi_square_statistic([9, 9, 9], [0.5, 0.5]), "3 counts for a law of 2"),
        (lambda: chi_square_statistic([9.5, 9], [0.5, 0.5]), "integers"),
        (lambda: chi_square_statistic([0, 0], [0.5, 0.5]), "no trial"),
        (lambda: chi_square_statistic([9], [1.0]), "nothing to test"),
        (lambda: num_trials_for(num_bins=4), "either"),
        (lambda: num_trials_for(effect=0.1), "num_bins"),
        (lambda: num_trials_for(effect=0.0, num_bins=4), "effect"),
        (lambda: num_trials_for(effect=0.1, num_bins=4, miss=1.0), "miss"),
        (lambda: num_trials_for(null_probs=STEEP, alternative_probs=STEEP), "equals the law"),
        (lambda: num_trials_for(null_probs=STEEP, alternative_probs=[0.5, 0.5]), "2 alternative"),
        (lambda: LawTest.plan(STEEP, effect=0.1).judge(np.ones(16, int)), "16 trials cannot"),
        (lambda: Partition.by_mass(STEEP, 0.0), "min_prob"),
        (lambda: Partition.by_score(STEEP, [1.0]), "1 scores"),
        (lambda: Partition.by_mass(STEEP, 0.1).apply([1.0]), "1 values"),
        (lambda: measure_distance([1, 1], [0.5, 0.5], error=2.0), "error"),
        (lambda: total_variation([1.0], [0.5, 0.5]), "1 and 2 cells"),
    ],
)
def test_bad_argument_is_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
