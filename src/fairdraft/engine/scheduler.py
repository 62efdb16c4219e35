"""Who waits, who runs, and how a sequence enters and leaves the batch."""

from __future__ import annotations

from collections import deque

from fairdraft.engine.interrupts import held_interrupts
from fairdraft.engine.request import FinishReason, Request, Sequence
from fairdraft.engine.round import RoundRunner
from fairdraft.engine.rows import RowTable
from fairdraft.speculators import RequestReader


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
        """Gives free rows to waiting sequences and prefills them, all of them or none."""
        if not self.waiting or self.rows.is_full:
            return
        first_row = self.rows.num_rows
        with held_interrupts():
            while self.waiting and not self.rows.is_full:
                sequence = self.waiting.popleft()
                sequence.request.begin(self._runner.clock)
                row = self.rows.admit(sequence)
                self._begin_row(row, sequence.request)
        try:
            self._runner.prefill(self.rows, first_row)
        except BaseException:
            # a row without its prompt in the cache must not run
            with held_interrupts():
                admitted = self.remove(list(range(first_row, self.rows.num_rows)))
                self.waiting.extendleft(reversed(admitted))
            raise

    def _begin_row(self, row: int, request: Request) -> None:
        speculator = self._runner.speculator
        if speculator is None:
            return
        speculator.admit_row(row)
        if isinstance(speculator, RequestReader):
            prompt_length = len(request.prompt_token_ids)
            speculator.begin_request(row, prompt_length, request.prediction_token_ids)

    def remove(self, leaving: list[int]) -> list[Sequence]:
        """Takes sequences out of the batch, with their state.

        Args:
            leaving: Rows in use, ascending.

        Returns:
            The sequences, in the order of the rows.
        """
        sequences = [self.rows.save(row) for row in leaving]
        moves = self.rows.release(leaving)
        refilled = {destination for _, destination in moves}
        vacated = [row for row in leaving if row not in refilled]
        for holder in (self._runner.cache, self._runner.speculator):
            if holder is None:
                continue
            for source, destination in moves:
                holder.move_row(source, destination)
            for row in vacated:
                holder.drop_row(row)
        return sequences

    def preempt(self, request: Request) -> None:
        """Drops the request's cached keys and values; it is prefilled again from its ids."""
        preempted = self.remove(_rows_of(request))
        self.waiting.extendleft(reversed(preempted))
        request.num_preemptions += len(preempted)

    def abort(self, request: Request) -> None:
        """Ends every sequence of a request where it stands."""
        self.remove(_rows_of(request))
        for sequence in request.sequences:
            if sequence.finish_reason is None:
                sequence.finish_reason = FinishReason.ABORT
        self.waiting = deque(s for s in self.waiting if s.request is not request)


def _rows_of(request: Request) -> list[int]:
    return sorted(sequence.row for sequence in request.sequences if sequence.row >= 0)
