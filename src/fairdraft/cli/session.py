"""One run of `fairdraft generate`: load, decode, and hand over what came out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fairdraft.cli.interrupt import deferred_interrupt
from fairdraft.cli.loading import load_llm
from fairdraft.cli.sampling import arguments
from fairdraft.cli.speculation import with_method
from fairdraft.cli.summary import EngineSeconds, Summary, summarize
from fairdraft.cli.transcript import Transcript

if TYPE_CHECKING:
    from fairdraft.engine import LLM, RequestOutput, SamplingParams
    from fairdraft.engine.prompts import Prompt

WARM_UP_TOKENS = 16
WARM_UP_CHARACTERS = 32


@dataclass(frozen=True)
class Job:
    """What the options of a call add up to.

    Attributes:
        model: The target.
        speculative_config: vLLM's dictionary, or None.
        engine: Further arguments of `LLM`.
        sampling: Arguments of `SamplingParams`, as plain values.
        prompts: Texts to continue.
        threads: Threads of torch, or None for as many as the target's size calls for.
        chat: Whether prompts are a user's messages, to be asked in the target's chat template.
    """

    model: str
    speculative_config: dict[str, Any] | None
    engine: dict[str, Any]
    sampling: dict[str, Any]
    prompts: list[str]
    threads: int | None = None
    chat: bool = False


@dataclass
class Run:
    """What one decoding run gave.

    Attributes:
        outputs: One a prompt, in order.
        summary: Its figures.
        transcript: The pieces by origin.
        interrupted: Whether Ctrl-C ended it.
    """

    outputs: list[RequestOutput]
    summary: Summary
    transcript: Transcript
    interrupted: bool = False


@dataclass
class Session:
    """Loaded models and the parameters of every run on them."""

    job: Job
    llm: LLM
    params: SamplingParams
    load_seconds: float
    num_threads: int
    prompts: list[Prompt]
    _plain: LLM | None = field(default=None, repr=False)

    @classmethod
    def load(cls, job: Job) -> Session:
        """Imports the engine, checks the parameters, loads the models and warms them up.

        Raises:
            ValueError: If a parameter, model or option cannot be used.
        """
        start = time.perf_counter()
        import torch
        import transformers

        from fairdraft.engine import SamplingParams
        from fairdraft.engine.prompts import chat_prompt

        # our own messages name the value and the way out
        transformers.logging.set_verbosity_error()
        job = replace(job, speculative_config=with_method(job.speculative_config))
        params = SamplingParams(**arguments(job.sampling))
        llm = load_llm(job.model, job.speculative_config, job.engine, job.threads)
        prompts: list[Prompt] = [*job.prompts]
        if job.chat:
            prompts = [chat_prompt(text, llm.target) for text in job.prompts]
        session = cls(job, llm, params, 0.0, torch.get_num_threads(), prompts)
        session.warm_up()
        session.load_seconds = time.perf_counter() - start
        return session

    def warm_up(self) -> None:
        """Decodes a few tokens, so that no run is charged for what is compiled on first use."""
        few = replace(self.params, n=1, max_tokens=WARM_UP_TOKENS, min_tokens=0)
        self.llm.generate(self.job.prompts[0][:WARM_UP_CHARACTERS], few)

    def decode(self, on_event: Callable[[RequestOutput], None]) -> Run:
        """Decodes every prompt and calls `on_event` with each event of the stream."""
        transcript = Transcript()
        before = EngineSeconds.of(self.llm)
        start = time.perf_counter()
        events = iter(self.llm.stream(self.prompts, self.params))
        finals = _drain(events, transcript, on_event)
        seconds = time.perf_counter() - start
        outputs = transcript.requests() if finals is None else finals
        times = EngineSeconds.of(self.llm) - before
        return Run(outputs, summarize(outputs, seconds, times), transcript, finals is not None)

    def generate(self) -> list[RequestOutput]:
        """Decodes every prompt without events."""
        return self.llm.generate(self.prompts, self.params)

    def generate_plain(self) -> list[RequestOutput]:
        """Decodes every prompt on the same target without a speculator."""
        if self._plain is None:
            options = {"max_num_seqs", "max_model_len", "impl", "enforce_eager"}
            engine = {key: value for key, value in self.job.engine.items() if key in options}
            self._plain = type(self.llm)(self.llm.target, **engine)
        return self._plain.generate(self.prompts, self.params)


def _drain(
    events: Iterator[RequestOutput],
    transcript: Transcript,
    on_event: Callable[[RequestOutput], None],
) -> list[RequestOutput] | None:
    """Reads a stream to its end; returns the partial outputs if Ctrl-C came first."""
    from fairdraft.engine import GenerationInterrupted

    try:
        for event in events:
            with deferred_interrupt():
                transcript.add(event)
                on_event(event)
    except GenerationInterrupted as interruption:
        return interruption.outputs
    except KeyboardInterrupt:
        # it came while the generator was suspended: hand it in, so that the engine lets go
        try:
            events.throw(KeyboardInterrupt())  # type: ignore[attr-defined]
        except GenerationInterrupted as interruption:
            return interruption.outputs
        raise
    return None
