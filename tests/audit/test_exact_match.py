"""The exact-match mode: identity at temperature 0, with ties told from bugs."""

from __future__ import annotations

from typing import Any

import pytest

from fairdraft import LLM, SamplingParams
from fairdraft.audit.contexts import ContextCheck
from fairdraft.audit.exact_match import Difference, Matching, match_texts, match_verdict
from fairdraft.audit.subjects import engine_exact
from fairdraft.audit.subjects.engine_exact import compare_engine
from tests.engine.toys import speculating, tiny_llama

CONTEXTS = ContextCheck(100, 1e-5, 1e-2, "position 3 of text 1")
PROMPTS = [[1, 2], [3, 4, 5], [6]]


def engine(**options: Any) -> LLM:
    return speculating(tiny_llama(1), tiny_llama(2, layers=1), 3, **options)


def match(given: list[list[int]], expected: list[list[int]], gap: float = 1.0) -> Matching:
    return match_texts(given, expected, lambda *_: gap, CONTEXTS)


def test_equal_texts_match() -> None:
    matching = match([[1, 2], [3]], [[1, 2], [3]])
    assert (matching.num_texts, matching.num_tokens) == (2, 3)
    verdict = match_verdict(matching, CONTEXTS, num_drafts=5)
    assert verdict.state == "PASS"
    assert verdict.sentence == (
        "PASS: every greedy token is that of plain decoding; n=3 tokens in 2 texts"
    )


def test_a_gap_that_rounding_explains_is_a_tie() -> None:
    matching = match([[1, 2, 9], [5]], [[1, 3, 4], [5]], gap=3e-5)
    assert matching.tie_limit == pytest.approx(4e-5)
    assert matching.ties == (Difference(0, 1, 2, 3, 3e-5),) and not matching.faults
    assert matching.num_tokens == 3, "what follows a tie is another text"
    verdict = match_verdict(matching, CONTEXTS, num_drafts=5)
    assert verdict.state == "PASS" and "1 text parts where two logits are" in verdict.sentence


def test_a_gap_that_it_does_not_is_a_fault() -> None:
    matching = match([[1, 2], [5]], [[1, 3], [6]], gap=5e-5)
    verdict = match_verdict(matching, CONTEXTS, num_drafts=5)
    assert verdict.state == "FAIL" and verdict.exit_code == 1
    assert "2 of 2 texts are not those of plain decoding" in verdict.sentence
    assert "token 1 of text 0 is 2, and plain decoding emits 3" in verdict.sentence


def test_a_text_that_ends_early_is_a_fault() -> None:
    matching = match([[1, 2]], [[1, 2, 3]], gap=0.0)
    assert matching.faults == (Difference(0, 2, -1, 3, float("inf")),)


def test_no_drafts_is_invalid() -> None:
    verdict = match_verdict(match([[1]], [[1]]), CONTEXTS, num_drafts=0)
    assert verdict.state == "INVALID" and "no draft was seen" in verdict.sentence


def test_logits_of_another_context_are_no_tie() -> None:
    strayed = ContextCheck(100, 2.0, 1e-2, "position 3 of text 1")
    matching = match_texts([[1]], [[2]], lambda *_: 0.5, strayed)
    assert matching.faults
    assert match_verdict(match([[1]], [[1]]), strayed, num_drafts=5).state == "FAIL"


def test_the_engine_matches_itself() -> None:
    heard: list[str] = []
    report = compare_engine(engine(), PROMPTS, num_tokens=20, on_progress=heard.append)
    assert report.verdict.state == "PASS", report.verdict
    assert report.num_texts == 9 and report.num_tokens == 180
    assert report.subject.parameters["temperature"] == 0.0
    assert any("drafts were tested" in note for note in report.notes)
    assert len(heard) == 3


def test_another_target_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_exact, "without_speculator", lambda llm: LLM(tiny_llama(7)))
    report = compare_engine(engine(), PROMPTS, num_tokens=20)
    assert report.verdict.state == "FAIL" and report.exit_code == 1


def test_plain_decoding_has_nothing_to_be_compared_with() -> None:
    with pytest.raises(ValueError, match="nothing to be compared with"):
        compare_engine(LLM(tiny_llama(1)), PROMPTS)


def test_stops_are_kept() -> None:
    params = SamplingParams(stop_token_ids=list(range(0, 97, 3)), ignore_eos=True)
    report = compare_engine(engine(), PROMPTS, params, num_tokens=20)
    assert report.verdict.state == "PASS" and report.num_tokens < 180
