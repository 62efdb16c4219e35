"""The suffix speculator finds what a suffix tree's counts say, in own text and in past outputs."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairdraft import LLM, SamplingParams
from fairdraft.speculators import PastOutputs, SuffixSpeculator
from tests.engine.toys import chain_table, ids, table_model, tiny_llama

Branches = list[list[int]]


def walk(branches: Branches, most: int, min_prob: float) -> tuple[list[int], float]:
    """The most frequent branch, ties to the latest; branches come latest first."""
    path: list[int] = []
    probability, score = 1.0, 0.0
    while len(path) < most:
        here = [b for b in branches if len(b) > len(path) and b[: len(path)] == path]
        if not here:
            break
        hits = Counter(b[len(path)] for b in here)
        token = max(hits, key=lambda t: hits[t])
        probability *= hits[token] / len(here)
        if probability < min_prob:
            break
        path.append(token)
        score += probability
    return path, score


def by_definition(
    text: list[int], past: list[list[int]], most: int, depth: int, factor: float, min_prob: float
) -> list[int]:
    """In plain loops over every length of match: own text first, then past outputs."""
    best: tuple[list[int], float] = ([], 0.0)
    for source in ("own", "past"):
        least = 1 if source == "own" else 2
        for size in range(min(depth, len(text)), least - 1, -1):
            suffix = text[len(text) - size :]
            branches: Branches = []
            if source == "own":
                for end in range(len(text) - 1, size - 1, -1):
                    if text[end - size : end] == suffix:
                        copy = list(text)
                        for place in range(end, end + most):
                            copy.append(copy[place])
                        branches.append(copy[len(text) :])
            else:
                for output in reversed(past):
                    for end in range(len(output) - 1, size - 1, -1):
                        if output[end - size : end] == suffix:
                            branches.append(output[end : end + most])
            found = walk(branches, min(most, int(factor * size)), min_prob)
            if found[1] > best[1]:
                best = found
    return best[0]


texts = st.lists(st.integers(0, 2), min_size=1, max_size=20)


@given(
    texts,
    st.lists(texts, max_size=4),
    st.integers(1, 5),
    st.integers(1, 6),
    st.sampled_from([0.5, 1.0, 3.0]),
    st.sampled_from([0.1, 0.5, 1.0]),
)
def test_drafts_are_their_definition(
    text: list[int], past: list[list[int]], most: int, depth: int, factor: float, prob: float
) -> None:
    store = PastOutputs(10)
    for output in past:
        store.add(1, output)
    speculator = SuffixSpeculator(
        most, max_depth=depth, max_spec_factor=factor, min_token_prob=prob, past=store
    )
    found = speculator.continue_text(np.array(text), most, key=2)
    assert found == by_definition(text, past, most, depth, factor, prob)


@given(st.lists(st.tuples(st.integers(0, 3), texts), max_size=12), texts)
def test_a_full_store_holds_the_latest_outputs(added: list[tuple[int, Any]], tail: Any) -> None:
    """As a store of those alone: nothing of a dropped output is found or kept."""
    full, held = PastOutputs(3, max_tokens=30), PastOutputs(3)
    for key, output in added:
        full.add(key, output)
        assert len(full) <= 3 and full.num_tokens <= 30
    useful = [(key, output) for key, output in added if len(output) > 2]
    latest = useful[len(useful) - len(full) :]
    for key, output in latest:
        held.add(key, output)
    assert full._places.keys() == held._places.keys()
    for key in range(4):
        for one, other in zip(
            full.find(np.array(tail), 4, key), held.find(np.array(tail), 4, key), strict=True
        ):
            np.testing.assert_array_equal(one, other)


def test_memory_of_a_store_is_bounded() -> None:
    store = PastOutputs(1000, max_tokens=4000)
    rng = np.random.default_rng(0)
    for index in range(300):
        store.add(index, rng.integers(50, size=rng.integers(1, 200)).tolist())
        assert len(store._tokens) <= 4 * 4000
    assert sum(map(len, store._places.values())) <= 4000


def test_a_store_of_one_repeated_token_stays_fast() -> None:
    """2^17 tokens in and half of them out again, in less than 3 s."""
    store = PastOutputs(8)
    begin = time.perf_counter()
    for index in range(16):
        store.add(index, [7] * (1 << 13))
    assert time.perf_counter() - begin < 3
    branches, lengths = store.find(np.full(24, 7), 4, key=99)
    assert len(lengths) == 256 and (lengths == 24).all() and (branches[5:] == 7).all()


@pytest.mark.parametrize("kind", ["one", "two", "random"])
def test_long_texts_take_less_than_50_ms(kind: str) -> None:
    """32,768 tokens, nothing prepared."""
    rng = np.random.default_rng(0)
    known = {
        "one": np.zeros(32_768, np.int64),
        "two": np.arange(32_768) % 2,
        "random": rng.integers(0, 50, 32_768),
    }
    speculator = SuffixSpeculator(8)

    def seconds() -> float:
        begin = time.perf_counter()
        speculator.continue_text(known[kind], 8)
        return time.perf_counter() - begin

    assert min(seconds() for _ in range(3)) < 0.05


def with_past(target: Any, num_outputs: int) -> LLM:
    config = {"method": "suffix", "suffix_decoding_max_cached_requests": num_outputs}
    return LLM(target, speculative_config=config)


def drafted(outputs: list[Any]) -> list[int]:
    return [output.metrics.num_draft_tokens for output in outputs]


def test_past_outputs_are_off_by_default_and_named_when_on() -> None:
    target = tiny_llama(0)
    off = LLM(target, speculative_config={"method": "suffix"})
    assert off.speculator is not None and off.speculator.past is None  # pyright: ignore
    assert "outputs" not in off.describe().split("\n")[1]
    assert "a key alone does not repeat" in with_past(target, 5).describe()


def test_an_ended_output_is_drafted_from_and_an_aborted_one_is_not() -> None:
    """The target goes 0, 1, 2 ..: no token comes twice, so own text proposes nothing."""
    target = table_model(chain_table(list(range(40)), 40))
    params = [SamplingParams(seed=seed, max_tokens=20) for seed in range(3)]
    for num_outputs, expected in ((0, False), (5, True)):
        llm = with_past(target, num_outputs)
        stream: Any = llm.stream([1, 2], params[0])
        next(stream)
        stream.close()
        assert drafted(llm.generate([1, 2], params[1])) == [0]
        [output] = llm.generate([1, 2], params[2])
        assert output.outputs[0].token_ids == list(range(3, 23))
        assert output.metrics is not None
        assert (output.metrics.num_accepted_tokens > 10) == expected


def test_a_replay_is_not_drafted_from_its_own_output() -> None:
    """It would know the draws that verify it; nor from a sample's under the same key."""
    target = table_model(chain_table(list(range(40)), 40))
    llm = with_past(target, 5)
    params = SamplingParams(seed=1, n=2, max_tokens=20)
    first = llm.generate([1, 2], params)
    assert drafted(first) == drafted(llm.generate([1, 2], params)) == [0]
    assert drafted(llm.generate([1, 2], SamplingParams(seed=2, max_tokens=20))) != [0]


def test_rows_read_only_their_own_text() -> None:
    """The neighbor's text would match; it is never proposed."""
    llm = LLM(tiny_llama(0), speculative_config={"method": "suffix"})
    params = SamplingParams(temperature=0, max_tokens=2)
    alone = llm.generate([1, 2, 3], params)
    beside = llm.generate([[1, 2, 3], [1, 2, 3, 4, 5, 1, 2, 3]], params)
    assert ids(alone) == ids(beside)[:1]
    assert drafted(alone) == drafted(beside)[:1] == [0]
