"""Our engine at temperature 0, beside its own plain decoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairdraft.audit.contexts import ContextCheck, compare_contexts
from fairdraft.audit.exact_match import match_report, match_texts
from fairdraft.audit.subjects.engine import EngineSubject, as_ids
from fairdraft.audit.subjects.engine_copies import observed, without_speculator

if TYPE_CHECKING:
    from fairdraft.audit.report.document import Report
    from fairdraft.engine import LLM, Observation, SamplingParams

__all__ = ["check_engine_contexts", "compare_engine"]

#: sampled openings of each prompt, so that greedy texts begin in many contexts
OPENINGS = 2
OPENING_TOKENS = 12
CHECKED_TEXTS = 4


def compare_engine(
    llm: LLM,
    prompts: Sequence[str | Sequence[int]] | None = None,
    params: SamplingParams | None = None,
    *,
    num_tokens: int = 64,
    on_progress: Callable[[str], None] | None = None,
) -> Report:
    """Compares greedy speculation with greedy plain decoding, token by token.

    Args:
        llm: An `LLM` with a speculator.
        prompts: As in `EngineSubject`; each is continued as it is and from sampled openings.
        params: Its stops and seed are used.
        num_tokens: Most tokens a text.
        on_progress: Told what is going on.

    Returns:
        A report whose verdict is by identity.

    Raises:
        ValueError: If the engine has no speculator, or a prompt cannot be used.
    """
    from fairdraft.engine import SamplingParams

    if llm.engine.speculator is None:
        raise ValueError(
            "plain decoding at temperature 0 has nothing to be compared with; add a speculator "
            "(--draft MODEL or --method ngram), or audit at a temperature above 0"
        )
    begin = time.monotonic()
    say = on_progress or (lambda sentence: None)
    params = params or SamplingParams(ignore_eos=True)
    subject = EngineSubject(llm, prompts, replace(params, temperature=0.0), num_tokens=num_tokens)
    plain = without_speculator(llm)
    say("drawing openings")
    starts = [*subject.prompts, *_openings(plain, subject)]
    greedy = replace(subject.params, n=1, temperature=0.0, seed=None)
    say(f"decoding {len(starts)} texts with speculation")
    given = llm.generate(as_ids(starts), greedy)
    say(f"decoding {len(starts)} texts without it")
    expected = plain.generate(as_ids(starts), greedy)
    contexts = check_engine_contexts(subject, temperature=0.0)
    ids = [output.outputs[0].token_ids for output in given]

    def gap(text: int, position: int, first: int, second: int) -> float:
        row = forward_whole(llm.target, [*starts[text], *ids[text][:position]])[-1]
        return float((row[first] - row[second]).abs())

    matching = match_texts(ids, [o.outputs[0].token_ids for o in expected], gap, contexts)
    drafts = sum(output.metrics.num_draft_tokens for output in given if output.metrics)
    seconds = time.monotonic() - begin
    return match_report(subject.info, matching, contexts, drafts, seconds=seconds)


def check_engine_contexts(subject: EngineSubject, temperature: float | None = None) -> ContextCheck:
    """Compares logits of an engine's rounds with a forward over each whole text."""
    llm = subject.llm
    rows: dict[tuple[int, int], dict[int, Tensor]] = {}

    def note(seen: Observation) -> None:
        for row, emitted in enumerate(seen.num_emitted_tokens.tolist()):
            name = int(seen.key[row]), int(seen.sample[row])
            for slot in range(emitted):
                at = int(seen.anchor[row]) + slot
                rows.setdefault(name, {})[at] = seen.raw_target_logits[row, slot].clone()

    prompts, params = subject.requests(subject.first_seed, CHECKED_TEXTS)
    if temperature is not None:
        params = [replace(item, temperature=temperature, n=1) for item in params]
    with observed(llm, note):
        outputs = llm.generate(as_ids(prompts), params)
    worst: ContextCheck | None = None
    num_tokens = 0
    for text, output in enumerate(outputs):
        for sample in output.outputs:
            whole = [*output.prompt_token_ids, *sample.token_ids]
            first = len(output.prompt_token_ids)
            found = rows[int(output.noise_key, 16), sample.index]
            own = torch.stack([found[at] for at in range(first, len(whole))])
            again = forward_whole(llm.target, whole[:-1])[first - 1 :]
            check = compare_contexts(own, again, llm.target.dtype, f"text {text}")
            num_tokens += len(own)
            if worst is None or check.largest > worst.largest:
                worst = check
    assert worst is not None
    return replace(worst, num_tokens=num_tokens)


def forward_whole(target: Any, token_ids: Sequence[int]) -> Tensor:
    """Logits [T, V] of a text in one forward into an empty cache."""
    ids = torch.tensor([list(token_ids)])
    logits = target.forward(ids, torch.tensor([0]), target.new_cache())
    return logits[0, :, : target.vocab_size]


def _openings(plain: LLM, subject: EngineSubject) -> list[list[int]]:
    """Prompts with a few sampled tokens behind them, as far as they fit the context."""
    limit = plain.max_model_len - OPENING_TOKENS - 1
    prompts = [ids for ids in subject.prompts if len(ids) < limit]
    params = [
        replace(
            subject.params,
            n=OPENINGS,
            temperature=1.0,
            max_tokens=OPENING_TOKENS,
            seed=subject.first_seed + index,
        )
        for index in range(len(prompts))
    ]
    outputs = plain.generate(as_ids(prompts), params)
    return [
        [*output.prompt_token_ids, *sample.token_ids]
        for output in outputs
        for sample in output.outputs
    ]
