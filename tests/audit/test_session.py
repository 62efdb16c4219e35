"""An audit from its first check to its report: verdicts, budget, resumption, and full disks."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairdraft.audit import session as session_module
from fairdraft.audit.contexts import ContextCheck
from fairdraft.audit.progress import Progress
from fairdraft.audit.replay import Replay
from fairdraft.audit.session import AuditInterrupted, AuditSession, run_audit
from fairdraft.audit.settings import AuditSettings, OraclePolicy
from fairdraft.audit.subject import InvalidSubject
from fairdraft.noise import Stream, Trace, address
from tests.audit.scripted import Scripted

#: wide enough that a right script passes in a second
WIDE = AuditSettings(eps=0.05, max_tokens=50_000)
#: moves every token's law by about .2, which these settings see in a few thousand tokens
BIAS = 0.3


def without_times(report: Any) -> Any:
    return replace(report, seconds=0.0, created="")


def test_a_right_script_passes_and_a_wrong_one_fails() -> None:
    good = run_audit(Scripted(), WIDE)
    assert good.verdict.state == "PASS" and good.exit_code == 0
    assert good.notes == ("batch 1",)
    bad = run_audit(Scripted(bias=BIAS), WIDE)
    assert bad.verdict.state == "FAIL" and bad.exit_code == 1
    assert bad.num_tokens < good.num_tokens


def test_the_budget_ends_without_a_verdict_and_says_what_is_needed() -> None:
    report = run_audit(Scripted(), replace(WIDE, max_tokens=300))
    assert report.verdict.state == "INCONCLUSIVE" and report.exit_code == 3
    assert report.num_tokens == 384, "the batch that reaches the number counts whole"
    assert report.verdict.needed_tokens is not None and report.verdict.needed_tokens > 384


def test_time_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(10_000))
    monkeypatch.setattr(session_module.time, "monotonic", lambda: float(next(times)))
    report = run_audit(Scripted(), replace(WIDE, max_seconds=20))
    assert report.verdict.state == "INCONCLUSIVE"
    assert report.num_tokens < 20 * 128


def test_a_subject_may_end() -> None:
    report = run_audit(Scripted(num_batches=2), WIDE)
    assert (report.num_tokens, report.num_texts) == (256, 32)
    assert report.verdict.state == "INCONCLUSIVE"


def test_it_stops_where_it_is_told() -> None:
    subject = Scripted()
    report = run_audit(subject, WIDE, should_stop=lambda: len(subject.made) == 3)
    assert report.num_tokens == 3 * 128


def test_a_resumed_audit_is_the_one_that_never_stopped(tmp_path: Path) -> None:
    whole = run_audit(Scripted(bias=0.1), WIDE)
    path = tmp_path / "audit.state"
    parts = []
    for count in (1, 2, 5, None):
        subject = Scripted(bias=0.1)
        parts.append(subject.made)
        report = run_audit(
            subject,
            WIDE,
            state_path=path,
            should_stop=lambda s=subject, n=count: len(s.made) == n,
        )
    assert without_times(report) == without_times(whole)
    assert [number for part in parts for number in part] == list(range(len(sum(parts, []))))
    assert [len(part) for part in parts[:3]] == [1, 2, 5]


def test_a_verdict_that_was_saved_is_not_sampled_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.state"
    first = run_audit(Scripted(bias=BIAS), WIDE, state_path=path)
    subject = Scripted(bias=BIAS)
    again = run_audit(subject, WIDE, state_path=path)
    assert not subject.made
    assert again.verdict == first.verdict


@pytest.mark.parametrize(
    ("subject", "settings", "place"),
    [
        (Scripted(), replace(WIDE, eps=0.2), "settings.eps is 0.05 there and 0.2 here"),
        (Scripted(), replace(WIDE, eps0=0.1), "settings.eps0"),
        (Scripted(changes={"name": "another"}), WIDE, "subject.name"),
        (
            Scripted(changes={"parameters": {"temperature": 0.5}}),
            WIDE,
            "subject.parameters.temperature is 1.0 there and 0.5 here",
        ),
    ],
    ids=["eps", "eps0", "name", "parameters"],
)
def test_the_state_of_another_audit_is_refused(
    tmp_path: Path, subject: Scripted, settings: AuditSettings, place: str
) -> None:
    path = tmp_path / "audit.state"
    run_audit(Scripted(num_batches=1), WIDE, state_path=path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"belongs to another audit: {place}"):
        run_audit(subject, settings, state_path=path)
    assert path.read_bytes() == before


def test_a_spent_budget_is_not_exceeded_by_resuming(tmp_path: Path) -> None:
    path, settings = tmp_path / "audit.state", replace(WIDE, max_tokens=200)
    counts = [run_audit(Scripted(), settings, state_path=path).num_tokens for _ in range(3)]
    assert counts == [256] * 3


def test_a_larger_budget_goes_on_from_the_same_state(tmp_path: Path) -> None:
    path = tmp_path / "audit.state"
    run_audit(Scripted(), replace(WIDE, max_tokens=128), state_path=path)
    report = run_audit(Scripted(), replace(WIDE, max_tokens=512), state_path=path)
    assert report.num_tokens == 512


class TestFullDisk:
    """Saving fails for a while; the audit does not."""

    def test_samples_stay_and_the_verdict_is_the_same(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "audit.state"
        real, calls = session_module.save_state, []

        def save(target: Any, state: Any) -> None:
            calls.append(target)
            if 2 <= len(calls) < 5:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(target, state)

        monkeypatch.setattr(session_module, "save_state", save)
        heard: list[str] = []
        report = run_audit(
            Scripted(),
            WIDE,
            state_path=path,
            on_progress=lambda progress: heard.extend(progress.notes),
        )
        monkeypatch.undo()
        assert report.verdict == run_audit(Scripted(), WIDE).verdict
        failed = [note for note in heard if "could not be saved" in note]
        assert len(failed) == 1 and "No space left on device" in failed[0]
        assert "samples are in memory" in failed[0]
        assert sum("is saved to" in note for note in heard) == 1
        assert set(heard) == set(report.notes)
        assert run_audit(Scripted(), WIDE, state_path=path).verdict == report.verdict


class TestInterruption:
    """Ctrl-C in the middle of a batch."""

    def test_what_was_scored_is_reported_and_saved(self, tmp_path: Path) -> None:
        path = tmp_path / "audit.state"
        with pytest.raises(AuditInterrupted) as caught:
            run_audit(Scripted(interrupt_at=3), WIDE, state_path=path)
        assert caught.value.report.num_tokens == 3 * 128
        report = run_audit(Scripted(), WIDE, state_path=path)
        assert without_times(report) == without_times(run_audit(Scripted(), WIDE))

    def test_half_a_batch_counts_for_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        audit = AuditSession(Scripted(), WIDE)
        evidence = audit.main.evidence
        real, count = type(evidence)._add_piece, []

        def add_piece(self: Any, *args: Any) -> None:
            count.append(1)
            if len(count) == 4:
                raise KeyboardInterrupt
            real(self, *args)

        monkeypatch.setattr(type(evidence), "_add_piece", add_piece)
        with pytest.raises(AuditInterrupted) as caught:
            audit.run()
        interrupted = caught.value.report
        assert interrupted.num_tokens == 128
        monkeypatch.undo()
        assert audit.run().verdict == run_audit(Scripted(), WIDE).verdict


class TestInvalid:
    """INVALID comes before statistics, with its reason."""

    def test_greedy(self) -> None:
        subject = Scripted(changes={"parameters": {"temperature": 0.0}})
        report = run_audit(subject, WIDE)
        assert report.verdict.state == "INVALID" and report.exit_code == 4
        assert "exact-match mode" in report.verdict.sentence
        assert not subject.made

    def test_no_drafts_is_never_a_pass(self) -> None:
        report = run_audit(Scripted(changes={"is_speculative": True}), WIDE)
        assert report.verdict.state == "INVALID"
        assert "no draft was seen" in report.verdict.sentence

    def test_no_drafts_in_an_audit_that_ends_early(self) -> None:
        report = run_audit(Scripted(num_batches=1, changes={"is_speculative": True}), WIDE)
        assert report.verdict.state == "INVALID"

    def test_a_subject_that_refuses_itself(self) -> None:
        class Broken(Scripted):
            def batches(self, cursor: Any = None) -> Any:
                yield next(super().batches(cursor))
                raise InvalidSubject("the model changed half-way; pin it")

        report = run_audit(Broken(), WIDE)
        assert report.verdict.sentence == "INVALID: the model changed half-way; pin it"
        assert report.num_tokens == 128, "samples are kept"

    def test_a_subject_that_recovers_goes_on(self, tmp_path: Path) -> None:
        path = tmp_path / "audit.state"

        class Flaky(Scripted):
            def batches(self, cursor: Any = None) -> Any:
                if cursor is not None:
                    raise InvalidSubject("the server is down; start it")
                yield next(super().batches(cursor))
                raise InvalidSubject("the server is down; start it")

        for _ in range(2):
            report = run_audit(Flaky(), WIDE, state_path=path)
            assert report.verdict.state == "INVALID" and report.num_tokens == 128
        report = run_audit(Scripted(), WIDE, state_path=path)
        assert without_times(report) == without_times(run_audit(Scripted(), WIDE))

    def test_it_stays_invalid_when_resumed(self, tmp_path: Path) -> None:
        path = tmp_path / "audit.state"
        changes = {"is_speculative": True}
        for _ in range(2):
            verdict = run_audit(Scripted(changes=changes), WIDE, state_path=path).verdict
            assert verdict.state == "INVALID" and "no draft was seen" in verdict.sentence


class TestControl:
    """The A/A run of a rescored subject: plain decoding, scored in the same way."""

    CHANGES = {"scoring": "rescored", "default_eps0": 0.001}

    def audit(self, *, bias: float, control_bias: float, **limits: Any) -> Any:
        control = Scripted(bias=control_bias, changes=self.CHANGES)
        subject = Scripted(bias=bias, changes=self.CHANGES, control=control)
        return run_audit(subject, replace(WIDE, **limits)), subject

    def test_a_clean_one_lets_both_verdicts_stand(self) -> None:
        assert self.audit(bias=0.0, control_bias=0.0)[0].verdict.state == "PASS"
        report, _ = self.audit(bias=BIAS, control_bias=0.0)
        assert report.verdict.state == "FAIL"
        assert any(note.startswith("A/A run, ") and "PASS" in note for note in report.notes)

    def test_one_that_fails_makes_the_audit_invalid_before_it_begins(self) -> None:
        report, subject = self.audit(bias=0.0, control_bias=BIAS)
        assert report.verdict.state == "INVALID"
        assert "A/A run is not clean" in report.verdict.sentence
        assert not subject.made

    def test_a_short_one_does_not_carry_a_fail(self) -> None:
        control = Scripted(changes=self.CHANGES, num_batches=1)
        subject = Scripted(bias=BIAS, changes=self.CHANGES, control=control)
        session = AuditSession(subject, WIDE)
        assert session.control is not None
        session.control.run(lambda: True)
        session.main.run(lambda: True)
        assert session.main.verdict().state == "FAIL"
        verdict = session.verdict()
        assert verdict.state == "INVALID" and "fewer than the audit" in verdict.sentence

    def test_it_is_resumed_too(self, tmp_path: Path) -> None:
        path = tmp_path / "audit.state"
        whole = self.audit(bias=0.0, control_bias=0.0)[0]
        count = [0]

        def is_third() -> bool:
            count[0] += 1
            return count[0] % 10 == 0

        for _ in range(100):
            control = Scripted(changes=self.CHANGES)
            subject = Scripted(changes=self.CHANGES, control=control)
            report = run_audit(subject, WIDE, state_path=path, should_stop=is_third)
            if report.verdict.state != "INCONCLUSIVE":
                break
        assert without_times(report) == without_times(whole)

    def test_own_logits_need_none(self) -> None:
        subject = Scripted(control=Scripted(bias=BIAS))
        assert run_audit(subject, WIDE).verdict.state == "PASS"


class TestOracles:
    """Deterministic findings come first."""

    class Inside(Scripted):
        """A script that also says what its oracles find."""

        collides = mismatches = strays = False

        def trace_addresses(self) -> Trace:
            trace = Trace()
            at = address(Stream.DRAFT, key=1, position=5)
            trace.record(at, [b"a"])
            trace.record(at, [b"b" if self.collides else b"a"])
            return trace

        def replay_rounds(self) -> Replay:
            found = ("token 0 of a round is 1, and the reference 2",)
            return Replay(3, 5, 6, 0, found if self.mismatches else ())

        def check_contexts(self) -> ContextCheck:
            return ContextCheck(9, 2.0 if self.strays else 1e-5, 1e-2, "position 3 of text 1")

    @pytest.mark.parametrize(
        ("fault", "words", "diagnosis"),
        [
            ("collides", "one random number is used for two things: DRAFT draw at", "address"),
            ("mismatches", "token 0 of a round is 1, and the reference 2", "definition"),
            ("strays", "position 3 of text 1 are not the target's", "context"),
        ],
    )
    def test_a_finding_is_fail_without_a_sample(
        self, fault: str, words: str, diagnosis: str
    ) -> None:
        subject = self.Inside()
        setattr(subject, fault, True)
        report = run_audit(subject, WIDE)
        assert report.verdict.state == "FAIL" and not subject.made
        assert words in report.verdict.sentence
        assert report.verdict.diagnosis is not None and diagnosis in report.verdict.diagnosis

    def test_a_finding_can_be_named_only(self) -> None:
        subject = self.Inside()
        subject.collides = True
        report = run_audit(subject, replace(WIDE, oracles=OraclePolicy.NAME))
        assert report.verdict.state == "PASS"
        assert any("used for two things" in note for note in report.notes)

    def test_a_clean_one_says_what_was_looked_at(self) -> None:
        report = run_audit(self.Inside(), WIDE)
        assert report.verdict.state == "PASS"
        assert report.notes[0] == "address trace: 1 draws, no collision"
        assert report.notes[1].endswith("no mismatch")
        assert report.notes[2].startswith("contexts: logits of 9 tokens")

    def test_nobody_looks_if_told_so(self) -> None:
        subject = self.Inside()
        subject.collides = True
        report = run_audit(subject, replace(WIDE, oracles=OraclePolicy.SKIP))
        assert report.verdict.state == "PASS" and report.notes == ("batch 1",)

    def test_findings_are_kept_for_the_next_sitting(self, tmp_path: Path) -> None:
        path = tmp_path / "audit.state"
        subject = self.Inside(num_batches=1)
        run_audit(subject, WIDE, state_path=path)
        later = self.Inside()
        later.collides = True
        assert run_audit(later, WIDE, state_path=path).verdict.state == "PASS"


def test_progress_says_how_it_stands() -> None:
    heard: list[Progress] = []
    run_audit(Scripted(), WIDE, on_progress=heard.append)
    last = heard[-1]
    assert last.stage == "audit" and last.num_tokens == len(heard[1:]) * 128
    assert last.upper <= WIDE.eps and last.largest is not None
    assert last.threshold == pytest.approx(3)
    middle = heard[len(heard) // 2]
    assert middle.planned_tokens is not None and middle.seconds_left is not None
    assert middle.tokens_per_second > 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"eps": 0}, "eps = 0 must be above 0"),
        ({"alpha": 1.0}, "alpha = 1.0 must be above 0 and below 1"),
        ({"delta": float("nan")}, "delta = nan"),
        ({"eps0": 0.5}, "eps0 = 0.5"),
        ({"max_tokens": 0}, "max_tokens = 0 must be at least 1"),
        ({"max_tokens": 1e6}, "max_tokens = 1000000.0 must be an int"),
        ({"max_seconds": -1}, "max_seconds = -1"),
        ({"oracles": "perhaps"}, "perhaps"),
    ],
)
def test_settings_are_checked(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AuditSettings(**values)


def test_an_oracle_that_cannot_judge_makes_the_audit_invalid() -> None:
    class Unreadable(Scripted):
        def check_contexts(self) -> ContextCheck:
            raise InvalidSubject("its rounds cannot be watched; update the library")

    report = run_audit(Unreadable(), WIDE)
    assert report.verdict.sentence == "INVALID: its rounds cannot be watched; update the library"
    assert report.num_tokens == 0


def test_tokens_of_the_control_count_as_scored() -> None:
    control = Scripted(changes={"scoring": "rescored"}, num_batches=1)
    subject = Scripted(changes={"scoring": "rescored"}, control=control, num_batches=2)
    session = AuditSession(subject, WIDE)
    session.run()
    assert session.num_tokens == session.main.evidence.num_tokens + 128
