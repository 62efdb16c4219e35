"""Events of a stream put together again: what each request has said so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairdraft.engine import CompletionOutput, RequestOutput

Piece = tuple[str, str]


class Transcript:
    """Collects events into whole requests."""

    def __init__(self) -> None:
        self._requests: dict[str, RequestOutput] = {}
        self._pieces: dict[tuple[str, int], list[Piece]] = {}

    def add(self, event: RequestOutput) -> None:
        """Takes in one event of `LLM.stream`."""
        request = self._requests.setdefault(event.request_id, event)
        for news in event.outputs:
            self._pieces.setdefault((event.request_id, news.index), []).extend(news.pieces)
        if request is event:
            return
        for news in event.outputs:
            known = [sample for sample in request.outputs if sample.index == news.index]
            if known:
                _extend(known[0], news)
            else:
                request.outputs.append(news)
        request.finished = event.finished
        request.metrics = event.metrics or request.metrics
        request.error = event.error or request.error

    def requests(self) -> list[RequestOutput]:
        """The requests so far, in the order of their ids, samples sorted."""
        for request in self._requests.values():
            request.outputs.sort(key=lambda sample: sample.index)
        # ids count up; longer ones are later
        ids = sorted(self._requests, key=lambda name: (len(name), name))
        return [self._requests[name] for name in ids]

    def pieces(self, request_id: str, index: int) -> list[Piece]:
        """Text of one sample cut by origin, as (text, source)."""
        return self._pieces.get((request_id, index), [])


def _extend(sample: CompletionOutput, news: CompletionOutput) -> None:
    sample.text += news.text
    sample.token_ids = sample.token_ids + news.token_ids
    sample.token_sources = sample.token_sources + news.token_sources
    if news.logprobs is not None:
        sample.logprobs = (sample.logprobs or []) + news.logprobs
    if news.cumulative_logprob is not None:
        sample.cumulative_logprob = news.cumulative_logprob
    sample.finish_reason = news.finish_reason
    sample.stop_reason = news.stop_reason
