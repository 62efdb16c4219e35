"""What a row came to, and whether that was expected."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from fairdraft import noise
from fairdraft.audit.kernels.judging import ChiSquare, Judgment, closed_form, judge
from fairdraft.audit.kernels.rows import Row
from fairdraft.audit.kernels.trials import Traced, Trials, run_trials, trace_texts

__all__ = [
    "MAX_DEVIATIONS",
    "Acceptance",
    "Replay",
    "RowResult",
    "carry_out",
    "first_key",
    "measured_acceptance",
]

#: standard errors within which a measured share must be its chance; missed once in 1.7e6
MAX_DEVIATIONS = 5.0


@dataclass(frozen=True)
class Acceptance:
    """First drafts that were accepted.

    Attributes:
        share: Measured.
        expected: Its chance; None where a block decides.
        standard_error: Of the measured share.
    """

    share: float
    expected: float | None
    standard_error: float

    @property
    def is_moved(self) -> bool:
        """Whether the share is not its chance."""
        if self.expected is None:
            return False
        return abs(self.share - self.expected) > MAX_DEVIATIONS * self.standard_error + 1e-12


@dataclass(frozen=True)
class Replay:
    """First texts of a device's row, decoded by the host's ops as well, under the same layout.

    Attributes:
        num_texts: Compared.
        num_unlike: Of them had other tokens.
        num_allowed: Most that may: near ties.
    """

    num_texts: int
    num_unlike: int
    num_allowed: int


@dataclass(frozen=True)
class RowResult:
    """One row of the table.

    Attributes:
        row: What was run.
        judgment: What the counts say.
        traced: What the address trace says.
        acceptance: Of first drafts.
        fit: The counts against the closed form of the bug, for rows that have one.
        num_trials: Texts decoded.
        seconds: How long it took.
        replay: What the host says to the first texts, for rows of a device.
    """

    row: Row
    judgment: Judgment
    traced: Traced
    acceptance: Acceptance
    fit: ChiSquare | None
    num_trials: int
    seconds: float
    replay: Replay | None = None

    @property
    def named(self) -> str | None:
        """The bug, by the law test or else by the trace."""
        return self.judgment.diagnosis or next(iter(self.traced.names), None)

    @property
    def surprises(self) -> tuple[str, ...]:
        """What is not as expected, a clause each."""
        expected = self.row.expected
        found = []
        if self.judgment.state != expected.state:
            found.append(f"{self.judgment.state} where {expected.state} is expected")
        if self.judgment.diagnosis != expected.diagnosis:
            found.append(f"the law test names {_quoted(self.judgment.diagnosis)}")
        first = next(iter(self.traced.names), None)
        if first != expected.traced:
            found.append(f"the trace names {_quoted(first)}")
        if self.acceptance.is_moved:
            share, chance = self.acceptance.share, self.acceptance.expected
            found.append(f"{share:.4f} of first drafts are accepted where {chance:.4f} is due")
        replay = self.replay
        if replay is not None and replay.num_unlike > replay.num_allowed:
            found.append(
                f"{replay.num_unlike} of {replay.num_texts} texts differ from the host's ops"
            )
        return tuple(found)


def first_key(row: Row, seed: int) -> int:
    """The key of a row's first trial; rows are far apart, and none depends on the others."""
    return noise.request_key(seed, list(row.name.encode())) >> 33 << 32


def carry_out(row: Row, seed: int = 0) -> RowResult:
    """Runs, judges and traces one row."""
    begin = time.perf_counter()
    key = first_key(row, seed)
    make = row.maker(key)
    trials = run_trials(row.experiment, make(), key)
    traced = trace_texts(row.experiment, make, key)
    return RowResult(
        row,
        judge(row.experiment, trials),
        traced,
        measured_acceptance(trials, row.experiment.acceptance),
        closed_form(row.experiment, trials) if row.layout == "coupled" else None,
        trials.num_trials,
        time.perf_counter() - begin,
    )


def measured_acceptance(trials: Trials, expected: float | None) -> Acceptance:
    """The share of first drafts that were accepted, beside its chance."""
    share = trials.num_accepted / trials.num_trials
    chance = share if expected is None else expected
    error = math.sqrt(chance * (1.0 - chance) / trials.num_trials)
    return Acceptance(share, expected, error)


def _quoted(name: str | None) -> str:
    return "nothing" if name is None else f"'{name}'"
