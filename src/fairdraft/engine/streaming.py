"""Events of a streamed request: what is new since the last one."""

from __future__ import annotations

from fairdraft.engine.output import CompletionOutput, RequestOutput
from fairdraft.engine.request import SOURCE_NAMES, Request, Sequence
from fairdraft.engine.rows import RowTable
from fairdraft.noise import format_noise_key


class EventSource:
    """Turns the state of one request into events, each with only what is new.

    Attributes:
        is_closed: Whether the finished event was made.
    """

    def __init__(self, request: Request, rows: RowTable) -> None:
        self.is_closed = False
        self._request = request
        self._rows = rows
        self._num_tokens = [0] * len(request.sequences)
        self._num_pieces = [0] * len(request.sequences)
        self._is_ended = [False] * len(request.sequences)
        self._totals = [0.0] * len(request.sequences)

    def next_event(self) -> RequestOutput | None:
        """Returns what is new, or None if nothing is."""
        request = self._request
        if request.began is None and request.num_unfinished:
            return None
        outputs = []
        for sequence in request.sequences:
            output = self._news(sequence)
            if output is not None:
                outputs.append(output)
        self.is_closed = not request.num_unfinished
        if not outputs and not self.is_closed:
            return None
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=outputs,
            finished=self.is_closed,
            noise_key=format_noise_key(request.key),
            metrics=request.metrics if self.is_closed else None,
            error=request.error,
            prompt_logprobs=request.prompt_logprobs,
            lossy=request.lossy,
        )

    def _news(self, sequence: Sequence) -> CompletionOutput | None:
        index = sequence.index
        if self._is_ended[index]:
            return None
        token_ids, sources = self._new_tokens(sequence)
        pieces = self._new_pieces(sequence)
        ended = sequence.finish_reason is not None
        if not token_ids and not pieces and not ended:
            return None
        logprobs = None
        if sequence.logprobs is not None:
            begin = self._num_tokens[index]
            logprobs = sequence.logprobs[begin : begin + len(token_ids)]
            self._totals[index] += sum(
                entry[token_id].logprob for entry, token_id in zip(logprobs, token_ids, strict=True)
            )
        self._num_tokens[index] += len(token_ids)
        self._is_ended[index] = ended
        return CompletionOutput(
            index=index,
            text="".join(text for text, _ in pieces),
            token_ids=token_ids,
            token_sources=[SOURCE_NAMES[code] for code in sources],
            logprobs=logprobs,
            cumulative_logprob=None if logprobs is None else self._totals[index],
            finish_reason=sequence.finish_reason and str(sequence.finish_reason),
            stop_reason=sequence.stop_reason,
            pieces=[(text, SOURCE_NAMES[code]) for text, code in pieces],
        )

    def _new_tokens(self, sequence: Sequence) -> tuple[list[int], list[int]]:
        seen = self._num_tokens[sequence.index]
        if sequence.row < 0:
            return sequence.token_ids[seen:], sequence.sources[seen:]
        begin = len(sequence.request.prompt_token_ids) + seen
        end = int(self._rows.records["num_decided"][sequence.row])
        return (
            self._rows.token_ids[sequence.row, begin:end].tolist(),
            self._rows.sources[sequence.row, begin:end].tolist(),
        )

    def _new_pieces(self, sequence: Sequence) -> list[tuple[str, int]]:
        if sequence.text is None:
            return []
        begin = self._num_pieces[sequence.index]
        pieces = sequence.text.released[begin:]
        self._num_pieces[sequence.index] += len(pieces)
        return pieces
