"""One audit from its first check to its report; stopped and resumed without losing a sample."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fairdraft.audit.gathering import Gathering, invalid_verdict
from fairdraft.audit.oracles import OracleFindings, consult
from fairdraft.audit.progress import OnProgress, progress_of
from fairdraft.audit.saving import check_same, load_state, save_state
from fairdraft.audit.settings import AuditSettings, OraclePolicy
from fairdraft.audit.subject import InvalidSubject, Subject
from fairdraft.stats.verdict import Verdict, VerdictState

if TYPE_CHECKING:
    from fairdraft.audit.report.document import Report

__all__ = ["AuditInterrupted", "AuditSession", "run_audit"]

ShouldStop = Callable[[], bool]


class AuditInterrupted(KeyboardInterrupt):
    """Ctrl-C in the middle of a batch; `report` holds the verdict on every batch before it."""

    def __init__(self, report: Report) -> None:
        super().__init__("the audit was interrupted; the verdict so far is in .report")
        self.report = report


def run_audit(
    subject: Subject,
    settings: AuditSettings | None = None,
    *,
    state_path: str | os.PathLike[str] | None = None,
    on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None,
) -> Report:
    """Audits a subject until there is a verdict or the budget is spent.

    Args:
        subject: What decodes.
        settings: Error rates, tolerance and budget; None for the defaults.
        state_path: File that holds the audit after every batch. If it exists, the audit goes on
            from it, to the same verdict, bit for bit, as if it had never stopped.
        on_progress: Called before every stage and after every batch.
        should_stop: Asked after every batch; True ends the audit there.

    Returns:
        The report. Its verdict is INCONCLUSIVE if the audit ended before there was one.

    Raises:
        ValueError: If the state file is damaged, no state, or of another subject or settings.
        AuditInterrupted: On Ctrl-C; it carries the report so far.
    """
    session = AuditSession(subject, settings, state_path=state_path, on_progress=on_progress)
    return session.run(should_stop)


class AuditSession:
    """An audit that can be run in pieces.

    Args:
        subject: What decodes. If it is rescored and has an attribute `control`, the same decoder
            without speculation, the control is audited first: the A/A run.
        settings: None for the defaults.
        state_path: As in `run_audit`; read here.
        on_progress: As in `run_audit`.

    Attributes:
        subject: The same.
        settings: The same.
        eps0: Numeric tolerance a token.
        main: What the subject has shown.
        control: What the A/A run has shown, or None.
        notes: Sentences on what happened, each once.
    """

    def __init__(
        self,
        subject: Subject,
        settings: AuditSettings | None = None,
        *,
        state_path: str | os.PathLike[str] | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.subject = subject
        self.settings = settings or AuditSettings()
        given = self.settings.eps0
        self.eps0 = subject.info.default_eps0 if given is None else given
        self.main = Gathering(subject, self.settings, self.eps0)
        self.control: Gathering | None = None
        control = getattr(subject, "control", None)
        if self.main.info.scoring == "rescored" and control is not None:
            self.control = Gathering(control, self.settings, self.eps0)
        self.notes: list[str] = []
        self._findings: OracleFindings | None = None
        self._seconds_before = 0.0
        self._began_at: float | None = None
        self._state_path = state_path
        self._is_unsaved = False
        self._on_progress = on_progress
        self._told: set[str] = set()
        if state_path is not None:
            self._resume(state_path)

    def run(self, should_stop: ShouldStop | None = None) -> Report:
        """Goes on until there is a verdict, the budget is spent, or it is told to stop.

        Raises:
            AuditInterrupted: On Ctrl-C; it carries the report so far.
        """
        self._began_at = time.monotonic()
        is_interrupted = False
        try:
            self.main.begin()
            if self._is_open():
                self._consult_oracles()
            if self.control is not None and self._is_open() and not self._is_control_done():
                self._gather("A/A run", self.control, should_stop)
            if self._is_open() and self._is_control_done():
                self._gather("audit", self.main, should_stop)
        except KeyboardInterrupt:
            is_interrupted = True
        self._seconds_before, self._began_at = self.seconds, None
        self._save()
        report = self.report()
        if is_interrupted:
            raise AuditInterrupted(report)
        return report

    @property
    def seconds(self) -> float:
        """Spent so far, over all sittings."""
        now = 0.0 if self._began_at is None else time.monotonic() - self._began_at
        return self._seconds_before + now

    @property
    def num_tokens(self) -> int:
        """Tokens scored so far, those of the A/A run included."""
        control = 0 if self.control is None else self.control.evidence.num_tokens
        return control + self.main.evidence.num_tokens

    def verdict(self) -> Verdict:
        """The verdict on what was gathered so far."""
        verdict = self.main.verdict()
        if verdict.state is VerdictState.INVALID:
            return verdict
        reason = self._unclean_control(verdict.state)
        if reason is not None:
            return invalid_verdict(reason)
        if self._findings is not None and self.settings.oracles is OraclePolicy.FAIL:
            return self._findings.verdict() or verdict
        return verdict

    def report(self) -> Report:
        """The report on what was gathered so far."""
        from fairdraft.audit.report import build_report

        return build_report(
            self.main.evidence.summary(),
            self.verdict(),
            self.main.info,
            self.settings.document(self.eps0),
            seconds=self.seconds,
            notes=self._all_notes(),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the audit to a file that `state_path` goes on from.

        Raises:
            OSError: If it cannot be written.
        """
        save_state(path, self._state())

    def _is_open(self) -> bool:
        return self.verdict().state is VerdictState.INCONCLUSIVE

    def _is_control_done(self) -> bool:
        """Whether the A/A run, if there is one, has a verdict or spent its tokens."""
        control = self.control
        if control is None or control.verdict().state is not VerdictState.INCONCLUSIVE:
            return True
        return control.evidence.num_tokens >= self.settings.max_tokens

    def _unclean_control(self, state: VerdictState) -> str | None:
        """Why the A/A run forbids a verdict, or None."""
        control = self.control
        if control is None:
            return None
        found, num_tokens = control.verdict(), control.evidence.num_tokens
        if found.state is VerdictState.INVALID:
            return f"the A/A run cannot be judged: {found.sentence.removeprefix('INVALID: ')}"
        if found.state in (VerdictState.FAIL, VerdictState.BIASED_WITHIN_TOLERANCE):
            return (
                "the A/A run is not clean: plain decoding, scored in the same way, deviates from "
                f"the reference too ({found.sentence}); score with the decoder's own logprobs, "
                "take the reference's dtype and kernels from the decoder, or declare a larger eps0"
            )
        is_short = found.state is VerdictState.INCONCLUSIVE
        if state is VerdictState.FAIL and is_short and num_tokens < self.main.evidence.num_tokens:
            return (
                f"the A/A run has no verdict after {num_tokens:,} tokens, fewer than the audit "
                "took to deviate, so the deviation may be the scoring's; give the A/A run more "
                "tokens"
            )
        return None

    def _consult_oracles(self) -> None:
        if self.settings.oracles is OraclePolicy.SKIP or self._findings is not None:
            return
        try:
            found = consult(self.subject, lambda stage: self._tell(stage, self.main, 0.0))
        except InvalidSubject as reason:
            self.main.invalid = str(reason)
            return
        self._findings = found
        for sentence in (*found.notes, *found.faults):
            self._note(sentence)
        self._save()

    def _gather(self, stage: str, source: Gathering, should_stop: ShouldStop | None) -> None:
        begin, before = time.monotonic(), source.evidence.num_tokens
        # a resumed audit that has spent its tokens takes no more
        if before >= self.settings.max_tokens:
            return
        self._tell(stage, source, 0.0)

        def go_on() -> bool:
            self._save()
            rate = (source.evidence.num_tokens - before) / (time.monotonic() - begin)
            self._tell(stage, source, rate)
            limit = self.settings.max_seconds
            assert self._began_at is not None
            is_late = limit is not None and time.monotonic() - self._began_at >= limit
            is_spent = source.evidence.num_tokens >= self.settings.max_tokens
            return not (is_late or is_spent or (should_stop is not None and should_stop()))

        source.run(go_on)

    def _tell(self, stage: str, source: Gathering, rate: float) -> None:
        if self._on_progress is None:
            return
        fresh = tuple(note for note in self._all_notes() if note not in self._told)
        self._told.update(fresh)
        self._on_progress(
            progress_of(
                stage,
                source.evidence.summary(),
                source.verdict(),
                alpha=self.settings.alpha,
                eps=self.settings.eps,
                seconds=self.seconds,
                tokens_per_second=rate,
                notes=fresh,
            )
        )

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    def _all_notes(self) -> tuple[str, ...]:
        notes = [*self.notes, *self.main.notes]
        if self.control is not None:
            notes += self.control.notes
            count = self.control.evidence.num_tokens
            if count and self._is_control_done():
                notes.append(f"A/A run, {count:,} tokens: {self.control.verdict().sentence}")
        return tuple(dict.fromkeys(notes))

    def _state(self) -> dict[str, Any]:
        return {
            "identity": self._identity(),
            "main": self.main.state(),
            "control": None if self.control is None else self.control.state(),
            "findings": None if self._findings is None else self._findings.state(),
            "notes": self.notes,
            "seconds": self.seconds,
        }

    def _identity(self) -> dict[str, Any]:
        return {
            "subject": asdict(self.main.info),
            "settings": self.settings.decisive(self.eps0),
        }

    def _save(self) -> None:
        """Saves to the state file, if there is one; a failure is noted and nothing is lost."""
        path = self._state_path
        if path is None:
            return
        try:
            save_state(path, self._state())
        except OSError as error:
            self._is_unsaved = True
            self._note(
                f"the audit could not be saved to {os.fspath(path)} ({error.strerror or error}); "
                "its samples are in memory and it goes on; make room, and it is saved again after "
                "the next batch"
            )
            return
        if self._is_unsaved:
            self._is_unsaved = False
            self._note(f"the audit is saved to {os.fspath(path)} again")

    def _resume(self, path: str | os.PathLike[str]) -> None:
        state = load_state(path)
        if state is None:
            return
        check_same(path, state.get("identity"), self._identity())
        try:
            self.main.restore(state["main"])
            if self.control is not None:
                self.control.restore(state["control"])
            if state["findings"] is not None:
                self._findings = OracleFindings.restore(state["findings"])
            self.notes = list(state["notes"])
            self._seconds_before = float(state["seconds"])
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{os.fspath(path)} lacks what this version saves ({error}); go on with the "
                "version that wrote it, or name another file"
            ) from error
