"""A sequence ends exactly at its stop, in text, ids, sources, logprobs and counts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fairdraft import LLM, SamplingParams
from fairdraft.engine.stopping import NO_TOKEN, find_stop, first_stop, held_length
from tests.engine.toys import chain_table, speculating, table_model, word_tokenizer

EOS = 9
ORDER = [0, 5, 6, 7, EOS, 8, 1, 2, 3, 4]
GREEDY = SamplingParams(temperature=0, max_tokens=9)


def counting_model(eos: int | list[int] | None = EOS) -> object:
    """Goes 5, 6, 7, EOS, 8, 1, 2, 3, 4 after a prompt of 0."""
    return table_model(chain_table(ORDER, 10), eos_token_id=eos)


@pytest.mark.parametrize("num_drafts", range(9))
def test_eos_in_the_middle_of_a_block_is_the_end(num_drafts: int) -> None:
    model = counting_model()
    llm = speculating(model, model, num_drafts) if num_drafts else LLM(model)  # pyright: ignore
    [output] = llm.generate([0], GREEDY)
    [sample] = output.outputs
    assert sample.token_ids == [5, 6, 7, EOS]
    assert len(sample.token_sources) == 4
    assert (sample.finish_reason, sample.stop_reason) == ("stop", None)
    metrics = output.metrics
    assert metrics is not None and metrics.num_emitted_tokens == 4
    # what was drafted past the end has no outcome
    assert metrics.num_accepted_tokens == metrics.num_draft_tokens <= 4
    if num_drafts:
        assert metrics.acceptance_rate == 1.0


@pytest.mark.parametrize("num_drafts", [0, 1, 3, 8])
def test_ignore_eos_goes_on_and_stop_ids_still_stop(num_drafts: int) -> None:
    model = counting_model()
    llm = speculating(model, model, num_drafts) if num_drafts else LLM(model)  # pyright: ignore
    ignoring = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    [output] = llm.generate([0], ignoring)
    assert output.outputs[0].token_ids == ORDER[1:]
    assert output.outputs[0].finish_reason == "length"
    stopping = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, stop_token_ids=[1, 3])
    [output] = llm.generate([0], stopping)
    assert output.outputs[0].token_ids == [5, 6, 7, EOS, 8, 1]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", 1)


@pytest.mark.parametrize("num_drafts", [1, 4])
def test_several_ends_of_sequence(num_drafts: int) -> None:
    model = counting_model(eos=[EOS, 6])
    [output] = speculating(model, model, num_drafts).generate([0], GREEDY)
    assert output.outputs[0].token_ids == [5, 6]


def test_a_rejected_end_of_sequence_ends_nothing() -> None:
    model = table_model(chain_table([0, 1, 2, 3, 4], 10), eos_token_id=EOS)
    always_eos = table_model(np.eye(10, dtype=np.float32)[EOS] * 20, eos_token_id=EOS)
    [output] = speculating(model, always_eos, 3).generate(
        [0], SamplingParams(temperature=0, max_tokens=4)
    )
    assert output.outputs[0].token_ids == [1, 2, 3, 4]
    assert output.outputs[0].finish_reason == "length"


WORDS = ["<s>", "ab", "c", "d", "e", "x"]


def spelling_llm(num_drafts: int) -> LLM:
    """Spells ab, c, d, e, x."""
    model = table_model(chain_table([0, 1, 2, 3, 4, 5], 6))
    tokenizer = word_tokenizer(WORDS)
    config = {"model": model, "num_speculative_tokens": num_drafts} if num_drafts else None
    return LLM(model, tokenizer=tokenizer, speculative_config=config)


@pytest.mark.parametrize("num_drafts", range(7))
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("stop", "include", "text", "num_tokens"),
    [
        ("bc", False, "a", 2),
        ("bc", True, "abc", 2),
        ("c", False, "ab", 2),
        (["zz", "cd", "bcd"], False, "a", 3),
        (["de", "b"], False, "a", 1),
        ("dx", False, "abcdex", 5),
        ("abcdex", True, "abcdex", 5),
        ("xyz", False, "abcdex", 5),
    ],
)
def test_stop_strings_cut_text_and_tokens(
    num_drafts: int, streamed: bool, stop: str, include: bool, text: str, num_tokens: int
) -> None:
    params = SamplingParams(
        temperature=0,
        max_tokens=5,
        stop=stop,
        include_stop_str_in_output=include,
        logprobs=0,
    )
    llm = spelling_llm(num_drafts)
    if streamed:
        events = [event.outputs[0] for event in llm.stream([0], params) if event.outputs]
        token_ids = [i for event in events for i in event.token_ids]
        shown = "".join(event.text for event in events)
        logprobs = [entry for event in events for entry in event.logprobs or []]
        reason = events[-1].finish_reason
    else:
        [output] = llm.generate([0], params)
        [sample] = output.outputs
        token_ids, shown, reason = sample.token_ids, sample.text, sample.finish_reason
        logprobs = sample.logprobs or []
        assert output.metrics is not None and output.metrics.num_emitted_tokens == num_tokens
        assert len(sample.token_sources) == num_tokens
    assert shown == text
    assert token_ids == [1, 2, 3, 4, 5][:num_tokens]
    assert len(logprobs) == num_tokens
    assert reason == ("length" if text == "abcdex" and not include else "stop")


@pytest.mark.parametrize("include", [False, True])
def test_the_text_of_a_stop_token_is_hidden_unless_asked_for(include: bool) -> None:
    params = SamplingParams(
        temperature=0, max_tokens=5, stop_token_ids=[3], include_stop_str_in_output=include
    )
    for llm in (spelling_llm(0), spelling_llm(4)):
        [output] = llm.generate([0], params)
        assert output.outputs[0].text == ("abcd" if include else "abc")
        assert output.outputs[0].token_ids == [1, 2, 3]
        streamed = "".join(e.outputs[0].text for e in llm.stream([0], params) if e.outputs)
        assert streamed == output.outputs[0].text


def test_first_stop_looks_only_at_emitted_tokens() -> None:
    tokens = np.array([[1, 2, 3, 9], [9, 1, -1, -1], [1, 2, 9, 9], [1, -1, -1, -1]])
    stops = np.array([[9, NO_TOKEN], [1, 9], [NO_TOKEN, NO_TOKEN], [2, 3]])
    kept, is_stopped = first_stop(tokens, np.array([3, 2, 4, 1]), stops)
    assert kept.tolist() == [3, 1, 4, 1]
    assert is_stopped.tolist() == [False, True, False, False]


def test_the_stop_string_that_completes_first_wins() -> None:
    assert find_stop("abcdef", ["def", "cd"]) == (2, 4)
    assert find_stop("abcdef", ["d", "bcd", "cd"]) == (1, 4)
    assert find_stop("abcdef", ["x"]) is None


def test_text_is_held_exactly_while_it_may_begin_a_stop() -> None:
    stops = ["abc", "bd"]
    for text in map("".join, itertools.product("abcd", repeat=4)):
        held = held_length(text, stops)
        may_begin = [n for n in range(1, 3) if any(s[:n] == text[-n:] for s in stops)]
        may_begin = [n for n in may_begin if n < 3]
        assert held == max(may_begin, default=0)
