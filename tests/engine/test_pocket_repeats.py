"""Levels R0 and R1 on the embedded pair in float32: one key, one text, whatever the company.

A mismatch counts as a tie only if the draw's margin is below four times the measured largest logit
difference of the two paths; ties are at most 1 in 10,000 tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fairdraft import LLM, SamplingParams, pocket
from fairdraft.engine import RequestOutput
from fairdraft.models import CausalLM, load_model
from tests.engine.recorder import Recorder, compare
from tests.engine.toys import preempting

NUM_PROMPTS = 24
NUM_TOKENS = 40


@pytest.fixture(scope="module")
def pair() -> tuple[CausalLM, CausalLM]:
    return load_model(pocket.path("target")), load_model(pocket.path("draft"))


def new_llm(pair: tuple[CausalLM, CausalLM], *, drafts: int = 4, **options: Any) -> LLM:
    target, draft = pair
    config = {"method": "draft_model", "model": draft, "num_speculative_tokens": drafts}
    return LLM(target, speculative_config=config if drafts else None, **options)


def random_prompts(target: CausalLM, count: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 24, count)
    return [rng.integers(0, target.vocab_size, n).tolist() for n in lengths]


def sampled_params(count: int, *, temperature: float = 1.0) -> list[SamplingParams]:
    filters = [{}, {"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.02}]
    return [
        SamplingParams(
            seed=seed, temperature=temperature, max_tokens=NUM_TOKENS, ignore_eos=True,
            **filters[seed % 4],
        )
        for seed in range(count)
    ]  # fmt: skip


def run_together(llm: LLM, prompts: list, params: list) -> list[RequestOutput]:
    return llm.generate(prompts, params)


def run_alone(llm: LLM, prompts: list, params: list) -> list[RequestOutput]:
    return [llm.generate([p], s)[0] for p, s in zip(prompts, params, strict=True)]


def run_in_another_order(llm: LLM, prompts: list, params: list) -> list[RequestOutput]:
    order = np.random.default_rng(3).permutation(len(prompts)).tolist()
    outputs = llm.generate([prompts[i] for i in order], [params[i] for i in order])
    return [outputs[order.index(i)] for i in range(len(prompts))]


def run_with_preemptions(llm: LLM, prompts: list, params: list) -> list[RequestOutput]:
    """Drops the KV of every request at one of its rounds; it is filled again from ids."""
    preempting(llm, lambda count, running: running[count % 5 :: 5])
    return llm.generate(prompts, params)


@pytest.mark.parametrize("run", [run_alone, run_in_another_order, run_with_preemptions])
def test_the_same_key_gives_the_same_text(run: Any, pair: Any) -> None:
    prompts = random_prompts(pair[0], NUM_PROMPTS, seed=1)
    params = sampled_params(NUM_PROMPTS)
    records = []
    for way, max_num_seqs in ((run_together, 64), (run, 7)):
        with pytest.MonkeyPatch.context() as patch:
            records.append(Recorder().wrap(patch))
            way(new_llm(pair, max_num_seqs=max_num_seqs), prompts, params)
    comparison = compare(*records)
    print(comparison)
    assert comparison.num_tokens >= 0.98 * NUM_PROMPTS * NUM_TOKENS
    comparison.check()


def test_a_returned_noise_key_replays_its_response(pair: Any) -> None:
    prompts = random_prompts(pair[0], 4, seed=2)
    params = SamplingParams(seed=None, n=2, max_tokens=NUM_TOKENS)
    first = new_llm(pair).generate(prompts, params)
    for prompt, output in zip(prompts, first, strict=True):
        again = SamplingParams(noise_key=output.noise_key, n=2, max_tokens=NUM_TOKENS)
        replay = new_llm(pair).generate(prompt, again)[0]
        assert [o.token_ids for o in replay.outputs] == [o.token_ids for o in output.outputs]
        assert replay.noise_key == output.noise_key
        assert output.outputs[0].token_ids != output.outputs[1].token_ids


@pytest.mark.slow
def test_greedy_speculative_text_equals_greedy_plain_text(pair: Any) -> None:
    """200 prompts of 128 new tokens, compared to the first difference of each."""
    prompts = random_prompts(pair[0], 200, seed=4)
    params = SamplingParams(temperature=0.0, max_tokens=128, ignore_eos=True, seed=0)
    total, num_ties = 0, 0
    for start in range(0, 200, 50):
        records = []
        for drafts in (0, 4):
            with pytest.MonkeyPatch.context() as patch:
                records.append(Recorder().wrap(patch))
                llm = new_llm(pair, drafts=drafts)
                outputs = llm.generate(prompts[start : start + 50], params)
                assert all(len(o.outputs[0].token_ids) == 128 for o in outputs)
        comparison = compare(*records)
        print(comparison)
        assert comparison.num_ties == len(comparison.mismatches), str(comparison)
        total, num_ties = total + comparison.num_tokens, num_ties + comparison.num_ties
    assert total > 0.9 * 200 * 128
    assert num_ties <= total / 10_000
