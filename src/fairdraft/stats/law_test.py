"""A test of counts against a law that knows its power before it sees data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fairdraft.stats.chi_square import (
    MIN_EXPECTED,
    chi_square_log_survival,
    chi_square_statistic,
    chi_square_threshold,
)
from fairdraft.stats.distance import Distance, measure_distance
from fairdraft.stats.law import Partition, checked_counts, checked_probs, impossible_cells
from fairdraft.stats.power import FALSE_ALARM, MISS, num_trials_for


@dataclass(frozen=True)
class LawVerdict:
    """What one set of counts says about a law.

    Attributes:
        passed: Whether the counts are consistent with the law.
        log_p_value: Natural log of the p-value; -inf if an impossible cell was hit.
        statistic: Pearson's statistic; inf if an impossible cell was hit.
        df: Its degrees of freedom.
        distance: Total variation distance over the tested cells, with floor and 99 % bounds.
        impossible: Cells of probability zero that were observed.
        num_trials: Number of counts.
    """

    passed: bool
    log_p_value: float
    statistic: float
    df: int
    distance: Distance
    impossible: tuple[int, ...]
    num_trials: int

    @property
    def p_value(self) -> float:
        return math.exp(self.log_p_value)

    def __str__(self) -> str:
        word = "consistent with" if self.passed else "not drawn from"
        hit = f", impossible cells {list(self.impossible[:10])}" if self.impossible else ""
        return (
            f"{word} the law: log10 p = {self.log_p_value / math.log(10.0):.2f}, "
            f"chi-square {self.statistic:.1f} on {self.df} df, "
            f"TV {self.distance.observed:.5f} (floor {self.distance.floor:.5f}), "
            f"n = {self.num_trials}{hit}"
        )


@dataclass(frozen=True)
class LawTest:
    """A chi-square test of one law, planned before the data; make one with `LawTest.plan`.

    Attributes:
        null_probs: float64, the law over the tested cells (after the partition, if any).
        num_trials: Fewest trials that give the stated power.
        false_alarm: Chance that a correct sampler is failed.
        miss: Chance that the planned fault is passed.
        threshold: Statistic from which the law is refused.
        partition: Grouping of the raw cells, or None.
    """

    null_probs: np.ndarray
    num_trials: int
    false_alarm: float
    miss: float
    threshold: float
    partition: Partition | None = None
    min_expected: float = MIN_EXPECTED

    @classmethod
    def plan(
        cls,
        null_probs: ArrayLike,
        *,
        alternative_probs: ArrayLike | None = None,
        effect: float | None = None,
        partition: Partition | None = None,
        false_alarm: float = FALSE_ALARM,
        miss: float = MISS,
        min_expected: float = MIN_EXPECTED,
    ) -> LawTest:
        """Plans a test against a planted fault or against a total variation distance.

        `false_alarm` is the chi-square law's. With few cells, or cells that expect only
        `min_expected` counts, Pearson's statistic has a heavier tail than that law: two cells of
        which one expects 5 reach 1.4e-6 where 1e-9 is asked, and 8e-9 at 100; one such cell among
        16 reaches 2.1e-8 and 1.1e-9. Raise `min_expected` where that matters.

        Args:
            null_probs: Law under test, any shape.
            alternative_probs: Law of the fault that must be seen, same shape.
            effect: Total variation distance that must be seen, in (0, 1]; over the groups if a
                partition is given.
            partition: Grouping of the cells, declared now.
            false_alarm: Chance that a correct sampler is failed.
            miss: Chance that the fault is passed.
            min_expected: Smallest expected count of a tested cell.

        Raises:
            ValueError: As `num_trials_for`.
        """
        law = checked_probs(null_probs)
        other = None if alternative_probs is None else checked_probs(alternative_probs)
        if partition is not None:
            law = partition.apply(law)
            other = None if other is None else partition.apply(other)
        num_trials = num_trials_for(
            null_probs=law,
            alternative_probs=other,
            effect=effect,
            false_alarm=false_alarm,
            miss=miss,
            min_expected=min_expected,
        )
        df = int((law > 0.0).sum()) - 1
        threshold = chi_square_threshold(false_alarm, df)
        return cls(law, num_trials, false_alarm, miss, threshold, partition, min_expected)

    def judge(self, counts: ArrayLike) -> LawVerdict:
        """Judges counts of at least `num_trials` draws.

        Args:
            counts: Nonnegative integers over the cells of `null_probs` as given to `plan`.

        Raises:
            ValueError: If there are fewer trials than planned or the cells do not match.
        """
        tested = np.asarray(counts)
        if self.partition is not None:
            tested = self.partition.apply(tested)
        observed = checked_counts(tested, self.null_probs)
        num_trials = int(observed.sum())
        if num_trials < self.num_trials:
            raise ValueError(
                f"{num_trials} trials cannot carry the planned power: take {self.num_trials}"
            )
        distance = measure_distance(observed, self.null_probs)
        impossible = tuple(impossible_cells(observed, self.null_probs))
        if impossible:
            df = int((self.null_probs > 0.0).sum()) - 1
            return LawVerdict(False, -math.inf, math.inf, df, distance, impossible, num_trials)
        statistic, df = chi_square_statistic(
            observed, self.null_probs, min_expected=self.min_expected * (1 - 1e-9)
        )
        log_p_value = chi_square_log_survival(statistic, df)
        passed = statistic < self.threshold
        return LawVerdict(passed, log_p_value, statistic, df, distance, (), num_trials)
