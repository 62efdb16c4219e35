"""Runs cases, in this process or in several."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fairdraft.audit.faults.case import Case
from fairdraft.audit.faults.catalogue import CASES, find_cases
from fairdraft.audit.faults.trial import Outcome, run_case
from fairdraft.audit.processes import Progress, completed

__all__ = ["Catalogue", "run_catalogue"]


@dataclass(frozen=True)
class Catalogue:
    """What a run came to.

    Attributes:
        outcomes: In the catalogue's order.
        seed: Of all texts.
        seconds: How long it took.
    """

    outcomes: tuple[Outcome, ...]
    seed: int
    seconds: float

    @property
    def surprises(self) -> list[str]:
        """Everything that is not as expected, a sentence each."""
        return [f"{o.case.name}: {clause}" for o in self.outcomes for clause in o.surprises]

    @property
    def exit_code(self) -> int:
        """0 if every case came to what was expected of it, else 1."""
        return 1 if self.surprises else 0


def run_catalogue(
    cases: Sequence[Case] = CASES,
    *,
    seed: int = 0,
    jobs: int = 1,
    on_progress: Callable[[Progress[Outcome]], None] | None = None,
) -> Catalogue:
    """Runs cases of the catalogue.

    Args:
        cases: Which, from `CASES`.
        seed: Any integer; another one gives other texts.
        jobs: Processes; with more than one, the caller's main module must be importable.
        on_progress: Called after each case.

    Raises:
        ValueError: If `jobs` is below 1, a name comes twice, a case that is not the catalogue's
            would run in another process, or a fault is in place already.
    """
    if jobs < 1:
        raise ValueError(f"jobs = {jobs} must be at least 1")
    if len({case.name for case in cases}) < len(cases):
        raise ValueError("two cases have the same name; give each once")
    if jobs > 1 and any(case is not find_cases([case.name])[0] for case in cases):
        raise ValueError("a changed case runs in one process; pass jobs=1")
    begin = time.perf_counter()
    total, done = sum(case.cost for case in cases), 0.0
    finished: dict[str, Outcome] = {}
    for outcome in _finish(cases, seed, min(jobs, len(cases))):
        finished[outcome.case.name] = outcome
        done += outcome.case.cost
        if on_progress is not None:
            seconds = time.perf_counter() - begin
            on_progress(Progress(outcome, len(finished), len(cases), done / total, seconds))
    outcomes = tuple(finished[case.name] for case in cases)
    return Catalogue(outcomes, seed, time.perf_counter() - begin)


def _finish(cases: Sequence[Case], seed: int, jobs: int) -> Iterator[Outcome]:
    """Yields outcomes as they come; the longest cases begin first, so that no process waits."""
    if jobs <= 1:
        yield from (run_case(case, seed) for case in cases)
        return
    ordered = sorted(cases, key=lambda case: -case.cost)
    calls = [(case.name, seed) for case in ordered]
    for at, numbers in completed(_numbers, calls, jobs):
        yield Outcome(ordered[at], **numbers)


def _numbers(name: str, seed: int) -> dict[str, Any]:
    (case,) = find_cases([name])
    return run_case(case, seed).numbers()
