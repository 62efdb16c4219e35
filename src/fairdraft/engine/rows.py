"""The batch: one row a running sequence, in arrays, so that a round costs no loop over rows.

Axes: R rows allocated, B rows in use (the first ones), L tokens, K drafts.
"""

from __future__ import annotations

import numpy as np

from fairdraft.engine.adaptive import FIELDS as ADAPTIVE_FIELDS
from fairdraft.engine.adaptive import DraftSchedule
from fairdraft.engine.request import Sequence
from fairdraft.engine.stopping import NO_TOKEN
from fairdraft.ops.arithmetic import GREEDY_TEMPERATURE

_FIRST_LENGTH = 64


def record_dtype(num_speculative_tokens: int) -> np.dtype:
    """Fields of a row: what the sequence asked for, how far it is, and its counts."""
    per_position = (np.int64, (max(num_speculative_tokens, 1),))
    return np.dtype(
        [
            ("key", np.uint64),
            ("sample", np.int64),
            ("temperature", np.float64),
            ("top_k", np.int64),
            ("top_p", np.float64),
            ("min_p", np.float64),
            ("is_filtered", np.bool_),
            ("is_processed", np.bool_),
            ("min_tokens", np.int64),
            ("num_logprobs", np.int64),
            ("has_text", np.bool_),
            ("num_speculative_tokens", np.int64),
            ("prompt_length", np.int64),
            ("max_length", np.int64),
            ("num_decided", np.int64),
            ("last_anchor", np.int64),
            ("rounds", np.int64),
            ("drafted", *per_position),
            ("accepted", *per_position),
            *ADAPTIVE_FIELDS,
        ],
        align=True,
    )


