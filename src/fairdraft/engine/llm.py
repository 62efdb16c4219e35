"""`LLM`: exact generation from one target, with or without a speculator."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from fairdraft.engine.assembly import new_engine
from fairdraft.engine.checks import check_integer
from fairdraft.engine.choice import (
    AutoConfig,
    Choice,
    choose,
    measure_cost_ratio,
    read_config,
)
from fairdraft.engine.config import SpeculativeConfig
from fairdraft.engine.logprobs import LogprobsMode, check_logprobs_mode
from fairdraft.engine.output import GenerationInterrupted, RequestOutput
from fairdraft.engine.params import SamplingParams
from fairdraft.engine.processing.plan import compile_plan
from fairdraft.engine.progress import TokenCounter
from fairdraft.engine.prompts import (
    Prompt,
    match_params,
    read_prediction,
    read_prompt,
    split_prompts,
)
from fairdraft.engine.request import Request
from fairdraft.engine.speculation import describe_speculator, load_once, new_speculator
from fairdraft.engine.streaming import EventSource
from fairdraft.models import CausalLM
from fairdraft.noise import Trace, parse_noise_key, request_key
from fairdraft.ops import Impl
from fairdraft.ops.dispatch import resolve_impl
from fairdraft.ops.lossy import lossy_name
from fairdraft.speculators import RequestReader, Speculator

Progress = Callable[[int, int], None]

_STEADY_DTYPES = ("torch.float32", "torch.float64")


class LLM:
    """Generates text whose law is the target's, token by token, whatever speculates.

    Args:
        model: The target: a path, a name, a loaded `PreTrainedModel`, or a `CausalLM`.
        tokenizer: Of a loaded model; None takes the checkpoint's own, if it has one.
        speculative_config: None for plain decoding, vLLM's dictionary, see `SpeculativeConfig`, or
            "auto": what is fastest here, measured once at load; see `AutoConfig`.
        dtype: As `load_model`: None computes a checkpoint in float32 and leaves a loaded model
            as it is.
        device: Where the models run, and the ops too (unless `trace` keeps these on the host).
        max_num_seqs: Most rows of the batch.
        max_model_len: A context limit below the target's own.
        impl: Implementation of the ops, honored or refused.
        trace: Records every draw; see `fairdraft.noise.Trace`.
        enforce_eager: On CUDA, runs rounds as they are written instead of replaying graphs of them.
        logprobs_mode: What logprobs report: "raw_logprobs" of the target's own logits,
            "processed_logprobs" of the law that was sampled (after processors, temperature and
            filters), or "raw_logits" and "processed_logits" themselves; as in vLLM.

    Raises:
        ValueError: If a model, key or option cannot be used; the message says why.

    Attributes:
        engine: The loop beneath; `engine.preempt(request_id)` drops a request's cache.
        target: The loaded target.
        speculator: The speculator, or None.
        config: The settled `SpeculativeConfig`, or None.
        choice: What "auto" chose, and why; None if nothing was to choose.
    """

    def __init__(
        self,
        model: str | Path | PreTrainedModel | CausalLM,
        *,
        tokenizer: Any = None,
        speculative_config: Mapping[str, Any] | SpeculativeConfig | AutoConfig | str | None = None,
        dtype: str | None = None,
        device: str = "cpu",
        max_num_seqs: int = 64,
        max_model_len: int | None = None,
        impl: Impl = "auto",
        trace: Trace | None = None,
        enforce_eager: bool = False,
        logprobs_mode: LogprobsMode = "raw_logprobs",
    ) -> None:
        if check_integer("max_num_seqs", max_num_seqs) < 1:
            raise ValueError(f"max_num_seqs={max_num_seqs!r}: must be at least 1")
        if impl == "triton" and trace is not None:
            raise ValueError(
                "impl='triton' and trace: a trace is kept by the host's ops; use 'auto'"
            )
        check_logprobs_mode(logprobs_mode)
        config = read_config(speculative_config)
        self.target = load_once(model, tokenizer, dtype, device, "target")
        resolve_impl(impl, self.target.device if impl == "triton" else torch.device("cpu"))
        self.max_model_len = _context(max_model_len, self.target)
        self.choice: Choice | None = None
        options: dict[str, Any] = {"impl": impl, "enforce_eager": enforce_eager}
        if isinstance(config, AutoConfig):
            self.choice = choose(config, self.target, dtype, self.max_model_len, **options)
            config = self.choice.config
        if config is not None and config.adaptive and config.adaptive_cost_ratio is None:
            ratio = measure_cost_ratio(config, self.target, dtype, self.max_model_len, **options)
            config = replace(config, adaptive_cost_ratio=ratio)
            if self.choice is not None:
                self.choice = self.choice.with_cost_ratio(config, ratio)
        _refuse_trace(config, trace)
        self.config = config
        self.speculator: Speculator | None = None
        if config is not None:
            self.speculator = new_speculator(config, self.target, dtype, str(self.target.device))
        self.engine = new_engine(
            config,
            self.target,
            self.speculator,
            max_num_seqs=max_num_seqs,
            max_model_len=self.max_model_len,
            trace=trace,
            logprobs_mode=logprobs_mode,
            **options,
        )
        self._ids = itertools.count()

    @property
    def tokenizer(self) -> Any:
        """The target's tokenizer, or None."""
        return self.target.tokenizer

    def describe(self) -> str:
        """Says in a few lines what runs and which repeatability it gives."""
        target = self.target
        lines = [
            f"target: {target.name}, {target.num_parameters:,} parameters, "
            f"{str(target.dtype).removeprefix('torch.')} on {target.device}",
            f"speculator: {describe_speculator(self.config, self.speculator, self.max_model_len)}",
            f"sampler: race, impl {resolve_impl(self.engine.impl, self.engine.device)}; "
            f"rule: {self.engine.rule}",
        ]
        if self.choice is not None:
            lines.insert(2, self.choice.describe())
        if self.engine.graphs is not None:
            lines.append(f"rounds: {self.engine.graphs}")
        if self.engine.lossy is not None:
            lines.append(f"lossy: {self.engine.lossy}; the text does not follow the target's law")
        # kernels of half precision and of accelerators depend on the number of rows
        is_steady = target.device.type == "cpu" and str(target.dtype) in _STEADY_DTYPES
        level = "logits repeat up to rounding" if is_steady else "logits depend on the batch"
        whoever = ", whatever speculates" if self.engine.rule == "common_noise" else ""
        lines.append(
            f"repeats: the same key gives the same tokens for the same logits{whoever}; {level}"
        )
        return "\n".join(lines)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: Progress | None = None,
    ) -> list[RequestOutput]:
        """Generates every prompt to its end, in one batch.

        Args:
            prompts: Text, a list of token ids, {"prompt_token_ids": [...]}, or a list of those.
            sampling_params: One for all prompts, or one for each.
            progress: Called after each round with the tokens emitted and the most there can be.

        Returns:
            One output a prompt, in order. A request that failed carries `error` and what it had.

        Raises:
            ValueError: If a prompt or a parameter cannot be used; nothing has run then.
            GenerationInterrupted: On Ctrl-C; a KeyboardInterrupt that carries what was there.

        Distribution:
            Each sample follows the target's law under its processors, temperature and filters,
            exactly given the logits that were computed; under a lossy rule it does not, and the
            output's `lossy` names the rule.
        """
        requests = self._prepare(prompts, sampling_params, is_streamed=False)
        try:
            self._queue(requests)
            counter = TokenCounter(requests, self.engine)
            most = sum(self._most_tokens(request) for request in requests) if progress else 0
            while counter.has_unfinished():
                self.engine.step()
                if progress is not None:
                    progress(counter.count(), most)
        except KeyboardInterrupt:
            self._abort(requests)
            raise GenerationInterrupted([request.output() for request in requests]) from None
        except BaseException:
            self._abort(requests)
            raise
        return [request.output() for request in requests]

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[RequestOutput]:
        """Generates and yields, after each round, what is new of each request.

        Args:
            prompts: As `generate`.
            sampling_params: As `generate`.

        Yields:
            `RequestOutput` events whose `outputs` hold only new text, ids, sources and logprobs;
            `pieces` cuts the text by origin. The last event of a request is `finished` and
            carries its metrics. Text that may begin a stop string waits until that is decided.

        Raises:
            ValueError: If a prompt or a parameter cannot be used, before the first event.
            GenerationInterrupted: On Ctrl-C; it carries everything, what was yielded included.
        """
        return self._events(self._prepare(prompts, sampling_params, is_streamed=True))

    def _events(self, requests: list[Request]) -> Iterator[RequestOutput]:
        sources = [EventSource(request, self.engine.rows) for request in requests]
        try:
            self._queue(requests)
            while sources:
                self.engine.step()
                for source in sources:
                    with self.engine.lock:
                        event = source.next_event()
                    if event is not None:
                        yield event
                sources = [source for source in sources if not source.is_closed]
        except KeyboardInterrupt:
            self._abort(requests)
            raise GenerationInterrupted([request.output() for request in requests]) from None
        finally:
            self._abort(requests)

    def _prepare(self, prompts: Any, sampling_params: Any, *, is_streamed: bool) -> list[Request]:
        """Checks everything before anything is queued."""
        items = split_prompts(prompts)
        params = match_params(sampling_params, len(items))
        requests = []
        for index, (item, chosen) in enumerate(zip(items, params, strict=True)):
            where = f"prompts[{index}]"
            text, token_ids = read_prompt(item, where, self.target, self.max_model_len)
            self._check_params(chosen, where)
            request = self._new_request(text, token_ids, chosen, is_streamed)
            request.plan = compile_plan(chosen, self.target, where)
            if chosen.prediction is not None:
                self._refuse_unread_prediction(where)
                request.prediction_token_ids = read_prediction(
                    chosen.prediction, where, self.target
                )
            requests.append(request)
        _refuse_shared_keys(requests)
        return requests

    def _queue(self, requests: list[Request]) -> None:
        with self.engine.lock:
            for request in requests:
                self.engine.add(request)

    def _check_params(self, params: SamplingParams, where: str) -> None:
        if params.stop_strings and self.tokenizer is None:
            raise ValueError(
                f"{where}: stop={params.stop!r} needs a tokenizer, and {self.target.name!r} has "
                "none; pass stop_token_ids, or LLM(..., tokenizer=...)"
            )
        for token_id in params.stop_token_ids or ():
            if token_id >= self.target.vocab_size:
                raise ValueError(
                    f"{where}: stop_token_ids holds {token_id}; {self.target.name!r} has ids 0 to "
                    f"{self.target.vocab_size - 1}"
                )

    def _refuse_unread_prediction(self, where: str) -> None:
        if not isinstance(self.engine.speculator, RequestReader):
            method = "plain decoding" if self.config is None else repr(self.config.method)
            raise ValueError(
                f"{where}: prediction is given and the engine runs {method}, which does not read "
                "it; use speculative_config={'method': 'prediction'}, or leave it out"
            )

    def _new_request(
        self, text: str | None, token_ids: list[int], params: SamplingParams, is_streamed: bool
    ) -> Request:
        if params.noise_key is not None:
            key = parse_noise_key(params.noise_key)
        else:
            key = request_key(params.seed, token_ids)
        stops = set(params.stop_token_ids or ())
        if not params.ignore_eos:
            stops |= self.target.eos_token_ids
        return Request(
            request_id=str(next(self._ids)),
            prompt=text,
            prompt_token_ids=token_ids,
            params=params,
            key=key,
            stop_ids=tuple(sorted(stops)),
            is_streamed=is_streamed,
            lossy=self.engine.lossy,
        )

    def _most_tokens(self, request: Request) -> int:
        room = self.max_model_len - len(request.prompt_token_ids)
        limit = request.params.max_tokens
        return request.params.n * (room if limit is None else min(limit, room))

    def _abort(self, requests: list[Request]) -> None:
        with self.engine.lock:
            for request in requests:
                if request.request_id in self.engine.requests:
                    self.engine.abort(request.request_id)


