"""Runs the rows, in this process or in several."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fairdraft.audit.kernels.claims import Claim, claims_of
from fairdraft.audit.kernels.result import RowResult, carry_out
from fairdraft.audit.kernels.rows import ROWS, Row
from fairdraft.audit.processes import Progress, completed

__all__ = ["KernelAudit", "run_kernels"]


@dataclass(frozen=True)
class KernelAudit:
    """What all rows came to.

    Attributes:
        results: In the order of the rows.
        claims: What they show together.
        seed: Of every row's keys.
        seconds: How long the run took.
        device: Where the ops ran.
    """

    results: tuple[RowResult, ...]
    claims: tuple[Claim, ...]
    seed: int
    seconds: float
    device: str = "cpu"

    @property
    def surprises(self) -> list[str]:
        """Everything that is not as expected, a sentence each."""
        rows = [f"{r.row.name}: {clause}" for r in self.results for clause in r.surprises]
        return rows + [f"not so: {claim.sentence}" for claim in self.claims if not claim.holds]

    @property
    def exit_code(self) -> int:
        """0 if every row came to what was expected of it, else 1."""
        return 1 if self.surprises else 0


def run_kernels(
    rows: Sequence[Row] = ROWS,
    *,
    seed: int = 0,
    jobs: int = 1,
    on_progress: Callable[[Progress[RowResult]], None] | None = None,
) -> KernelAudit:
    """Runs, judges and traces rows.

    A row's tokens depend on its name and the seed alone, so every machine counts the same.

    Args:
        rows: Which.
        seed: Any integer; another one gives other samples.
        jobs: Processes; with more than one, the caller's main module must be importable.
        on_progress: Called after each row.

    Raises:
        ValueError: If `jobs` is below 1 or a name comes twice.
    """
    if jobs < 1:
        raise ValueError(f"jobs = {jobs} must be at least 1")
    if len({row.name for row in rows}) < len(rows):
        raise ValueError("two rows have the same name; names choose the samples, so rename one")
    begin = time.perf_counter()
    total, done = sum(row.experiment.cost for row in rows), 0.0
    finished: dict[str, RowResult] = {}
    for result in _finish(rows, seed, min(jobs, len(rows))):
        finished[result.row.name] = result
        done += result.row.experiment.cost
        if on_progress is not None:
            seconds = time.perf_counter() - begin
            on_progress(Progress(result, len(finished), len(rows), done / total, seconds))
    results = tuple(finished[row.name] for row in rows)
    claims = tuple(claims_of(results))
    return KernelAudit(results, claims, seed, time.perf_counter() - begin)


def _finish(rows: Sequence[Row], seed: int, jobs: int) -> Iterator[RowResult]:
    """Yields results as they come; rows begin in their order, so that the first is soon there."""
    if jobs <= 1:
        yield from (carry_out(row, seed) for row in rows)
        return
    for _, result in completed(carry_out, [(row, seed) for row in rows], jobs):
        yield result
