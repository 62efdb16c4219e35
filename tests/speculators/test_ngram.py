"""Prompt lookup proposes what followed the last occurrence of the longest suffix."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairdraft import LLM, SamplingParams
from fairdraft.speculators import lookup
from tests.engine.toys import P4, from_probs, ids, tiny_llama


def by_definition(tokens: list[int], count: int, shortest: int, longest: int) -> list[int]:
    """The same in plain loops."""
    for size in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        suffix = tokens[len(tokens) - size :]
        for begin in range(len(tokens) - size - 1, -1, -1):
            if tokens[begin : begin + size] == suffix:
                text = list(tokens)
                for place in range(begin + size, begin + size + count):
                    text.append(text[place])
                return text[len(tokens) :]
    return []


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=24),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_lookup_is_its_definition(tokens: list[int], count: int, shortest: int, more: int) -> None:
    found = lookup(np.array(tokens), count, min_ngram=shortest, max_ngram=shortest + more)
    assert found.tolist() == by_definition(tokens, count, shortest, shortest + more)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_texts_give_no_drafts(length: int) -> None:
    tokens = np.arange(length)
    assert len(lookup(tokens, 4, min_ngram=3, max_ngram=5)) == 0


def test_a_repeating_text_keeps_repeating() -> None:
    assert lookup(np.array([7, 7, 7]), 5, min_ngram=1, max_ngram=4).tolist() == [7] * 5
    assert lookup(np.array([1, 2, 1, 2]), 5, min_ngram=2, max_ngram=4).tolist() == [1, 2, 1, 2, 1]


@pytest.mark.parametrize("kind", ["one", "two", "random"])
def test_long_texts_take_less_than_50_ms(kind: str) -> None:
    rng = np.random.default_rng(0)
    texts = {
        "one": np.zeros(32_768, np.int64),
        "two": np.arange(32_768) % 2,
        "random": rng.integers(0, 50, 32_768),
    }
    best = min(_seconds(texts[kind]) for _ in range(3))
    assert best < 0.05


def _seconds(tokens: np.ndarray) -> float:
    begin = time.perf_counter()
    lookup(tokens, 8, min_ngram=1, max_ngram=16)
    return time.perf_counter() - begin


def test_foreign_drafts_change_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup that always proposes the same four ids costs time and nothing else."""
    import fairdraft.speculators.ngram as ngram

    llm = LLM(tiny_llama(0), speculative_config={"method": "ngram"}, max_num_seqs=16)
    prompts = [[1 + i % 90, 2] for i in range(40)]
    params = SamplingParams(temperature=0, max_tokens=10)
    plain = ids(LLM(tiny_llama(0), max_num_seqs=16).generate(prompts, params))
    monkeypatch.setattr(ngram, "lookup", lambda tokens, count, **_: np.array([1, 2, 3, 4])[:count])
    assert ids(llm.generate(prompts, params)) == plain
    table = LLM(from_probs(P4), speculative_config={"method": "ngram"}, max_num_seqs=512)
    monkeypatch.setattr(ngram, "lookup", lambda tokens, count, **_: np.array([1, 2, 3, 3])[:count])
    seeds = [SamplingParams(seed=seed, max_tokens=4) for seed in range(4000)]
    tokens = np.array(ids(table.generate([[0]] * 4000, seeds)))
    for column in tokens.T:
        counts = np.bincount(column, minlength=4)
        expected = 4000 * np.array(P4)
        assert ((counts - expected) ** 2 / expected).sum() < 30.7


def test_rows_read_only_their_own_text() -> None:
    """The neighbor's text would match; it is never proposed."""
    target = tiny_llama(0)
    llm = LLM(target, speculative_config={"method": "ngram", "prompt_lookup_min": 3})
    params = SamplingParams(temperature=0, max_tokens=2)
    alone = llm.generate([1, 2, 3], params)
    beside = llm.generate([[1, 2, 3], [1, 2, 3, 4, 5, 1, 2, 3]], params)
    assert ids(alone) == ids(beside)[:1]
    for outputs in (alone, beside):
        metrics = outputs[0].metrics
        assert metrics is not None and metrics.num_draft_tokens == 0
