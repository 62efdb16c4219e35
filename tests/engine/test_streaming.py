"""Events add up to the whole, and show nothing that is taken back."""

from __future__ import annotations

import pytest

from fairdraft import LLM, SamplingParams
from fairdraft.engine.detokenize import Detokenizer
from tests.engine.toys import (
    byte_tokenizer,
    chain_table,
    ids,
    speculating,
    table_model,
    tiny_llama,
    word_tokenizer,
)


@pytest.mark.parametrize("num_drafts", [0, 1, 4])
def test_events_add_up_to_the_whole(num_drafts: int) -> None:
    target = tiny_llama(0, eos_token_id=7)
    llm = speculating(target, target, num_drafts) if num_drafts else LLM(target)
    prompts = [[1, 2], [3], [4, 5, 6]]
    params = [SamplingParams(seed=i, n=1 + i, max_tokens=20) for i in range(3)]
    whole = llm.generate(prompts, params)
    tokens: dict[tuple[str, int], list[int]] = {}
    sources: dict[tuple[str, int], list[str]] = {}
    finished: dict[str, int] = {}
    reasons: dict[tuple[str, int], str] = {}
    first_id: list[str] = []
    for event in llm.stream(prompts, params):
        assert event.request_id not in finished
        if event.request_id not in first_id:
            first_id.append(event.request_id)
        assert (event.metrics is not None) == event.finished
        if event.finished:
            finished[event.request_id] = 1
        for output in event.outputs:
            name = (event.request_id, output.index)
            assert name not in reasons and len(output.token_ids) == len(output.token_sources)
            assert len(output.token_ids) <= num_drafts + 1
            tokens.setdefault(name, []).extend(output.token_ids)
            sources.setdefault(name, []).extend(output.token_sources)
            if output.finish_reason is not None:
                reasons[name] = output.finish_reason
    assert len(finished) == 3
    for request_id, output in zip(first_id, whole, strict=True):
        for sample in output.outputs:
            name = (request_id, sample.index)
            assert tokens[name] == sample.token_ids
            assert sources[name] == sample.token_sources
            assert reasons[name] == sample.finish_reason


def test_generate_while_a_stream_is_open() -> None:
    llm = LLM(tiny_llama(0))
    params = SamplingParams(seed=1, max_tokens=12)
    expected = ids(llm.generate([[1, 2]], params))[0]
    stream = llm.stream([1, 2], params)
    seen = list(next(stream).outputs[0].token_ids)
    assert ids(llm.generate([[1, 2]], params))[0] == expected
    for event in stream:
        seen += [i for output in event.outputs for i in output.token_ids]
    assert seen == expected


TEXT = "né 😀 fin"


class Places:
    """Decodes places of a text as the bytes that stand there; place 0 is the prompt."""

    def __init__(self, text: str) -> None:
        self._tokenizer = byte_tokenizer()
        self._order = self._tokenizer(text)["input_ids"]

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        places = [self._order[i - 1] for i in token_ids if i > 0]
        return str(self._tokenizer.decode(places)) if places else ""

    def get_vocab(self) -> dict[str, int]:
        return {str(place): place for place in range(len(self._order) + 1)}

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [0]}


def speaker(num_drafts: int) -> LLM:
    """Says TEXT after any prompt, a byte a token."""
    count = len(TEXT.encode()) + 1
    model = table_model(chain_table(list(range(count)), count))
    config = {"model": model, "num_speculative_tokens": num_drafts} if num_drafts else None
    return LLM(model, tokenizer=Places(TEXT), speculative_config=config)


@pytest.mark.parametrize("num_drafts", [0, 1, 2, 3, 5, 8])
def test_no_event_shows_half_a_character(num_drafts: int) -> None:
    llm = speaker(num_drafts)
    count = len(TEXT.encode())
    for max_tokens in range(1, count + 1):
        params = SamplingParams(temperature=0, max_tokens=max_tokens)
        texts = [e.outputs[0].text for e in llm.stream("\n", params) if e.outputs]
        shown = "".join(texts)
        assert "\ufffd" not in shown
        assert shown == TEXT.encode()[:max_tokens].decode(errors="ignore")
        [output] = llm.generate("\n", params)
        assert output.outputs[0].text == shown
        assert len(output.outputs[0].token_ids) == max_tokens


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_pieces_cut_the_text_by_origin(num_drafts: int) -> None:
    llm = speaker(num_drafts)
    params = SamplingParams(temperature=0, max_tokens=len(TEXT.encode()))
    for event in llm.stream("\n", params):
        for output in event.outputs:
            assert "".join(text for text, _ in output.pieces) == output.text
            assert {source for _, source in output.pieces} <= set(output.token_sources)


@pytest.mark.parametrize("num_drafts", [0, 2])
def test_text_that_may_begin_a_stop_string_waits(num_drafts: int) -> None:
    words = ["<s>", "a", "b", "c", "d"]
    model = table_model(chain_table([0, 1, 2, 3, 4], 5))
    config = {"model": model, "num_speculative_tokens": num_drafts} if num_drafts else None
    llm = LLM(model, tokenizer=word_tokenizer(words), speculative_config=config)
    shown = ""
    for event in llm.stream([0], SamplingParams(temperature=0, max_tokens=4, stop="bcx")):
        for output in event.outputs:
            shown += output.text
            if not event.finished:
                assert not any(shown.endswith(part) for part in ("b", "bc"))
    assert shown == "abcd"
    for event in llm.stream([0], SamplingParams(temperature=0, max_tokens=4, stop="cd")):
        shown = "".join(output.text for output in event.outputs)
        assert "c" not in shown


def test_progress_counts_to_the_most_there_can_be() -> None:
    llm = LLM(tiny_llama(0), max_num_seqs=2)
    calls: list[tuple[int, int]] = []
    params = SamplingParams(n=2, max_tokens=6, seed=1)
    llm.generate([[1], [2, 3]], params, progress=lambda done, most: calls.append((done, most)))
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1] == (24, 24) and {most for _, most in calls} == {24}


def test_detokenizer_agrees_with_decoding_at_once() -> None:
    tokenizer = byte_tokenizer()
    for text in ("plain", "é" * 40, "a😀b" * 20, "漢字かな交じり文" * 5):
        token_ids = tokenizer(text)["input_ids"]
        one_by_one = Detokenizer(tokenizer, [])
        assert "".join(one_by_one.push(i) for i in token_ids) == text
        assert Detokenizer(tokenizer, []).push(*token_ids) == text


def test_bytes_that_are_no_character_are_shown_once_that_is_certain() -> None:
    tokenizer = byte_tokenizer()
    letter, broken = tokenizer("a")["input_ids"][0], tokenizer("😀")["input_ids"][0]
    detokenizer = Detokenizer(tokenizer, [])
    assert [detokenizer.push(i) for i in (letter, broken, letter)] == ["a", "", "\ufffda"]


def test_a_character_that_the_prompt_began_is_completed() -> None:
    tokenizer = byte_tokenizer()
    emoji = tokenizer("😀")["input_ids"]
    detokenizer = Detokenizer(tokenizer, emoji[:2])
    assert [detokenizer.push(i) for i in emoji[2:]] == ["", "😀"]
