"""The engine's loop: admit, run one round, commit it, retire what ended."""

from __future__ import annotations

import threading
from typing import Any

import torch

from fairdraft.engine.adaptive import DraftSchedule
from fairdraft.engine.commit import commit
from fairdraft.engine.detokenize import Detokenizer
from fairdraft.engine.graph_runner import GraphRunner, can_replay
from fairdraft.engine.interrupts import held_interrupts
from fairdraft.engine.logprobs import LogprobsMode
from fairdraft.engine.observation import Observer
from fairdraft.engine.request import Clock, FinishReason, Request, Sequence
from fairdraft.engine.round import RoundRunner
from fairdraft.engine.round_rule import RoundRule
from fairdraft.engine.rows import RowTable
from fairdraft.engine.scheduler import Scheduler
from fairdraft.engine.stopping import SequenceText
from fairdraft.engine.tree_round import TreeRoundRunner
from fairdraft.models import CausalLM
from fairdraft.noise import Trace
from fairdraft.ops import Impl
from fairdraft.ops.lossy import lossy_name
from fairdraft.speculators import OutputReader, Speculator


class Engine:
    """Runs requests in one batch, one round at a time.

    Attributes:
        target: The model whose law is sampled.
        speculator: What proposes drafts, or None for plain decoding.
        rule: Verification rule.
        impl: Implementation of the ops.
        process_draft_logits: Whether processors apply to the draft's logits as well.
        logprobs_mode: Which values are reported.
        requests: Requests that have not ended, by id.
    """

    def __init__(
        self,
        target: CausalLM,
        speculator: Speculator | None,
        *,
        max_num_seqs: int,
        max_model_len: int,
        rule: RoundRule = "token",
        impl: Impl = "auto",
        trace: Trace | None = None,
        enforce_eager: bool = False,
        process_draft_logits: bool = False,
        logprobs_mode: LogprobsMode = "raw_logprobs",
        schedule: DraftSchedule | None = None,
    ) -> None:
        self.target = target
        self.speculator = speculator
        self.rule: RoundRule = rule
        self.impl: Impl = impl
        self.enforce_eager = enforce_eager
        self.requests: dict[str, Request] = {}
        self.process_draft_logits = process_draft_logits
        self.logprobs_mode: LogprobsMode = logprobs_mode
        options: dict[str, Any] = {"impl": impl, "trace": trace}
        if rule == "tree":
            self._runner = TreeRoundRunner(target, speculator, **options)
        else:
            runner = RoundRunner
            if not enforce_eager and self.lossy is None and can_replay(target.device, impl, trace):
                runner = GraphRunner
            options["process_draft_logits"] = process_draft_logits
            self._runner = runner(target, speculator, rule=rule, **options)
        num_drafts = speculator.num_speculative_tokens if speculator is not None else 0
        rows = RowTable(max_num_seqs, num_drafts, max_model_len, schedule)
        self._scheduler = Scheduler(rows, self._runner)
        #: held during a round; holders see the batch between rounds
        self.lock = threading.RLock()

    @property
    def rows(self) -> RowTable:
        """The running batch."""
        return self._scheduler.rows

    @property
    def lossy(self) -> str | None:
        """Name of the rule if its text does not follow the target."""
        return lossy_name(self.rule)

    @property
    def device(self) -> torch.device:
        """Where logits are sampled and verified: the target's, or the host for a trace."""
        return self._runner.device

    @property
    def graphs(self) -> str | None:
        """What of a round is replayed from CUDA graphs, in words; None where nothing could be."""
        return self._runner.describe() if isinstance(self._runner, GraphRunner) else None

    @property
    def observer(self) -> Observer | None:
        """Sees every verified round before it is cut; None for nobody."""
        return self._runner.observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self._runner.observer = observer

    @property
    def clock(self) -> Clock:
        """Seconds spent so far in draft, target and verification."""
        return self._runner.clock

    @property
    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return self._scheduler.has_work

    def add(self, request: Request) -> None:
        """Queues a request; its id must not be in use."""
        assert request.request_id not in self.requests
        stops = request.params.stop_strings
        if self.target.tokenizer is not None and (stops or request.is_streamed):
            for sequence in request.sequences:
                sequence.text = self._new_text(request)
        with self.lock:
            self.requests[request.request_id] = request
            self._scheduler.add(request)

    def step(self) -> list[Request]:
        """Runs one round of the batch; returns the requests that ended in it."""
        with self.lock, torch.inference_mode():
            self._scheduler.admit()
            rows = self.rows
            if not rows.num_rows:
                return []
            # up to here a round may be broken off: nothing is decided, and it is redone
            result = self._runner.run(rows)
            with held_interrupts():
                ended = commit(rows, result, self.target.tokenizer, self.logprobs_mode)
                return self._retire(self._scheduler.remove(ended)) if ended else []

    def preempt(self, request_id: str) -> None:
        """Drops what is cached for a request; it goes on later from its ids, under its key.

        Raises:
            ValueError: If no such request is running or waiting.
        """
        with self.lock, torch.inference_mode(), held_interrupts():
            self._scheduler.preempt(self._find(request_id))

    def abort(self, request_id: str) -> Request:
        """Ends a request where it stands, with finish reason "abort".

        Raises:
            ValueError: If no such request is running or waiting.
        """
        with self.lock, torch.inference_mode(), held_interrupts():
            request = self._find(request_id)
            self._scheduler.abort(request)
            for sequence in request.sequences:
                self._settle_text(sequence)
            self._end(request)
            return request

    def num_decided(self, request: Request) -> int:
        """Tokens emitted so far by all samples of a request."""
        total = 0
        for sequence in request.sequences:
            if sequence.row >= 0:
                record = self.rows.records[sequence.row]
                total += int(record["num_decided"] - record["prompt_length"])
            else:
                total += len(sequence.token_ids)
        return total

    def _find(self, request_id: str) -> Request:
        if request_id not in self.requests:
            raise ValueError(f"request {request_id!r} is not running; it ended or never began")
        return self.requests[request_id]

    def _retire(self, sequences: list[Sequence]) -> list[Request]:
        """Settles sequences that ended; returns the requests that ended with them."""
        finished = []
        for sequence in sequences:
            request = sequence.request
            self._settle_text(sequence)
            is_whole = sequence.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
            if is_whole and isinstance(self.speculator, OutputReader):
                self.speculator.learn_output(request.key, sequence.token_ids)
            request.num_unfinished -= 1
            if not request.num_unfinished:
                self._end(request)
                finished.append(request)
        return finished

    def _end(self, request: Request) -> None:
        request.num_unfinished = 0
        request.settle(self._runner.clock)
        del self.requests[request.request_id]

    def _new_text(self, request: Request) -> SequenceText:
        detokenizer = Detokenizer(self.target.tokenizer, request.prompt_token_ids)
        params = request.params
        return SequenceText(detokenizer, params.stop_strings, params.include_stop_str_in_output)

    def _settle_text(self, sequence: Sequence) -> None:
        """Writes the text of a sequence that ended."""
        if self.target.tokenizer is None or sequence.final_text:
            return
        if sequence.text is None:
            shown = sequence.token_ids
            if _ends_in_stop_token(sequence):
                shown = shown[:-1]
            detokenizer = Detokenizer(self.target.tokenizer, sequence.request.prompt_token_ids)
            sequence.final_text = detokenizer.push(*shown)
            return
        sequence.text.finish()
        sequence.final_text = "".join(piece for piece, _ in sequence.text.released)


def _ends_in_stop_token(sequence: Sequence) -> bool:
    request = sequence.request
    if sequence.finish_reason != "stop" or request.params.include_stop_str_in_output:
        return False
    return sequence.token_ids[-1] in request.stop_ids
