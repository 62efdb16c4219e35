"""A request and its sequences: what is asked, and how far each sample has come.

A token's *position* is its index in prompt and output together.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from fairdraft.engine.logprobs import Logprob
from fairdraft.engine.output import CompletionOutput, RequestMetrics, RequestOutput
from fairdraft.engine.params import SamplingParams
from fairdraft.engine.processing.grammar import GrammarState
from fairdraft.engine.processing.plan import ProcessingPlan
from fairdraft.engine.stopping import SequenceText
from fairdraft.noise import Stream, format_noise_key
from fairdraft.ops.processors import Tally
from fairdraft.speculators import count_found

SOURCE_NAMES = {
    int(Stream.DRAFT): "draft",
    int(Stream.RESIDUAL): "residual",
    int(Stream.BONUS): "bonus",
    int(Stream.TARGET): "target",
}


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"
    ABORT = "abort"


@dataclass(eq=False, slots=True)
class Sequence:
    """One of a request's samples.

    Attributes:
        request: Whose sample it is.
        index: Which one, the sample field of its noise.
        row: Its row in the batch, -1 outside.
        token_ids: Emitted ids as of its last time outside the batch.
        sources: Stream code of each emitted token, likewise.
        logprobs: Of each emitted token, if asked for.
        grammar: Its place in the request's grammar, if it has one and was in the batch.
        tally: Counts of its decided tokens, if a device applies its penalties.
        record: Its row record (counts, limits) while it has no row.
        text: Its text so far, if text is needed token by token.
        final_text: Its text, once it ended.
        finish_reason: Why it ended, or None.
        stop_reason: Stop string or id that ended it.
    """

    request: Request
    index: int
    row: int = -1
    token_ids: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    grammar: GrammarState | None = None
    tally: Tally | None = None
    record: np.ndarray | None = None
    text: SequenceText | None = None
    final_text: str = ""
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def output(self) -> CompletionOutput:
        """The sample as the caller sees it."""
        logprobs = self.logprobs
        total = None
        if logprobs is not None:
            pairs = zip(logprobs, self.token_ids, strict=True)
            total = float(sum(entry[token_id].logprob for entry, token_id in pairs))
        return CompletionOutput(
            index=self.index,
            text=self.final_text,
            token_ids=self.token_ids,
            token_sources=[SOURCE_NAMES[code] for code in self.sources],
            logprobs=logprobs,
            cumulative_logprob=total,
            finish_reason=self.finish_reason and str(self.finish_reason),
            stop_reason=self.stop_reason,
        )


@dataclass(frozen=True, slots=True)
class Clock:
    """The engine's running totals of seconds; `prefill` is a part of `target`."""

    draft: float = 0.0
    target: float = 0.0
    verify: float = 0.0
    prefill: float = 0.0

    def plus(
        self,
        *,
        draft: float = 0.0,
        target: float = 0.0,
        verify: float = 0.0,
        prefill: float = 0.0,
    ) -> Clock:
        """The totals after so many seconds more."""
        return Clock(
            self.draft + draft, self.target + target, self.verify + verify, self.prefill + prefill
        )


@dataclass(eq=False, slots=True)
class Request:
    """What was asked, and the key that names its noise.

    Attributes:
        request_id: The engine's name for it.
        prompt: Its text, or None.
        prompt_token_ids: Its ids, at least one.
        params: How to sample.
        key: 64-bit noise key, kept through preemption.
        stop_ids: Every id that ends a sequence.
        prediction_token_ids: Its expected output, or None.
        plan: What processes its rows, or None.
        is_streamed: Whether text is needed round by round.
        sequences: One a sample.
        num_unfinished: Sequences still to end.
        error: What went wrong, or None.
        num_preemptions: How often rows of it were dropped.
        prompt_logprobs: Of each token of the prompt, once they are computed, if asked for.
        lossy: Name of the engine's rule if it is lossy.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    key: int
    stop_ids: tuple[int, ...] = ()
    prediction_token_ids: list[int] | None = None
    plan: ProcessingPlan | None = None
    is_streamed: bool = False
    sequences: list[Sequence] = field(default_factory=list)
    num_unfinished: int = 0
    error: str | None = None
    num_preemptions: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    lossy: str | None = None
    began: Clock | None = None
    began_at: float = 0.0
    metrics: RequestMetrics | None = None

    def __post_init__(self) -> None:
        with_logprobs = self.params.logprobs is not None
        self.sequences = [
            Sequence(self, index, logprobs=[] if with_logprobs else None)
            for index in range(self.params.n)
        ]
        self.num_unfinished = self.params.n

    def begin(self, clock: Clock) -> None:
        """Notes the engine's clock when its first sequence gets a row."""
        if self.began is None:
            self.began, self.began_at = clock, time.perf_counter()

    def settle(self, clock: Clock) -> None:
        """Adds up the metrics once every sequence has ended."""
        records = [s.record for s in self.sequences if s.record is not None]
        metrics = RequestMetrics(
            num_emitted_tokens=sum(len(s.token_ids) for s in self.sequences),
            num_preemptions=self.num_preemptions,
            lossy=self.lossy,
        )
        if records:
            metrics.rounds = sum(int(record["rounds"]) for record in records)
            metrics.drafted_per_position = _sum(records, "drafted")
            metrics.accepted_per_position = _sum(records, "accepted")
            metrics.num_draft_tokens = sum(metrics.drafted_per_position)
            metrics.num_accepted_tokens = sum(metrics.accepted_per_position)
        prediction = self.prediction_token_ids
        if prediction is not None:
            found = sum(count_found(prediction, s.token_ids) for s in self.sequences)
            metrics.accepted_prediction_tokens = found
            metrics.rejected_prediction_tokens = len(prediction) * len(self.sequences) - found
        if self.began is not None:
            metrics.draft_seconds = clock.draft - self.began.draft
            metrics.target_seconds = clock.target - self.began.target
            metrics.verify_seconds = clock.verify - self.began.verify
            metrics.prefill_seconds = clock.prefill - self.began.prefill
            metrics.total_seconds = time.perf_counter() - self.began_at
        self.metrics = metrics

    def output(self) -> RequestOutput:
        """The request as the caller sees it."""
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[sequence.output() for sequence in self.sequences],
            finished=not self.num_unfinished,
            noise_key=format_noise_key(self.key),
            metrics=self.metrics,
            error=self.error,
            prompt_logprobs=self.prompt_logprobs,
            lossy=self.lossy,
        )


def _sum(records: list[np.ndarray], field_name: str) -> list[int]:
    columns = zip(*(record[field_name].tolist() for record in records), strict=True)
    return [sum(column) for column in columns]
