"""What makes an audit INVALID: each reason is found, named, and given a way out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fairdraft.audit.checks import PATIENCE, BatchChecks, SeenRequests
from fairdraft.audit.subject import InvalidSubject, SubjectInfo
from fairdraft.stats.tokens import ScoredTokens, Source
from tests.audit.scripted import VOCAB_SIZE, scripted_tokens

TOKENS = scripted_tokens(0)


def info(**parameters: Any) -> SubjectInfo:
    return SubjectInfo("scripted", "a script", {"temperature": 1.0} | parameters)


def checks(is_speculative: bool = False, **parameters: Any) -> BatchChecks:
    return BatchChecks(replace(info(**parameters), is_speculative=is_speculative))


def refusal(tokens: ScoredTokens, checks_: BatchChecks) -> str:
    with pytest.raises(InvalidSubject) as caught:
        checks_.check(tokens)
    return str(caught.value)


def changed(law: np.ndarray, row: int, values: Any) -> np.ndarray:
    law = law.copy()
    law[row] = values
    return law


def test_good_batches_pass() -> None:
    looked = checks()
    looked.begin()
    for number in range(3):
        looked.check(scripted_tokens(number))
    assert looked.num_tokens == 3 * len(TOKENS)
    assert looked.reason_at_the_end() is None


def test_temperature_zero_is_for_the_exact_match_mode() -> None:
    with pytest.raises(InvalidSubject, match="temperature = 0.0 is greedy.*exact-match mode"):
        checks(temperature=0.0).begin()


def test_laws_of_one_token_are_refused_whatever_the_parameters_say() -> None:
    one_hot = np.eye(VOCAB_SIZE)[TOKENS.column]
    message = refusal(replace(TOKENS, target=one_hot), checks())
    assert "one possible token" in message and "exact-match mode" in message


@pytest.mark.parametrize("name", ["target", "draft", "unfiltered", "raw_draft"])
@pytest.mark.parametrize(("factor", "is_refused"), [(1 + 9e-5, False), (1 + 2e-4, True)])
def test_laws_sum_to_one(name: str, factor: float, is_refused: bool) -> None:
    law = changed(TOKENS.target, 5, TOKENS.target[5] * factor)
    tokens = replace(TOKENS, **{name: law})
    if not is_refused:
        checks().check(tokens)
        return
    message = refusal(tokens, checks())
    assert "position 5 of text 0 sums to 1.0002" in message and "rest cell" in message


def test_nan_in_a_law_is_refused_and_a_missing_draft_is_not() -> None:
    draft = changed(TOKENS.target, 3, np.nan)
    checks().check(replace(TOKENS, draft=draft))
    assert "sums to nan" in refusal(replace(TOKENS, target=draft), checks())
    draft[4, 2] = np.nan
    assert "the draft's law" in refusal(replace(TOKENS, draft=draft), checks())


def test_logarithms_are_refused() -> None:
    law = changed(TOKENS.target, 0, [2.0, -1.0, *[0.0] * (VOCAB_SIZE - 2)])
    assert "not their logarithms" in refusal(replace(TOKENS, target=law), checks())


def test_a_token_without_a_column_is_refused() -> None:
    column = changed(TOKENS.column, 9, VOCAB_SIZE)
    assert "names column 8 of 8" in refusal(replace(TOKENS, column=column), checks())


def test_texts_come_whole_and_in_order() -> None:
    looked = checks()
    looked.check(TOKENS)
    assert "order of their serial numbers" in refusal(TOKENS, looked)
    without_one = scripted_tokens(1).take(np.arange(len(TOKENS)) != 3)
    assert "goes on at position 4 where 3 is due" in refusal(without_one, looked)


def test_speculation_without_a_draft_is_refused_once_it_had_its_chance() -> None:
    looked = checks(is_speculative=True)
    number = 0
    while looked.num_tokens + len(TOKENS) < PATIENCE:
        looked.check(scripted_tokens(number))
        number += 1
    reason = looked.reason_at_the_end()
    assert reason is not None and "no draft was seen" in reason
    assert refusal(scripted_tokens(number), looked).startswith("no draft was seen in 2,048 tokens")


@pytest.mark.parametrize(
    "shown",
    [
        {"source": changed(TOKENS.source, 7, Source.ACCEPTED)},
        {"drafted": changed(TOKENS.drafted, 7, 0)},
        {"draft": changed(np.full_like(TOKENS.target, np.nan), 7, TOKENS.target[7])},
        {"point_mass": changed(np.zeros(len(TOKENS), bool), 7, True)},
    ],
    ids=lambda value: next(iter(value)),
)
def test_one_draft_is_enough(shown: dict[str, Any]) -> None:
    looked = checks(is_speculative=True)
    looked.check(replace(TOKENS, **shown))
    assert looked.num_drafts == 1
    assert looked.reason_at_the_end() is None


def test_counts_survive_a_resumption() -> None:
    looked = checks(is_speculative=True)
    looked.check(TOKENS)
    again = BatchChecks(looked.info, looked.state())
    assert "order of their serial numbers" in refusal(TOKENS, again)
    assert again.num_tokens == len(TOKENS)


class TestFilters:
    """The target's law is the raw one while the parameters name filters."""

    def test_equal_to_the_unfiltered_law(self) -> None:
        tokens = replace(TOKENS, unfiltered=TOKENS.target)
        message = refusal(tokens, checks(top_p=0.9))
        assert "equals the unfiltered law" in message and "top_p = 0.9" in message
        assert "processed logprobs" in message

    def test_more_than_k_tokens(self) -> None:
        assert "more than 3 tokens" in refusal(TOKENS, checks(top_k=3))
        checks(top_k=3).check(replace(TOKENS, **processed(top_k=3)))

    def test_ties_with_the_kth_stay(self) -> None:
        flat = np.full_like(TOKENS.target, 1 / VOCAB_SIZE)
        checks(top_k=3).check(replace(TOKENS, target=flat))

    def test_no_token_dropped_by_a_nucleus(self) -> None:
        assert "drops no token" in refusal(TOKENS, checks(top_p=0.9))
        checks(top_p=0.9).check(replace(TOKENS, **processed(top_k=5)))

    def test_tokens_below_min_p(self) -> None:
        assert "below 0.2 times the best" in refusal(TOKENS, checks(min_p=0.2))
        law = np.where(TOKENS.target >= 0.2 * TOKENS.target.max(1, keepdims=True), TOKENS.target, 0)
        law /= law.sum(1, keepdims=True)
        checks(min_p=0.2).check(replace(TOKENS, target=law, column=law.argmax(1)))

    def test_filters_that_are_off_ask_for_nothing(self) -> None:
        checks(top_k=0, top_p=1.0, min_p=0.0).check(replace(TOKENS, unfiltered=TOKENS.target))


