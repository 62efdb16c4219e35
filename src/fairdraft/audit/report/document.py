"""The document that an audit ends in: a `Report`, and its JSON form."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairdraft.audit.report.codec import LogEvidence, decode, encode
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
class FamilyEntry:
    """One family of cells: counts against what the target expects.

    Attributes:
        name: Of the family.
        title: For people.
        labels: One for each cell.
        num_tokens: Tokens that the family counted.
        observed: Tokens in each cell.
        expected: Sum of the target's probabilities of each cell.
        tv: Total variation between the two as shares; None where nothing was counted, as below.
        floor: What a right sampler shows with as many tokens.
        tv_debiased: tv with the floor taken out, at least 0; for display.
        lower: Lower confidence bound of the averaged total variation.
        upper: Upper confidence bound.
        log10_e: Evidence of this family alone.
        is_diagnostic: Reported, but no part of the verdict.
        is_localized: Named by the e-BH procedure at the end of the run.
    """

    name: str
    title: str
    labels: tuple[str, ...]
    num_tokens: int
    observed: tuple[int, ...]
    expected: tuple[float, ...]
    tv: float | None
    floor: float | None
    tv_debiased: float | None
    lower: float | None
    upper: float | None
    log10_e: LogEvidence
    is_diagnostic: bool
    is_localized: bool

    def __post_init__(self) -> None:
        cells = len(self.labels)
        if len(self.observed) != cells or len(self.expected) != cells:
            raise ValueError(
                f"family {self.name!r} has {cells} labels, {len(self.observed)} observed and "
                f"{len(self.expected)} expected counts; give one of each a cell"
            )


@dataclass(frozen=True)
class TemplateEntry:
    """One bug whose exact law was compared with the target's.

    Attributes:
        name: Of the template.
        title: What the bug is, a clause.
        num_tokens: Tokens on which its law differs from the target's.
        log10_e: Evidence of this bug's law against the target's.
        is_localized: Named by the e-BH procedure at the end of the run.
    """

    name: str
    title: str
    num_tokens: int
    log10_e: LogEvidence
    is_localized: bool


@dataclass(frozen=True)
class SlotEntry:
    """Drafts tested at one slot of a round.

    Attributes:
        slot: Index of the draft in its round.
        tested: Drafts that were tested there.
        accepted: Drafts that stood.
        expected: Sum of the acceptance probabilities, sum over tokens of min(p, q).
    """

    slot: int
    tested: int
    accepted: int
    expected: float


@dataclass(frozen=True)
class PositionEntry:
    """Deviation over a range of positions in the text; `last` is included."""

    first: int
    last: int
    num_tokens: int
    tv: float
    lower: float
    upper: float


@dataclass(frozen=True)
class AgreementEntry:
    """How often a token equals the one that the text before had `lag` positions further on."""

    lag: int
    pairs: int
    observed: int
    expected: float


@dataclass(frozen=True)
class Heat:
    """Counts by slot (rows) and q/p octile (columns).

    Attributes:
        slots: A label for each row.
        octiles: A label for each column.
        observed: Tokens.
        expected: Sums of the target's probabilities.
    """

    slots: tuple[str, ...]
    octiles: tuple[str, ...]
    observed: tuple[tuple[int, ...], ...]
    expected: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        for name, rows in (("observed", self.observed), ("expected", self.expected)):
            widths = {len(row) for row in rows}
            if len(rows) != len(self.slots) or not widths <= {len(self.octiles)}:
                raise ValueError(
                    f"heat.{name} is no table of {len(self.slots)} slots by "
                    f"{len(self.octiles)} octiles"
                )


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
    families: tuple[FamilyEntry, ...]
    templates: tuple[TemplateEntry, ...]
    slots: tuple[SlotEntry, ...]
    positions: tuple[PositionEntry, ...]
    agreement: tuple[AgreementEntry, ...]
    heat: Heat | None
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
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from error


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Puts text into a file in one step, so that no reader and no crash meets half of it."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with open(beside, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