class RowTable:
    """Rows of running sequences; the first `num_rows` are in use, without gaps.

    Attributes:
        num_rows: Rows in use, B.
        sequences: The sequence of each row in use.
        records: Structured array [R], see `record_dtype`.
        token_ids: Decided ids, prompt and output [R, L].
        sources: Stream code of each output token, at its position [R, L].
        stop_ids: Stop ids of each row [R, S], padded with NO_TOKEN.
        schedule: Chooses each row's K from its own rounds; None for always the most.
    """

    def __init__(
        self,
        max_rows: int,
        num_speculative_tokens: int,
        max_model_len: int,
        schedule: DraftSchedule | None = None,
    ) -> None:
        self.schedule = schedule
        self.max_rows = max_rows
        self.num_speculative_tokens = num_speculative_tokens
        self.max_model_len = max_model_len
        self.num_rows = 0
        self.sequences: list[Sequence] = []
        self.records = np.zeros(max_rows, record_dtype(num_speculative_tokens))
        # a round reads some forty fields
        self._views: dict[str, np.ndarray] = {}
        self.token_ids = np.zeros((max_rows, _FIRST_LENGTH), np.int64)
        self.sources = np.zeros((max_rows, _FIRST_LENGTH), np.uint8)
        self.stop_ids = np.full((max_rows, 1), NO_TOKEN, np.int64)

    @property
    def is_full(self) -> bool:
        """Whether no row is free."""
        return self.num_rows == self.max_rows

    def __getitem__(self, field: str) -> np.ndarray:
        """A field of the rows in use [B], a view."""
        view = self._views.get(field)
        if view is None or len(view) != self.num_rows:
            view = self._views[field] = self.records[field][: self.num_rows]
        return view

    def admit(self, sequence: Sequence) -> int:
        """Gives a sequence the next row, with all it has decided; returns the row."""
        row = self.num_rows
        assert row < self.max_rows and sequence.row < 0
        self.num_rows += 1
        self.sequences.append(sequence)
        sequence.row = row
        if sequence.record is None:
            sequence.record = self._first_record(sequence)
        self.records[row] = sequence.record
        prompt = sequence.request.prompt_token_ids
        length = len(prompt) + len(sequence.token_ids)
        assert length == self.records["num_decided"][row]
        self.reserve(length)
        self.token_ids[row, : len(prompt)] = prompt
        if sequence.token_ids:
            self.token_ids[row, len(prompt) : length] = sequence.token_ids
            self.sources[row, len(prompt) : length] = sequence.sources
        self._admit_stops(row, sequence.request.stop_ids)
        return row

    def save(self, row: int) -> Sequence:
        """Copies a row's state back into its sequence."""
        sequence = self.sequences[row]
        begin = int(self.records["prompt_length"][row])
        end = int(self.records["num_decided"][row])
        sequence.token_ids = self.token_ids[row, begin:end].tolist()
        sequence.sources = self.sources[row, begin:end].tolist()
        sequence.record = self.records[row].copy()
        return sequence

    def release(self, leaving: list[int]) -> list[tuple[int, int]]:
        """Frees rows and closes the gaps with the last ones.

        Args:
            leaving: Rows in use, ascending.

        Returns:
            Moves as (from, to), each sequence at most once.
        """
        for row in leaving:
            self.sequences[row].row = -1
        kept = self.num_rows - len(leaving)
        gaps = [row for row in leaving if row < kept]
        gone = set(leaving)
        movers = [row for row in range(kept, self.num_rows) if row not in gone]
        moves = list(zip(movers, gaps, strict=True))
        for source, destination in moves:
            sequence = self.sequences[source]
            self.sequences[destination] = sequence
            sequence.row = destination
        if moves:
            for array in (self.records, self.token_ids, self.sources, self.stop_ids):
                array[gaps] = array[movers]
        del self.sequences[kept:]
        self.num_rows = kept
        return moves

    def reserve(self, length: int) -> None:
        """Grows to at least `length` tokens a row, by doubling."""
        old = self.token_ids.shape[1]
        if length <= old:
            return
        new = max(length, 2 * old)
        for name in ("token_ids", "sources"):
            array = getattr(self, name)
            grown = np.zeros((self.max_rows, new), array.dtype)
            grown[:, :old] = array
            setattr(self, name, grown)

    def max_draft_tokens(self) -> np.ndarray:
        """Most drafts of each row [B], from its own limits and its own earlier rounds."""
        # the round emits one token more
        room = self["max_length"] - self["num_decided"] - 1
        most = np.minimum(self["num_speculative_tokens"], room)
        if self.schedule is None:
            return most
        return np.minimum(most, self.schedule.num_drafts(self.records[: self.num_rows]))

    def _first_record(self, sequence: Sequence) -> np.ndarray:
        request = sequence.request
        params = request.params
        prompt_length = len(request.prompt_token_ids)
        max_length = self.max_model_len
        if params.max_tokens is not None:
            max_length = min(max_length, prompt_length + params.max_tokens)
        drafts = self.num_speculative_tokens
        if params.num_speculative_tokens is not None:
            drafts = min(drafts, params.num_speculative_tokens)
        is_greedy = params.temperature < GREEDY_TEMPERATURE
        record = np.zeros((), self.records.dtype)
        record["key"] = request.key
        record["sample"] = sequence.index
        record["temperature"] = params.temperature
        record["top_k"] = max(params.top_k, 0)
        record["top_p"] = params.top_p
        record["min_p"] = params.min_p
        # a filter never drops the best token, so a greedy row needs none
        record["is_filtered"] = params.has_filter and not is_greedy
        record["is_processed"] = request.plan is not None
        record["min_tokens"] = params.min_tokens
        record["num_logprobs"] = -1 if params.logprobs is None else params.logprobs
        record["has_text"] = sequence.text is not None
        record["num_speculative_tokens"] = drafts
        record["prompt_length"] = record["num_decided"] = prompt_length
        record["max_length"] = max_length
        record["last_anchor"] = -1
        return record

    def _admit_stops(self, row: int, stop_ids: tuple[int, ...]) -> None:
        width = self.stop_ids.shape[1]
        if len(stop_ids) > width:
            grown = np.full((self.max_rows, len(stop_ids)), NO_TOKEN, np.int64)
            grown[:, :width] = self.stop_ids
            self.stop_ids = grown
        self.stop_ids[row] = NO_TOKEN
        self.stop_ids[row, : len(stop_ids)] = stop_ids
