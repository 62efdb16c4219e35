"""Planned law tests over what an experiment counted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fairdraft.stats import LawTest, Partition, binomial_log_p_value, binomial_log_tails
from fairdraft.stats.power import FALSE_ALARM, MISS

#: enough that Pearson's statistic keeps its false-alarm rate (see `LawTest.plan`)
MIN_EXPECTED = 20.0


class Check(NamedTuple):
    """One law test and the counts that it judges."""

    name: str
    plan: LawTest
    counts: np.ndarray


def plan_for(
    law: np.ndarray,
    *,
    effect: float | None = None,
    faulty: np.ndarray | None = None,
    partition: Partition | None = None,
) -> LawTest:
    """A law test at false alarm 1e-9 and miss 1e-6, against an effect or a faulty law."""
    return LawTest.plan(
        law,
        effect=effect,
        alternative_probs=faulty,
        partition=partition,
        min_expected=MIN_EXPECTED,
    )


def refused(checks: Iterable[Check]) -> list[str]:
    """What fails, with the numbers."""
    verdicts = [(check.name, check.plan.judge(check.counts)) for check in checks]
    return [f"{name}: {verdict}" for name, verdict in verdicts if not verdict.passed]


def assert_law(checks: Iterable[Check]) -> None:
    """Every check passes."""
    failures = refused(checks)
    assert not failures, "\n".join(failures)


def count(cells: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Counts of the rows of cells [N, dims] in an array of that shape."""
    columns = np.atleast_2d(cells.T)
    flat = np.ravel_multi_index(tuple(columns), shape)
    return np.bincount(flat, minlength=int(np.prod(shape))).reshape(shape)


def num_trials_between(prob: float, faulty: float) -> int:
    """Fewest trials (to 500) after which an exact two-sided binomial test misses a lower chance.

    For rare events, where a chi-square law of two cells does not keep its false-alarm rate.
    """
    num_trials = 0
    while True:
        num_trials += 500
        kept = least_accepted(num_trials, prob)
        if kept and binomial_log_tails(kept, num_trials, faulty)[1] < np.log(MISS):
            return num_trials


def least_accepted(num_trials: int, prob: float) -> int:
    """Fewest hits that the test does not refuse."""
    hits = 0
    while is_refused(hits, num_trials, prob):
        hits += 1
    return hits


def is_refused(hits: int, num_trials: int, prob: float) -> bool:
    """Whether that many hits are too many or too few, at a false alarm of 1e-9."""
    return binomial_log_p_value(hits, num_trials, prob) < np.log(FALSE_ALARM)
