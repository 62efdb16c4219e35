"""A verdict as an assertion."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from fairdraft.audit.session import run_audit
from fairdraft.audit.settings import AuditSettings, OraclePolicy
from fairdraft.audit.subject import Subject

if TYPE_CHECKING:
    from fairdraft.audit.report.document import Report

__all__ = ["NotLossless", "assert_lossless"]

#: columns of the table in a message
WIDTH = 100


class NotLossless(AssertionError):
    """The verdict was none that passes.

    Attributes:
        report: Everything that the audit found.
        path: Where it was written, or None.
    """

    def __init__(self, report: Report, path: Path | None = None) -> None:
        super().__init__(_message(report, path))
        self.report = report
        self.path = path


def assert_lossless(
    subject: Subject,
    *,
    eps: float = 0.01,
    alpha: float = 1e-6,
    delta: float = 0.01,
    eps0: float | None = None,
    max_tokens: int = 1_000_000,
    max_seconds: float | None = None,
    oracles: OraclePolicy = OraclePolicy.FAIL,
    report_path: str | os.PathLike[str] | None = None,
) -> Report:
    """Audits a subject and raises unless it passes.

    Args:
        subject: What decodes: a `SamplerSubject`, or any other of `fairdraft.audit.subjects`.
        eps: Largest averaged total variation over a family's cells that passes.
        alpha: Most probability of FAIL for a right sampler: how often this assertion is wrong.
        delta: Most probability of PASS for a sampler that is off by more than eps.
        eps0: Numeric tolerance a token (total variation); None takes the subject's own.
        max_tokens: Tokens after which there must be a verdict.
        max_seconds: Seconds likewise; None for no limit.
        oracles: As in `AuditSettings`.
        report_path: If the assertion fails, the report is written there, as JSON.

    Returns:
        The report of PASS or BIASED_WITHIN_TOLERANCE.

    Raises:
        NotLossless: An AssertionError, on FAIL, INCONCLUSIVE and INVALID. It holds the verdict
            sentence, the bug's name or the reason, and the table.
        ValueError: If a number is out of range.
    """
    settings = AuditSettings(
        eps=eps,
        alpha=alpha,
        delta=delta,
        eps0=eps0,
        max_tokens=max_tokens,
        max_seconds=max_seconds,
        oracles=oracles,
    )
    report = run_audit(subject, settings)
    if report.exit_code == 0:
        return report
    path = None
    if report_path is not None:
        path = Path(report_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        report.write(path)
    raise NotLossless(report, path)


def _message(report: Report, path: Path | None) -> str:
    verdict = report.verdict
    lines = [verdict.sentence]
    if verdict.diagnosis is not None:
        lines.append(f"the bug: {verdict.diagnosis}")
    if verdict.needed_tokens is not None:
        lines.append(
            f"about {verdict.needed_tokens:,} tokens are needed; raise max_tokens to that, or eps"
        )
    lines += [f"  {reason}" for reason in verdict.reasons if reason not in verdict.sentence]
    if path is not None:
        lines.append(f"report: {path}")
    return "\n".join([*lines, _table(report)])


def _table(report: Report) -> str:
    from rich.console import Console

    from fairdraft.audit.report.table import print_report

    text = io.StringIO()
    print_report(report, Console(file=text, width=WIDTH, color_system=None, highlight=False))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
