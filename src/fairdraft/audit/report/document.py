"""The document that an audit ends in: a `Report`, and its JSON form."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairdraft.audit.report.codec import decode, encode
from fairdraft.audit.whole_file import write_text
from fairdraft.stats.summary import (
    AgreementSummary,
    FamilySummary,
    HeatSummary,
    LogEvidence,
    PositionSummary,
    SlotSummary,
    TemplateSummary,
)
from fairdraft.stats.verdict import EXIT_CODES

SCHEMA = "fairdraft/audit/1"
REQUIRED_SETTINGS = ("eps", "alpha", "delta", "eps0")
_STATES = {str(state): code for state, code in EXIT_CODES.items()}


@dataclass(frozen=True)
class VerdictEntry:
    """What was decided.

    Attributes:
        state: "PASS", "FAIL", "BIASED_WITHIN_TOLERANCE", "INCONCLUSIVE" or "INVALID".
        sentence: The verdict in words, with its numbers.
        diagnosis: What the bug looks like, if something fits.
        reasons: Sentences that led there.
        needed_tokens: How many tokens a verdict needs in all, if there is none yet.
        exit_code: Of the process.
    """

    state: str
    sentence: str
    diagnosis: str | None
    reasons: tuple[str, ...]
    needed_tokens: int | None
    exit_code: int

    def __post_init__(self) -> None:
        if self.state not in _STATES:
            raise ValueError(f"verdict.state is {self.state!r}, not one of {', '.join(_STATES)}")
        if self.exit_code != _STATES[self.state]:
            raise ValueError(
                f"verdict.exit_code is {self.exit_code}, but {self.state} ends with "
                f"{_STATES[self.state]}"
            )


@dataclass(frozen=True)
class SubjectEntry:
    """What was audited; the fields of `SubjectInfo`."""

    kind: str
    name: str
    parameters: dict[str, Any]
    scoring: str
    is_speculative: bool
    sampler: str
    rule: str | None
    duplicates_declared: bool


@dataclass(frozen=True)
class Report:
    """Everything an audit found.

    Attributes:
        version: Of fairdraft.
        created: Time of the verdict, ISO 8601 with its zone.
        verdict: What was decided.
        subject: What was audited.
        settings: eps, alpha, delta and eps0 at least, and whatever else the run was asked for.
        num_tokens: Tokens scored.
        num_texts: Texts they came from.
        seconds: Time spent, over all sittings.
        log10_e: Merged evidence at the end.
        sup_log10_e: The most it ever was.
        curve: (tokens, log10 merged evidence), ascending.
        families: In the order they are declared.
        templates: In any order.
        slots: Acceptance by slot; empty where it is unknown.
        positions: Deviation by position.
        agreement: Cross-request agreement by lag.
        heat: q/p octile by slot; None where the draft's law is unknown.
        notes: Sentences about what happened in the run.
        coverage: Sentences on what was tested and what was not.
        num_impossible: Tokens to which the target gave probability 0.
        environment: Versions and the machine.
        command: What ran it, if a command did.
        schema: Of the document.
    """

    version: str
    created: str
    verdict: VerdictEntry
    subject: SubjectEntry
    settings: dict[str, Any]
    num_tokens: int
    num_texts: int
    seconds: float
    log10_e: LogEvidence
    sup_log10_e: LogEvidence
    curve: tuple[tuple[int, LogEvidence], ...]
    families: tuple[FamilySummary, ...]
    templates: tuple[TemplateSummary, ...]
    slots: tuple[SlotSummary, ...]
    positions: tuple[PositionSummary, ...]
    agreement: tuple[AgreementSummary, ...]
    heat: HeatSummary | None
    notes: tuple[str, ...]
    coverage: tuple[str, ...] = ()
    num_impossible: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    command: str | None = None
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise ValueError(f"schema is {self.schema!r}; this version reads {SCHEMA!r}")
        for name in REQUIRED_SETTINGS:
            value = self.settings.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"settings.{name} is {value!r}, not a number")

    @property
    def exit_code(self) -> int:
        """What the process ends with."""
        return self.verdict.exit_code

    def to_json(self) -> dict[str, Any]:
        """Returns the document as JSON values, the schema first.

        Raises:
            ValueError: If something has no JSON form, such as NaN.
        """
        return {"schema": self.schema, **encode(self)}

    @classmethod
    def from_json(cls, document: Any) -> Report:
        """Reads a document that `to_json` made.

        Raises:
            ValueError: If it is of another schema, or a field is missing, unknown, or not of its
                kind; the message gives the field's path.
        """
        if not isinstance(document, dict) or "schema" not in document:
            raise ValueError(f"this is no audit report: it has no field schema {SCHEMA!r}")
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema is {document['schema']!r}; this version reads {SCHEMA!r}")
        return decode(cls, document)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the document to a file, whole or not at all.

        Raises:
            OSError: If the file cannot be written; an older one then still stands.
        """
        write_text(path, json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Report:
        """Reads a file that `write` made.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If it is no JSON, or not this document; the message names the file.
        """
        try:
            return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{os.fspath(path)}: no report, as it is no JSON: {error}") from error
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from error