def processed(top_k: int) -> dict[str, np.ndarray]:
    """The target's law and tokens under a top-k filter."""
    kth = np.sort(TOKENS.target, axis=1)[:, -top_k]
    law = np.where(TOKENS.target >= kth[:, None], TOKENS.target, 0.0)
    return {"target": law / law.sum(1, keepdims=True), "column": law.argmax(1)}


class TestSeenRequests:
    """Two texts of one prompt and seed are one text."""

    def test_undeclared_duplicates_are_refused(self) -> None:
        seen = SeenRequests()
        seen.note(7, "prompt", "text 0")
        seen.note(8, "prompt", "text 1")
        seen.note(7, "another prompt", "text 2")
        with pytest.raises(InvalidSubject, match=r"text 0 and text 3 have one prompt and one seed"):
            seen.note(7, "prompt", "text 3")

    def test_samples_and_unknown_seeds_are_no_duplicates(self) -> None:
        seen = SeenRequests()
        for number in range(3):
            seen.note(7, "prompt", f"text {number}", sample=number)
            seen.note(None, "prompt", f"text {number}")

    def test_declared_ones_pass(self) -> None:
        seen = SeenRequests(declared=True)
        seen.note(7, "prompt", "text 0")
        seen.note(7, "prompt", "text 1")
