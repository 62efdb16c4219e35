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


def test_one_group_has_no_interval_and_nonsense_is_refused() -> None:
    assert ratio_interval([3], [2]) is None
    assert ratio_interval([4, 6], [2, 3]) == (2.0, 2.0)
    with pytest.raises(ValueError, match="of sum 0"):
        ratio_interval([1], [0])
    with pytest.raises(ValueError, match="num_degrees"):
        student_quantile(0)
