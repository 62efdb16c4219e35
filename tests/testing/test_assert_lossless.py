"""The assertion holds for a right sampler, and says everything when it does not hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairdraft.audit.report import Report
from fairdraft.testing import NotLossless, SamplerSubject, assert_lossless
from tests.testing.samplers import P, subject


def test_a_right_sampler_passes() -> None:
    report = assert_lossless(subject(), eps=0.1, max_tokens=20_000)
    assert report.verdict.state == "PASS" and report.subject.kind == "sampler"
    assert report.settings["alpha"] == 1e-6


def test_a_failure_names_the_bug_and_shows_the_table(tmp_path: Path) -> None:
    """Replacements from p in place of the residual: 1 in 9 tokens is another, TV above .1."""
    path = tmp_path / "new" / "report.json"
    with pytest.raises(NotLossless) as failure:
        assert_lossless(subject(P), report_path=path)
    message = str(failure.value)
    assert message.startswith("FAIL: the tokens do not follow the target: evidence 10^")
    assert "the bug: rejected drafts are replaced" in message
    assert "q/p octile" in message and "log10 E" in message
    assert "\x1b" not in message and f"report: {path}" in message
    assert Report.read(path).verdict.state == "FAIL" == failure.value.report.verdict.state
    assert isinstance(failure.value, AssertionError)


def test_too_few_tokens_say_how_many_are_needed() -> None:
    with pytest.raises(NotLossless) as failure:
        assert_lossless(subject(), max_tokens=2_000)
    message = str(failure.value)
    needed = failure.value.report.verdict.needed_tokens
    assert message.startswith("INCONCLUSIVE") and needed is not None and needed > 2_000
    assert f"about {needed:,} tokens are needed; raise max_tokens to that" in message


def test_what_cannot_be_judged_gives_its_reason() -> None:
    greedy = SamplerSubject(lambda c, rng: 0, lambda c: [1.0, 0.0])
    with pytest.raises(NotLossless, match="^INVALID: .*as at temperature 0"):
        assert_lossless(greedy)
    unbalanced = SamplerSubject(lambda c, rng: 0, lambda c: [0.6, 0.6])
    with pytest.raises(NotLossless, match="^INVALID: .*sums to 1.2"):
        assert_lossless(unbalanced)


def test_speculation_that_never_happens_is_no_pass() -> None:
    never = SamplerSubject(
        lambda c, rng: int(rng.choice(5, p=P)), lambda c: P, num_drafts=None, draft=None
    )
    report = assert_lossless(never, eps=0.1)
    assert not report.subject.is_speculative


def test_numbers_out_of_range_are_no_assertion() -> None:
    with pytest.raises(ValueError, match="eps = 2"):
        assert_lossless(subject(), eps=2)
