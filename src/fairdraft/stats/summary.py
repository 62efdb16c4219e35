"""What the evidence looks like at one moment, in plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

__all__ = [
    "UNBOUNDED",
    "AgreementSummary",
    "EvidenceSummary",
    "FamilySummary",
    "HeatSummary",
    "LogEvidence",
    "PositionSummary",
    "SlotSummary",
    "TemplateSummary",
]

UNBOUNDED = "may be infinite"
LogEvidence = Annotated[float, UNBOUNDED]
"""A log10 of evidence: one impossible token makes it infinite."""


@dataclass(frozen=True)
class FamilySummary:
    """One family; the distances are None where it has seen no eligible token.

    Attributes:
        name: Its name.
        title: What a deviation means, a clause.
        labels: Its cells.
        num_tokens: Tokens it could speak about.
        observed: Hits by cell.
        expected: Sums of target probabilities by cell.
        tv: Half the sum of |observed - expected|, over the tokens.
        floor: What a correct sampler shows.
        tv_debiased: tv - floor, at least 0.
        lower: Lower bound of the averaged total variation.
        upper: Upper bound.
        log10_e: Its evidence at this moment.
        is_diagnostic: No part of the verdict.
        is_localized: e-BH at level alpha names it.
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
class TemplateSummary:
    """One bug template: its evidence at this moment, and the tokens that it bet on."""

    name: str
    title: str
    num_tokens: int
    log10_e: LogEvidence
    is_localized: bool


@dataclass(frozen=True)
class SlotSummary:
    """Drafts tested and accepted at a slot, and the sum of their acceptance probabilities."""

    slot: int
    tested: int
    accepted: int
    expected: float


@dataclass(frozen=True)
class PositionSummary:
    """Deviation at positions `first` to `last`, both included."""

    first: int
    last: int
    num_tokens: int
    tv: float
    lower: float
    upper: float


@dataclass(frozen=True)
class AgreementSummary:
    """How often a token equals the one at position + lag in the text before."""

    lag: int
    pairs: int
    observed: int
    expected: float


@dataclass(frozen=True)
class HeatSummary:
    """Counts by slot (rows) and q/p octile (columns)."""

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
class EvidenceSummary:
    """Everything a report shows.

    Attributes:
        num_tokens: Tokens seen.
        num_texts: Texts they came from.
        num_impossible: Tokens to which the target gave probability 0.
        log10_e: Merged evidence at this moment.
        sup_log10_e: Its maximum so far.
        curve: (tokens, log10 merged evidence), at most a few hundred points.
        families: In the order of `FAMILIES`.
        templates: In the order of `TEMPLATES`, then the one for impossible tokens.
        slots: Where drafts were tested at known slots.
        positions: By q/p octiles, or ranks where no draft laws are known.
        agreement: By lag.
        heat: None where no token has a slot and a draft law.
        coverage: Sentences on what was tested and what was not.
    """

    num_tokens: int
    num_texts: int
    num_impossible: int
    log10_e: LogEvidence
    sup_log10_e: LogEvidence
    curve: tuple[tuple[int, LogEvidence], ...]
    families: tuple[FamilySummary, ...]
    templates: tuple[TemplateSummary, ...]
    slots: tuple[SlotSummary, ...]
    positions: tuple[PositionSummary, ...]
    agreement: tuple[AgreementSummary, ...]
    heat: HeatSummary | None
    coverage: tuple[str, ...]
