"""From processes and tables to the plain values of a summary."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fairdraft.stats.equivalence import bounds, mixture_weight
from fairdraft.stats.families import FAMILIES, NUM_SLOTS, Family
from fairdraft.stats.fdr import e_bh
from fairdraft.stats.octiles import OCTILE_LABELS
from fairdraft.stats.summary import (
    AgreementSummary,
    EvidenceSummary,
    FamilySummary,
    HeatSummary,
    PositionSummary,
    SlotSummary,
    TemplateSummary,
)
from fairdraft.stats.templates import TEMPLATES
from fairdraft.stats.view import LAGS

if TYPE_CHECKING:
    from fairdraft.stats.evidence import Evidence

__all__ = ["delta_share", "summarize"]

_IMPOSSIBLE_TITLE = "tokens of probability zero come out"


def delta_share(delta: float) -> float:
    """The part of delta that each family's bound may use: equal, and fixed before the data."""
    return delta / sum(not family.is_diagnostic for family in FAMILIES)


def summarize(evidence: Evidence) -> EvidenceSummary:
    """Sums evidence up."""
    localized = e_bh(evidence.log_evidence(), evidence.settings.alpha)
    families = tuple(_family(evidence, family, localized) for family in FAMILIES)
    return EvidenceSummary(
        num_tokens=evidence.num_tokens,
        num_texts=evidence.num_texts,
        num_impossible=evidence.num_impossible,
        log10_e=evidence.log10_e,
        sup_log10_e=evidence.sup_log10_e,
        curve=tuple(evidence.curve),
        families=families,
        templates=_templates(evidence, localized),
        slots=_slots(evidence),
        positions=_positions(evidence),
        agreement=_agreement(families),
        heat=_heat(families),
        coverage=_coverage(families),
    )


def _family(evidence: Evidence, family: Family, localized: set[str]) -> FamilySummary:
    process = evidence.tilts.get(family.name)
    is_empty = process is None or not process.num_tokens
    values: dict[str, float | None] = dict.fromkeys(
        ("tv", "floor", "tv_debiased", "lower", "upper")
    )
    if process is not None and not is_empty:
        settings = evidence.settings
        found = bounds(
            process.observed,
            process.expected,
            delta_share(settings.delta),
            mixture_weight(settings.eps),
        )
        values = {
            "tv": found.tv,
            "floor": found.floor,
            "tv_debiased": found.debiased,
            "lower": found.lower,
            "upper": found.upper,
        }
    zeros = [0] * family.num_cells
    return FamilySummary(
        name=family.name,
        title=family.title,
        labels=family.labels,
        num_tokens=process.num_tokens if process else 0,
        observed=tuple(process.observed.tolist() if process else zeros),
        expected=tuple(process.expected.tolist() if process else map(float, zeros)),
        log10_e=process.log_e / math.log(10.0) if process else 0.0,
        is_diagnostic=family.is_diagnostic,
        is_localized=family.name in localized,
        **values,
    )


def _templates(evidence: Evidence, localized: set[str]) -> tuple[TemplateSummary, ...]:
    titles = {template.name: template.title for template in TEMPLATES}
    return tuple(
        TemplateSummary(
            name,
            titles.get(name, _IMPOSSIBLE_TITLE),
            process.num_tokens,
            process.log_e / math.log(10.0),
            name in localized,
        )
        for name, process in evidence.bets.items()
    )


def _slots(evidence: Evidence) -> tuple[SlotSummary, ...]:
    table = evidence.slots
    return tuple(
        SlotSummary(slot, int(tested), int(table.accepted[slot]), float(table.expected[slot]))
        for slot, tested in enumerate(table.tested)
        if tested
    )


def _positions(evidence: Evidence) -> tuple[PositionSummary, ...]:
    """By the first family that has seen tokens; each bound fails with probability delta."""
    settings = evidence.settings
    table = next((t for t in evidence.positions.values() if t.observed.any()), None)
    if table is None:
        return ()
    entries = []
    for number, (observed, expected) in enumerate(zip(table.observed, table.expected, strict=True)):
        if not observed.any():
            continue
        found = bounds(observed, expected, settings.delta, mixture_weight(settings.eps))
        limits = table.limits(number)
        count = int(observed.sum())
        entries.append(PositionSummary(*limits, count, found.tv, found.lower, found.upper))
    return tuple(entries)


def _agreement(families: tuple[FamilySummary, ...]) -> tuple[AgreementSummary, ...]:
    by_name = {family.name: family for family in families}
    entries = []
    for lag in sorted(LAGS):
        family = by_name[f"agreement lag {lag}"]
        if family.num_tokens:
            entries.append(
                AgreementSummary(lag, family.num_tokens, family.observed[0], family.expected[0])
            )
    return tuple(entries)


def _heat(families: tuple[FamilySummary, ...]) -> HeatSummary | None:
    family = next(family for family in families if family.name == "slot x q/p")
    if not family.num_tokens:
        return None
    width = len(OCTILE_LABELS)
    starts = range(0, NUM_SLOTS * width, width)
    return HeatSummary(
        ("0", "1", "2+"),
        OCTILE_LABELS,
        tuple(family.observed[start : start + width] for start in starts),
        tuple(family.expected[start : start + width] for start in starts),
    )


def _coverage(families: tuple[FamilySummary, ...]) -> tuple[str, ...]:
    declared = [family for family in families if not family.is_diagnostic]
    tested = [family.name for family in declared if family.num_tokens]
    missing = [family.name for family in declared if not family.num_tokens]
    sentences = [f"tested: {', '.join(tested) or 'nothing'}"]
    if missing:
        sentences.append(f"not tested, no token was eligible: {', '.join(missing)}")
    sentences.append("a deviation that leaves every cell of these families alone goes unseen")
    return tuple(sentences)
