"""The same key gives the same tokens, wherever and with whomever a request runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fairdraft import LLM, SamplingParams
from tests.engine.toys import P4, Q4, from_probs, ids, one_at, preempting, speculating, tiny_llama

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11], [12], [3, 1, 3, 1, 3, 1, 3], [40, 41]]
PARAMS = [
    SamplingParams(seed=index, max_tokens=20 + 3 * index, temperature=0.7 + 0.2 * index)
    for index in range(len(PROMPTS))
]


def new_llm(method: str, **options: Any) -> LLM:
    target = tiny_llama(0)
    if method == "plain":
        return LLM(target, **options)
    if method == "ngram":
        config = {"method": "ngram", "prompt_lookup_min": 1}
        return LLM(target, speculative_config=config, **options)
    if method == "block":
        return speculating(target, tiny_llama(1), 4, rejection_sample_method="block", **options)
    return speculating(target, target, 4, draft_sample_method=method, **options)


METHODS = ["plain", "ngram", "probabilistic", "greedy", "block"]


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    return request.param


def test_alone_in_a_batch_and_in_another_order(method: str) -> None:
    llm = new_llm(method)
    batch = ids(llm.generate(PROMPTS, PARAMS))
    alone = [ids(llm.generate(p, q))[0] for p, q in zip(PROMPTS, PARAMS, strict=True)]
    assert alone == batch
    order = [3, 0, 4, 2, 1]
    shuffled = llm.generate([PROMPTS[i] for i in order], [PARAMS[i] for i in order])
    assert ids(shuffled) == [batch[i] for i in order]
    for max_num_seqs in (1, 2, 3):
        narrow = new_llm(method, max_num_seqs=max_num_seqs)
        assert ids(narrow.generate(PROMPTS, PARAMS)) == batch


def test_the_description_says_which_rule_runs() -> None:
    rules = [new_llm(method).describe().split("rule: ")[1].split()[0] for method in METHODS]
    assert rules == ["token"] * 4 + ["block"]


def test_preemption_keeps_the_key_and_the_text(method: str) -> None:
    llm = new_llm(method, max_num_seqs=3)
    expected = ids(llm.generate(PROMPTS, PARAMS))
    preempting(llm, one_at(2, 4, 7))
    outputs = llm.generate(PROMPTS, PARAMS)
    assert ids(outputs) == expected
    assert sum(o.metrics.num_preemptions for o in outputs if o.metrics) == 3


def test_preemption_while_streaming_repeats_nothing() -> None:
    llm = new_llm("probabilistic")
    [expected] = llm.generate(PROMPTS[0], PARAMS[0])
    seen: list[int] = []
    for number, event in enumerate(llm.stream(PROMPTS[0], PARAMS[0])):
        seen += event.outputs[0].token_ids
        if number in (0, 2) and not event.finished:
            llm.engine.preempt(event.request_id)
    assert seen == expected.outputs[0].token_ids


def test_a_noise_key_replays_its_response(method: str) -> None:
    llm = new_llm(method)
    outputs = llm.generate([PROMPTS[0]] * 2, SamplingParams(max_tokens=20))
    assert outputs[0].noise_key != outputs[1].noise_key
    for output in outputs:
        assert len(output.noise_key) == 16
        replay = SamplingParams(max_tokens=20, noise_key=output.noise_key)
        assert ids(llm.generate(PROMPTS[0], replay)) == ids([output])


def test_the_same_call_twice_drafts_and_says_the_same(method: str) -> None:
    llm = new_llm(method)
    first, second = llm.generate(PROMPTS, PARAMS), llm.generate(PROMPTS, PARAMS)
    assert ids(first) == ids(second)
    assert [o.metrics and o.metrics.drafted_per_position for o in first] == [
        o.metrics and o.metrics.drafted_per_position for o in second
    ]


SEEDS = [-1, 0, 1, 5, 2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**63 - 1, 2**63, 5 + 2**63, 2**64 - 1]


def test_every_int_is_a_seed_of_its_own() -> None:
    llm = speculating(from_probs(P4), from_probs(Q4), 2)
    params = [SamplingParams(seed=seed, max_tokens=40) for seed in [*SEEDS, 2**200]]
    outputs = llm.generate([[0]] * len(params), params)
    assert len({tuple(tokens) for tokens in ids(outputs)}) == len(params)
    assert len({output.noise_key for output in outputs}) == len(params)


def test_samples_of_one_request_differ_and_repeat() -> None:
    uniform = from_probs([1 / 16] * 16)
    for llm in (LLM(uniform), speculating(uniform, uniform, 3, max_num_seqs=3)):
        params = SamplingParams(n=8, seed=3, max_tokens=12)
        [first] = llm.generate([0], params)
        [second] = llm.generate([0], params)
        tokens = [sample.token_ids for sample in first.outputs]
        assert [sample.index for sample in first.outputs] == list(range(8))
        assert len({tuple(t) for t in tokens}) == 8
        assert tokens == [sample.token_ids for sample in second.outputs]
        # sample 0 is what n = 1 gives
        [single] = llm.generate([0], SamplingParams(seed=3, max_tokens=12))
        assert single.outputs[0].token_ids == tokens[0]


def test_one_seed_on_many_prompts_shares_no_noise() -> None:
    """First tokens of 2,000 prompts under one seed: chi-square below 56.5 at df 15."""
    llm = LLM(from_probs([1 / 16] * 16), max_num_seqs=2048)
    prompts = [[i % 16, i // 16 % 16, i // 256] for i in range(2000)]
    first = [t[0] for t in ids(llm.generate(prompts, SamplingParams(seed=3, max_tokens=1)))]
    counts = np.bincount(first, minlength=16)
    assert ((counts - 125) ** 2 / 125).sum() < 56.5


def test_seeded_and_unseeded_rows_mix() -> None:
    """Rows keep their law and their seed whatever their neighbors' seeds are."""
    target, draft = from_probs(P4), from_probs(Q4)
    llm = speculating(target, draft, 2)
    seeds = [None, 1, None, 2, 7, None, 7, None]
    params = [SamplingParams(seed=seed, max_tokens=1500) for seed in seeds]
    rows = ids(llm.generate([[0]] * 8, params))
    assert rows[4] == rows[6] != rows[1]
    for tokens in rows:
        counts = np.bincount(tokens, minlength=4)
        expected = 1500 * np.array(P4)
        assert ((counts - expected) ** 2 / expected).sum() < 30.7
    order = [7, 4, 1, 3, 0]
    shuffled = ids(llm.generate([[0]] * 5, [params[i] for i in order]))
    assert [shuffled[i] for i in (1, 2, 3)] == [rows[4], rows[1], rows[3]]


def test_nothing_draws_from_a_global_generator(method: str, no_global_draws: Any) -> None:
    llm = new_llm(method)
    with no_global_draws():
        llm.generate(PROMPTS, SamplingParams(max_tokens=5))


def test_one_noise_key_for_two_prompts_is_refused() -> None:
    llm = new_llm("plain")
    params = SamplingParams(noise_key="0" * 16, max_tokens=2)
    with pytest.raises(ValueError, match=r"prompts\[1\]: noise_key='0{16}' is given to another"):
        llm.generate([[1], [2]], params)
    same = llm.generate([[1], [1]], params)
    assert same[0].outputs[0].token_ids == same[1].outputs[0].token_ids