def _refuse_shared_keys(requests: list[Request]) -> None:
    """One key on two prompts would draw both texts from the same noise."""
    prompts: dict[int, list[int]] = {}
    for index, request in enumerate(requests):
        first = prompts.setdefault(request.key, request.prompt_token_ids)
        if request.params.noise_key is not None and first != request.prompt_token_ids:
            raise ValueError(
                f"prompts[{index}]: noise_key={request.params.noise_key!r} is given to another "
                "prompt too; a key replays one response, so pass one a prompt, or a seed"
            )


def _refuse_trace(config: SpeculativeConfig | None, trace: Any) -> None:
    """No trace is kept of a lossy rule: an audit could only come to FAIL."""
    lossy = None if config is None else lossy_name(config.rule)
    if lossy is not None and trace is not None:
        raise ValueError(
            f"trace and the lossy rule {lossy!r} do not go together: leave trace out, or use an "
            "exact rule such as 'standard'"
        )


def _context(max_model_len: int | None, target: CausalLM) -> int:
    if max_model_len is None:
        return target.max_model_len
    if not 2 <= check_integer("max_model_len", max_model_len) <= target.max_model_len:
        raise ValueError(
            f"max_model_len={max_model_len!r}: must be from 2 to {target.max_model_len}, the "
            f"context of {target.name!r}"
        )
    return max_model_len
