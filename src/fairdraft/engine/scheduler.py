"""Who waits, who runs, and how a sequence enters and leaves the batch."""

from __future__ import annotations

from collections import deque

from fairdraft.engine.request import FinishReason, Request, Sequence
from fairdraft.engine.round import RoundRunner
from fairdraft.engine.rows import RowTable


class Scheduler:
    """Keeps the batch full, first come first served; rows stay without gaps.

    Attributes:
        rows: The batch.
        waiting: Sequences without a row, the next one first.
    """

    def __init__(self, rows: RowTable, runner: RoundRunner) -> None:
        self.rows = rows
        self.waiting: deque[Sequence] = deque()
        self._runner = runner

    @property
    def has_work(self) -> bool:
        """Whether any sequence waits or runs."""
        return bool(self.waiting) or self.rows.num_rows > 0

    def add(self, request: Request) -> None:
        """Queues every sample of a request."""
        self.waiting.extend(request.sequences)

    def admit(self) -> None:
        """Gives free rows to waiting sequences and prefills them."""
        first_row = self.rows.num_rows
        while self.waiting and not self.rows.is_full:
            sequence = self.waiting.popleft()
            sequence.request.begin(self._runner.clock)
            row = self.rows.admit(sequence)
            if self._runner.speculator is not None:
                self._runner.speculator.admit_row(row)
        if self.rows.num_rows > first_row:
            self._runner.prefill(self.rows, first_row)

    def remove(self, row: int) -> Sequence:
        """Takes a sequence out of the batch, with its state; the last row moves into its place."""
        sequence = self.rows.save(row)
        last = self.rows.release(row)
        for holder in (self._runner.cache, self._runner.speculator):
            if holder is None:
                continue
            if last != row:
                holder.move_row(last, row)
            holder.drop_row(last)
        return sequence

    def preempt(self, request: Request) -> None:
        """Drops the request's cached keys and values; it is prefilled again from its ids."""
        preempted = [s for s in request.sequences if s.row >= 0]
        for sequence in reversed(preempted):
            self.remove(sequence.row)
            self.waiting.appendleft(sequence)
        request.num_preemptions += len(preempted)

    def abort(self, request: Request) -> None:
        """Ends every sequence of a request where it stands."""
        for sequence in request.sequences:
            if sequence.finish_reason is not None:
                continue
            if sequence.row >= 0:
                self.remove(sequence.row)
            else:
                self.waiting.remove(sequence)
            sequence.finish_reason = FinishReason.ABORT
