"""Student's quantile against scipy, and how often the interval of a ratio holds the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fairdraft.stats import ratio_interval, student_quantile


@pytest.mark.parametrize("num_degrees", [1, 2, 11, 200])
@pytest.mark.parametrize("error", [0.5, 0.05, 1e-6])
def test_quantile_is_that_of_students_law(num_degrees: int, error: float) -> None:
    expected = stats.t.isf(error / 2, num_degrees)
    assert student_quantile(num_degrees, error=error) == pytest.approx(expected, rel=1e-9)


def test_interval_holds_the_ratio_as_often_as_it_says() -> None:
    """12 groups that differ; misses of 5% by 4 standard deviations of 2,000 trials are let pass.

    Planted: the same with every group counted twice, as copies of greedy texts would be.
    """
    generator = np.random.default_rng(0)
    missed = doubled = 0
    for _ in range(2000):
        rate = generator.normal(2.5, 0.3, 12)
        rounds = generator.integers(20, 60, 12)
        tokens = (rate * rounds).tolist()
        found = ratio_interval(tokens, rounds.tolist())
        copied = ratio_interval(tokens * 2, rounds.tolist() * 2)
        assert found is not None and copied is not None
        missed += not found[0] <= 2.5 <= found[1]
        doubled += not copied[0] <= 2.5 <= copied[1]
    limit = 2000 * 0.05 + 4 * (2000 * 0.05 * 0.95) ** 0.5
    assert missed < limit < doubled


@pytest.mark.parametrize("chance", [0.01, 0.6, 0.97], ids=["rarely", "usually", "nearly-always"])
def test_few_short_texts_hold_the_ratio_as_often(chance: float) -> None:
    """4 texts of 32 tokens, K = 4, as the engine counts them; at most 10% of 1,000 may miss.

    Planted: the same without bounds, where texts that are all alike are taken at their word.
    """
    generator = np.random.default_rng(3)
    stood = (generator.random((20_000, 32, 4)) < chance).cumprod(2).sum(2) + 1
    rounds = 1 + (stood.cumsum(1) < 32).sum(1)
    truth = 32 / rounds.mean()
    missed = alike = 0
    for group in rounds[:4_000].reshape(1_000, 4):
        found = ratio_interval([32] * 4, group.tolist(), bounds=(1, 5))
        assert found is not None and 1 <= found[0] < found[1] <= 5
        missed += not found[0] <= truth <= found[1]
        alike += ratio_interval([32] * 4, group.tolist()) is None
    assert missed <= 100
    assert alike > 50 or chance == 0.6


def test_groups_that_are_all_alike_leave_room_for_others() -> None:
    """4 groups: with chance .05 a share of 1 - .05^(1/4) = .527 that differs is not seen."""
    found = ratio_interval([8] * 4, [4] * 4, bounds=(1, 5))
    unseen = 1 - 0.05**0.25
    assert found == pytest.approx((2 - unseen, 2 + 3 * unseen))
    assert ratio_interval([5] * 4, [1] * 4, bounds=(1, 5)) == pytest.approx((5 - 4 * unseen, 5))
    # nothing can differ
    assert ratio_interval([3] * 4, [3] * 4, bounds=(1, 1)) == (1, 1)
    assert ratio_interval([1, 12], [1, 3], bounds=(1, 4)) == (1, 4)


def test_one_group_has_no_interval_and_nonsense_is_refused() -> None:
    assert ratio_interval([3], [2]) is None
    assert ratio_interval([4, 6], [2, 3]) is None
    with pytest.raises(ValueError, match="of sum 0"):
        ratio_interval([1], [0])
    with pytest.raises(ValueError, match=r"the ratio 6 is not within bounds = \(1, 5\)"):
        ratio_interval([6, 6], [1, 1], bounds=(1, 5))
    with pytest.raises(ValueError, match="num_degrees"):
        student_quantile(0)
