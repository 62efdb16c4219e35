"""From what an audit knows at its end to the document."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fairdraft import __version__
from fairdraft.audit.processes import num_processors
from fairdraft.audit.report.document import Report, SubjectEntry, VerdictEntry
from fairdraft.audit.subject import SubjectInfo
from fairdraft.stats.summary import EvidenceSummary
from fairdraft.stats.verdict import Verdict

LIBRARIES = ("torch", "transformers", "numpy", "numba")


def build_report(
    summary: EvidenceSummary,
    verdict: Verdict,
    info: SubjectInfo,
    settings: Mapping[str, Any],
    *,
    seconds: float,
    notes: Sequence[str] = (),
    command: str | None = None,
) -> Report:
    """Builds the report of an audit.

    Args:
        summary: Of its evidence.
        verdict: The evidence's own, or one that was reached without statistics.
        info: Of the subject.
        settings: JSON values; eps, alpha, delta and eps0 at least.
        seconds: Time spent, over all sittings.
        notes: Sentences about what happened, each once.
        command: What ran it, if a command did.

    Raises:
        ValueError: If a setting is missing.
    """
    return Report(
        version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        verdict=_verdict_entry(verdict, summary),
        subject=SubjectEntry(**_values(info, SubjectEntry)),
        settings=dict(settings),
        seconds=float(seconds),
        **_values(summary, EvidenceSummary),
        notes=tuple(dict.fromkeys(notes)),
        environment=describe_environment(),
        command=command,
    )


def describe_environment() -> dict[str, str]:
    """Versions and the machine of this process; nothing is imported for it."""
    found = {"fairdraft": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    found["machine"] = f"{platform.system()} {platform.machine()}, {num_processors()} processors"
    return found


def _verdict_entry(verdict: Verdict, summary: EvidenceSummary) -> VerdictEntry:
    # coverage has a place of its own in the document
    reasons = tuple(reason for reason in verdict.reasons if reason not in summary.coverage)
    return VerdictEntry(
        state=str(verdict.state),
        sentence=verdict.sentence,
        diagnosis=verdict.diagnosis,
        reasons=reasons,
        needed_tokens=verdict.needed_tokens,
        exit_code=verdict.exit_code,
    )


def _values(source: Any, kind: type) -> dict[str, Any]:
    """The fields of a dataclass, read off something that has them all."""
    return {field.name: getattr(source, field.name) for field in fields(kind)}
