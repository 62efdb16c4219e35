"""Rounds with fixed places on the device give the tokens of eager rounds.

Without a GPU the same round runs uncaptured, its kernels in Triton's interpreter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from fairdraft import LLM, SamplingParams
from fairdraft.engine import core
from fairdraft.engine.graph_runner import GraphRunner
from fairdraft.engine.round_graph import RoundGraph
from tests.engine.toys import ids, speculating, tiny_llama

pytestmark = [
    pytest.mark.skipif(not find_spec("triton"), reason="no Triton here"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are compiled"),
]

PROMPTS = [[1, 2, 3], [12], [3, 1, 3, 1, 3, 1, 3]]
PARAMS = [
    SamplingParams(seed=5, max_tokens=3, temperature=0.9),
    SamplingParams(seed=6, max_tokens=5, temperature=0.0),
    SamplingParams(seed=7, max_tokens=4, temperature=1.3, num_speculative_tokens=1),
]
METHODS = ["plain", "ngram", "probabilistic", "greedy"]


def new_llm(
    method: str, *, max_model_len: int = 128, draft_length: int = 128, **options: Any
) -> LLM:
    target = tiny_llama(0, max_model_len=max_model_len)
    if method == "plain":
        return LLM(target, **options)
    if method == "ngram":
        return LLM(
            target, speculative_config={"method": "ngram", "prompt_lookup_min": 1}, **options
        )
    draft = tiny_llama(0, layers=1, max_model_len=draft_length)
    if method == "common_noise":
        return speculating(target, draft, 2, rejection_sample_method=method, **options)
    return speculating(target, draft, 2, draft_sample_method=method, **options)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Lets engines run fixed rounds on this machine; rows of each round that ran."""
    seen: list[int] = []
    run = RoundGraph.run

    def counted(self: RoundGraph, fields: Any) -> Any:
        seen.append(fields.shape[1])
        return run(self, fields)

    monkeypatch.setattr(RoundGraph, "run", counted)
    monkeypatch.setattr(core, "can_replay", lambda *_: True)
    # the interpreter computes on NaN and inf that rows hold
    with np.errstate(all="ignore"):
        yield seen


@pytest.mark.parametrize("method", METHODS)
def test_tokens_are_those_of_eager_rounds(method: str, rounds: list[int]) -> None:
    """Ragged prompts, one of a single token; a greedy row; a row with a K of its own."""
    expected = ids(new_llm(method, enforce_eager=True).generate(PROMPTS, PARAMS))
    assert not rounds
    llm = new_llm(method, impl="triton", max_num_seqs=2)
    assert isinstance(llm.engine._runner, GraphRunner)
    assert ids(llm.generate(PROMPTS, PARAMS)) == expected
    assert rounds and set(rounds) == {1, 2}


def test_common_noise_guesses_on_the_device_as_on_the_host(rounds: list[int]) -> None:
    """The text of plain decoding, and as many drafts stand."""
    prompts, params = PROMPTS[:1], PARAMS[0]
    plain = new_llm("plain", enforce_eager=True).generate(prompts, params)
    eager = new_llm("common_noise", enforce_eager=True).generate(prompts, params)
    graph = new_llm("common_noise", impl="triton").generate(prompts, params)
    assert ids(graph) == ids(eager) == ids(plain) and rounds
    metrics = graph[0].metrics, eager[0].metrics
    stood = [found.num_accepted_tokens for found in metrics if found is not None]
    assert stood[0] == stood[1] > 0


def test_tokens_are_those_of_eager_rounds_up_to_the_context_limit(rounds: list[int]) -> None:
    """The draft's context ends before the target's, within a round."""
    context = 13
    lengths = {"max_model_len": context, "draft_length": 9}
    params = SamplingParams(seed=8, max_tokens=None)
    eager = new_llm("probabilistic", enforce_eager=True, **lengths)
    prompts = [PROMPTS[0], PROMPTS[2]]
    expected = ids(eager.generate(prompts, params))
    assert [len(e) + len(p) for e, p in zip(expected, prompts, strict=True)] == [context] * 2
    got = new_llm("probabilistic", impl="triton", **lengths).generate(prompts, params)
    assert ids(got) == expected and rounds


def test_rounds_with_a_stop_are_drafted_eagerly(rounds: list[int]) -> None:
    """A graph would run every step; those that drafted nothing may be one."""

    def stopping(**options: Any) -> LLM:
        target, draft = tiny_llama(0), tiny_llama(0, layers=1)
        return speculating(target, draft, 2, confidence_threshold=0.1, **options)

    prompts, params = PROMPTS[1:], SamplingParams(seed=6, max_tokens=2)
    expected = stopping(enforce_eager=True).generate(prompts, params)
    assert not rounds
    outputs = stopping(impl="triton").generate(prompts, params)
    assert ids(outputs) == ids(expected)
    assert [o.metrics and o.metrics.drafted_per_position for o in outputs] == [
        o.metrics and o.metrics.drafted_per_position for o in expected
    ]


def test_a_filtered_row_makes_the_round_eager_and_later_ones_go_on(rounds: list[int]) -> None:
    filtered = SamplingParams(seed=9, max_tokens=2, top_k=20)
    prompts, params = [PROMPTS[0], PROMPTS[2]], [PARAMS[1], filtered]
    expected = ids(new_llm("probabilistic", enforce_eager=True).generate(prompts, params))
    got = new_llm("probabilistic", impl="triton").generate(prompts, params)
    assert ids(got) == expected
    assert rounds and max(rounds) == 1


def test_a_preempted_row_goes_on_and_a_broken_one_fails_alone(rounds: list[int]) -> None:
    prompts, params = PROMPTS[:2], PARAMS[:2]
    expected = ids(new_llm("probabilistic", enforce_eager=True).generate(prompts, params))
    llm = new_llm("probabilistic", impl="triton")
    step, count = llm.engine.step, 0

    def step_and_preempt() -> Any:
        nonlocal count
        count += 1
        if count == 2:
            llm.engine.preempt(llm.engine.rows.sequences[0].request.request_id)
        return step()

    llm.engine.step = step_and_preempt
    assert ids(llm.generate(prompts, params)) == expected
    assert rounds

    draft: Any = llm.speculator
    with torch.no_grad():
        draft.model.model.get_input_embeddings().weight[12] = torch.nan
    outputs = llm.generate(prompts, [SamplingParams(seed=1, max_tokens=2)] * 2)
    assert [output.error is not None for output in outputs] == [False, True]
    assert "draft 1 of the round" in str(outputs[1].error)
