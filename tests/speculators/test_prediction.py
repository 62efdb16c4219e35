"""Drafts follow a prediction, lose it where the output differs, and find it again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairdraft import LLM, SamplingParams
from fairdraft.speculators import count_found
from fairdraft.speculators.prediction import PredictionCursor
from tests.engine.toys import byte_tokenizer, chain_table, ids, table_model, tiny_llama


def drafts_after(prediction: list[int], output: list[int], most: int = 4) -> list[int]:
    cursor = PredictionCursor(prediction)
    cursor.read(np.array(output))
    return cursor.drafts(most).tolist()


@pytest.mark.parametrize(
    ("output", "drafts"),
    [
        ([], [10, 11, 12, 13]),
        ([10, 11], [12, 13, 14, 15]),
        ([10, 11, 12, 13, 14, 15, 16, 17, 18], [19]),
        ([10, 11, 12, 13, 14, 15, 16, 17, 18, 19], []),
        ([10, 11, 99], []),
        ([10, 99, 12], [13, 14, 15, 16]),
        ([10, 99, 98, 97, 11], [12, 13, 14, 15]),
        ([10, 15], [16, 17, 18, 19]),
        ([99, 12, 13], [14, 15, 16, 17]),
    ],
    ids=[
        *("start", "on", "near the end", "end", "lost", "replaced", "inserted", "left out"),
        "found",
    ],
)
def test_drafts_follow_the_prediction(output: list[int], drafts: list[int]) -> None:
    assert drafts_after(list(range(10, 20)), output) == drafts


def test_a_lost_place_goes_to_the_longest_match_and_then_to_the_nearest() -> None:
    prediction = [1, 2, 7, 3, 8, 3, 4, 2, 7, 5]
    assert drafts_after(prediction, [1, 9, 7], 1) == [3]
    assert drafts_after(prediction, [1, 9, 8, 3], 1) == [4]
    far = [*range(100, 150), 7, 5]
    assert drafts_after(far, [100, 7], 1) == []
    assert drafts_after([*far[:-2], 6, 7, 5], [100, 6, 7], 1) == [5]


words = st.lists(st.integers(0, 3), max_size=15)


@given(words, words, st.integers(1, 4))
def test_the_place_is_a_function_of_the_output(
    prediction: list[int], output: list[int], step: int
) -> None:
    """However many tokens a round decides; so a preemption changes nothing."""
    whole = PredictionCursor(prediction)
    whole.read(np.array(output, np.int64))
    parts = PredictionCursor(prediction)
    for end in range(0, len(output) + step, step):
        parts.read(np.array(output[:end], np.int64))
    assert parts.place == whole.place
    assert (parts.is_found == whole.is_found).all()
    found = count_found(prediction, output)
    assert 0 <= found <= min(len(prediction), len(output) * 16)
    assert count_found(output, output) == len(output)


def predicted(target: Any, **options: Any) -> LLM:
    config = {"method": "prediction", "num_speculative_tokens": 4}
    return LLM(target, speculative_config=config, **options)


def test_a_right_prediction_saves_passes_and_is_reported() -> None:
    target = table_model(chain_table(list(range(40)), 40))
    llm = predicted(target)
    right = list(range(2, 32))
    edited = [*right[:10], 0, 0, *right[12:]]
    common = {"temperature": 0.0, "max_tokens": 30}
    cases = [(right, 30, 6), (edited, 28, 10), ([], 0, 30)]
    params = [SamplingParams(prediction=given, **common) for given, *_ in cases]
    outputs = llm.generate([[1]] * 3, params)
    for output, (_, found, most) in zip(outputs, cases, strict=True):
        assert output.outputs[0].token_ids == right
        metrics = output.metrics
        assert metrics is not None and metrics.rounds <= most
        assert metrics.accepted_prediction_tokens == found
    assert [o.metrics and o.metrics.rejected_prediction_tokens for o in outputs] == [0, 2, 0]
    [plain] = llm.generate([[1]], SamplingParams(**common))
    assert plain.metrics is not None and plain.metrics.rounds == 30
    assert plain.metrics.accepted_prediction_tokens is None


def test_a_prediction_may_be_text() -> None:
    text, tokenizer = "abcdefghijklmnopqrstuvwxyz", byte_tokenizer()
    order = tokenizer(text)["input_ids"]
    llm = predicted(table_model(chain_table(order, 256)), tokenizer=tokenizer)
    params = SamplingParams(temperature=0, max_tokens=25, prediction=text[1:])
    [output] = llm.generate("a", params)
    assert output.outputs[0].text == text[1:]
    assert output.metrics is not None and output.metrics.rounds == 5
    assert output.metrics.accepted_prediction_tokens == 25


def test_wrong_predictions_are_refused_with_the_way_out() -> None:
    llm = predicted(tiny_llama(0))
    for wrong, message in [
        ("text", r"prompts\[0\]: prediction is text and .* has no tokenizer"),
        ([1, 97], "prediction holds token id 97"),
        ([1.5], "prediction is"),
        (3, "prediction is 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            llm.generate([1], SamplingParams(prediction=wrong))  # pyright: ignore
    for other in (LLM(tiny_llama(0)), LLM(tiny_llama(0), speculative_config={"method": "ngram"})):
        with pytest.raises(ValueError, match="which does not read it; use speculative_config"):
            other.generate([1], SamplingParams(prediction=[1]))


def test_the_output_is_the_same_with_any_prediction() -> None:
    target = tiny_llama(0)
    params = {"temperature": 0.0, "max_tokens": 20}
    expected = ids(LLM(target).generate([1, 2, 3], SamplingParams(**params)))
    llm = predicted(target, max_num_seqs=3)
    rng = np.random.default_rng(0)
    given = [rng.integers(97, size=30).tolist() for _ in range(4)] + expected * 2
    given[4] = given[4][5:]
    asked = [SamplingParams(prediction=prediction, **params) for prediction in given]
    assert ids(llm.generate([[1, 2, 3]] * 6, asked)) == expected * 6
