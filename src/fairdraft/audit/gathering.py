"""Batches of one subject on their way into the evidence."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fairdraft.audit.checks import BatchChecks
from fairdraft.audit.settings import AuditSettings
from fairdraft.audit.subject import Batch, InvalidSubject, Subject
from fairdraft.stats.evidence import Evidence, EvidenceSettings
from fairdraft.stats.verdict import Verdict, VerdictState

__all__ = ["Gathering"]


class Gathering:
    """What one subject has shown so far; a batch counts whole or not at all.

    Args:
        subject: What decodes.
        settings: Limits.
        eps0: Numeric tolerance a token.

    Attributes:
        subject: The same.
        info: Of the subject.
        evidence: From every batch so far.
        checks: Likewise.
        notes: Of the batches, each sentence once.
        invalid: Why the subject cannot be judged, or None.
    """

    def __init__(self, subject: Subject, settings: AuditSettings, eps0: float) -> None:
        self.subject, self.info = subject, subject.info
        self._limits = EvidenceSettings(
            eps=settings.eps,
            alpha=settings.alpha,
            delta=settings.delta,
            eps0=eps0,
            sampler=self.info.sampler,
            rule=self.info.rule,
        )
        self.evidence = Evidence(self._limits)
        self.checks = BatchChecks(self.info)
        self.notes: list[str] = []
        self.invalid: str | None = None
        self._cursor: Any = None
        # every batch so far, in the form that a file would hold
        self._snapshot = json.dumps(self.state())

    def begin(self) -> None:
        """Makes the checks that need no token."""
        try:
            self.checks.begin()
        except InvalidSubject as reason:
            self.invalid = str(reason)

    def run(self, go_on: Callable[[], bool]) -> None:
        """Takes batches until there is a verdict, the subject ends, or `go_on` says no.

        Args:
            go_on: Asked after every batch.
        """
        self.begin()
        if self.verdict().state is not VerdictState.INCONCLUSIVE:
            return
        try:
            for batch in self.subject.batches(self._cursor):
                self._take(batch)
                is_open = self.evidence.verdict().state is VerdictState.INCONCLUSIVE
                if not go_on() or not is_open:
                    return
        except InvalidSubject as reason:
            self.invalid = str(reason)

    def verdict(self) -> Verdict:
        """The verdict on every batch so far."""
        reason = self.invalid or self.checks.reason_at_the_end()
        return self.evidence.verdict() if reason is None else invalid_verdict(reason)

    def state(self) -> dict[str, Any]:
        """Everything that `restore` needs, as JSON values."""
        return {
            "evidence": self.evidence.state(),
            "checks": self.checks.state(),
            "cursor": self._cursor,
            "notes": self.notes,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken, bit for bit.

        Why a subject could not be judged is forgotten: a server that was down may be up again, and
        what is wrong for good is found again.

        Raises:
            ValueError: If it is of other settings or another version.
        """
        self.evidence = Evidence(self._limits)
        self.evidence.restore(state["evidence"])
        self.checks = BatchChecks(self.info, state["checks"])
        self._cursor = state["cursor"]
        self.notes = list(state["notes"])
        self.invalid = None
        self._snapshot = json.dumps(self.state())

    def _take(self, batch: Batch) -> None:
        try:
            self.checks.check(batch.tokens)
            try:
                self.evidence.add(batch.tokens)
            except ValueError as error:
                raise InvalidSubject(f"a batch cannot be scored: {error}") from error
            for sentence in batch.notes:
                if sentence not in self.notes:
                    self.notes.append(sentence)
            self._cursor = batch.cursor
            self._snapshot = json.dumps(self.state())
        except BaseException:
            # half a batch is in; what was there before is not lost for it
            self.restore(json.loads(self._snapshot))
            raise


def invalid_verdict(reason: str) -> Verdict:
    """INVALID, with its reason."""
    reasons = (reason, "nothing is said about the tokens")
    return Verdict(VerdictState.INVALID, f"INVALID: {reason}", None, reasons)
