"""Our engine as a subject: every token scored with the logits that it was verified by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fairdraft.audit.prompts import PROMPTS, digest_prompts
from fairdraft.audit.subject import Batch, InvalidSubject, SubjectInfo, refuse_lossy
from fairdraft.audit.subjects.engine_copies import observed, with_trace

if TYPE_CHECKING:
    from fairdraft.audit.contexts import ContextCheck
    from fairdraft.audit.replay import Replay
    from fairdraft.audit.subjects.engine_scorer import EngineScorer
    from fairdraft.engine import LLM, RequestOutput, SamplingParams
    from fairdraft.noise import Trace

__all__ = ["EngineSubject"]

#: texts a request: neighbors share a seed, then a prompt, then nothing
NUM_SAMPLES = 2
#: requests in a row that share a prompt
REQUESTS_PER_PROMPT = 2
#: room past the prompt in the run that is traced to the end of the context
LAST_ROOM = 24


class EngineSubject:
    """Generates whole texts in batches and scores them with the engine's own logits.

    Seeds count up from the cursor, so no two requests share one. Two samples of one request, two
    requests of one prompt and requests of different prompts follow each other, so that noise
    shared by any of them shows as agreement.

    Args:
        llm: An `LLM`; while batches are made it must do nothing else.
        prompts: Texts or lists of token ids; None for a built-in list, or for some single ids if
            the target has no tokenizer.
        params: Temperature, filters and stops of every request; None for temperature 1. Its seed
            is the first one, 0 if it has none.
        num_requests: Requests a batch.
        num_tokens: Most tokens a text.
        max_columns: Ids kept of each law, the rest cell included.
        name: One line for people; None for what the engine says of itself.

    Raises:
        ValueError: If a prompt or parameter cannot be used, or the engine's rule is lossy.
    """

    def __init__(
        self,
        llm: LLM,
        prompts: Sequence[str | Sequence[int]] | None = None,
        params: SamplingParams | None = None,
        *,
        num_requests: int = 32,
        num_tokens: int = 64,
        max_columns: int = 256,
        name: str | None = None,
    ) -> None:
        from fairdraft.engine import SamplingParams

        refuse_lossy(llm.engine.rule)
        self.llm = llm
        params = params or SamplingParams(ignore_eos=True)
        if params.noise_key is not None:
            raise ValueError(
                f"noise_key = {params.noise_key!r} replays one text, and an audit needs many: give "
                "a seed, or nothing"
            )
        if num_requests < 1 or num_tokens < 1:
            raise ValueError(
                f"num_requests = {num_requests} and num_tokens = {num_tokens} must be at least 1"
            )
        self.first_seed = params.seed or 0
        self.params = replace(params, n=NUM_SAMPLES, max_tokens=num_tokens, logprobs=None)
        self.prompts = prompt_ids(llm, prompts)
        self.num_requests = num_requests
        self.max_columns = max_columns
        self.name = name or _name(llm)

    @property
    def info(self) -> SubjectInfo:
        """What is recorded about the subject."""
        llm, params = self.llm, self.params
        is_speculative = llm.engine.speculator is not None and params.num_speculative_tokens != 0
        return SubjectInfo(
            kind="engine",
            name=self.name,
            parameters={
                "target": llm.target.name,
                "dtype": str(llm.target.dtype).removeprefix("torch."),
                "vocab_size": llm.target.vocab_size,
                "speculator": _speculator(llm),
                "temperature": float(params.temperature),
                "top_k": params.top_k,
                "top_p": float(params.top_p),
                "min_p": float(params.min_p),
                **_processing(params),
                "num_tokens": params.max_tokens,
                "num_samples": params.n,
                "first_seed": self.first_seed,
                "num_requests": self.num_requests,
                "prompts": digest_prompts(self.prompts),
                "ignore_eos": params.ignore_eos,
                "impl": llm.engine.impl,
            },
            scoring="own logits",
            is_speculative=is_speculative,
            sampler="race",
            rule=str(llm.engine.rule) if is_speculative else None,
        )

    def batches(self, cursor: Any = None) -> Iterator[Batch]:
        """Yields batches for ever; the cursor is the next seed and the next text's number."""
        place = {"seed": self.first_seed, "text": 0} if cursor is None else dict(cursor)
        while True:
            seed, first_text = int(place["seed"]), int(place["text"])
            chosen = self.requests(seed, self.num_requests)
            scorer = self.new_scorer()
            outputs = scorer.generate(*chosen)
            notes = _failures(outputs)
            place = {
                "seed": seed + self.num_requests,
                "text": first_text + self.num_requests * NUM_SAMPLES,
            }
            tokens = scorer.tokens(first_text, outputs)
            if tokens is None:
                raise InvalidSubject(f"no request of a batch emitted a token; {' '.join(notes)}")
            yield Batch(tokens, dict(place), notes)

    def new_scorer(self) -> EngineScorer:
        """What scores the next batch."""
        from fairdraft.audit.subjects.engine_scorer import EngineScorer

        return EngineScorer(self.llm, self.max_columns)

    def requests(self, seed: int, count: int) -> tuple[list[list[int]], list[SamplingParams]]:
        """Prompts and parameters of the requests that begin with a seed."""
        seeds = range(seed, seed + count)
        prompts = [self.prompts[s // REQUESTS_PER_PROMPT % len(self.prompts)] for s in seeds]
        return prompts, [replace(self.params, seed=s) for s in seeds]

    def trace_addresses(self) -> Trace:
        """Generates some texts and records every draw; one run goes to the context's end."""
        from fairdraft.noise import Trace

        trace = Trace()
        prompts, params = self.requests(self.first_seed, 8)
        with_trace(self.llm, trace).generate(as_ids(prompts), params)
        # seeds that nobody else uses, since shorter contexts decide other tokens
        prompts, params = self.requests(self.first_seed - 4, 4)
        limit = max(len(ids) for ids in prompts) + LAST_ROOM
        limit = min(limit, self.llm.max_model_len)
        params = [replace(item, max_tokens=None) for item in params]
        with_trace(self.llm, trace, limit).generate(as_ids(prompts), params)
        return trace

    def check_contexts(self) -> ContextCheck:
        """Compares logits of some rounds with a forward over each whole text."""
        from fairdraft.audit.subjects.engine_exact import check_engine_contexts

        return check_engine_contexts(self)

    def replay_rounds(self) -> Replay:
        """Generates some texts and decides a sample of their rounds again, by the definition."""
        from fairdraft.audit.replay import Replayer

        replayer = Replayer(self.llm.engine.rule)
        prompts, params = self.requests(self.first_seed, 8)
        with observed(self.llm, replayer):
            self.llm.generate(as_ids(prompts), params)
        return replayer.result()


def _processing(params: SamplingParams) -> dict[str, str]:
    """Penalties, masks and the like that are on, as text; custom processors by name."""
    from fairdraft.engine.processing.custom import name_of

    found = params.processing
    if params.logits_processors:
        found["logits_processors"] = [name_of(item) for item in params.logits_processors]
    return {name: str(value) for name, value in found.items()}


def prompt_ids(llm: LLM, prompts: Sequence[str | Sequence[int]] | None) -> list[list[int]]:
    """Token ids of each prompt; the built-in ones if none are given.

    Raises:
        ValueError: If there is none, or one cannot be used.
    """
    from fairdraft.engine.prompts import read_prompt

    given = list(prompts) if prompts is not None else _default_prompts(llm)
    if not given:
        raise ValueError("prompts is empty: give at least one, or None for the built-in list")
    return [
        read_prompt(prompt, f"prompts[{index}]", llm.target, llm.max_model_len)[1]
        for index, prompt in enumerate(given)
    ]


def _default_prompts(llm: LLM) -> list[Any]:
    if llm.tokenizer is not None:
        return list(PROMPTS)
    return [[i] for i in range(min(len(PROMPTS), llm.target.vocab_size))]


def as_ids(prompts: list[list[int]]) -> list[dict[str, list[int]]]:
    return [{"prompt_token_ids": ids} for ids in prompts]


def _name(llm: LLM) -> str:
    return f"{llm.target.name}, {_speculator(llm)}"


def _speculator(llm: LLM) -> str:
    speculator = llm.engine.speculator
    if speculator is None:
        return "plain decoding"
    name = speculator.name
    model = getattr(speculator, "model", None)
    if model is not None:
        kind = "greedy draft" if getattr(speculator, "greedy", False) else "draft"
        name = f"{kind} {model.name}"
    tree = getattr(speculator, "tree", None)
    if tree is not None:
        return f"{name}, trees of {tree.num_nodes} drafts, {tree.depth} deep"
    rule = "" if llm.engine.rule == "token" else f", rule {llm.engine.rule}"
    schedule = llm.engine.rows.schedule
    most = "" if schedule is None else f" at most, adaptive at {schedule.cost_ratio:g}"
    return f"{name}, K = {speculator.num_speculative_tokens}{most}{rule}"


def _failures(outputs: list[RequestOutput]) -> tuple[str, ...]:
    messages = sorted({output.error for output in outputs if output.error is not None})
    return tuple(f"a request failed: {message}" for message in messages)
