"""What follows from a report's numbers: the line, the crossing, the largest deviations."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairdraft.audit.report.document import Report
from fairdraft.stats.summary import FamilySummary, TemplateSummary

# two-sided 99% of a normal law
Z_99 = 2.5758


@dataclass(frozen=True)
class CellRatio:
    """One cell's observed over expected count, with a pointwise 99% interval.

    The variance of a count is at most what independent draws with the cell's mean probability
    have, whatever depends on what before, so the interval is a little wide, never narrow.
    """

    slot: str
    octile: str
    observed: int
    expected: float
    ratio: float
    lower: float
    upper: float
    z: float


def threshold(report: Report) -> float:
    """log10(1 / alpha), where evidence means bias."""
    return -math.log10(report.settings["alpha"])


def crossing(report: Report) -> int | None:
    """Tokens after which the curve first stood at the threshold or above; None if never."""
    limit = threshold(report)
    return next((tokens for tokens, log10_e in report.curve if log10_e >= limit), None)


def is_by_identity(report: Report) -> bool:
    """Whether a PASS or FAIL was reached without statistics: by addresses, replay or identity."""
    state = report.verdict.state
    if state == "FAIL":
        return report.sup_log10_e < threshold(report)
    return state == "PASS" and not judged_families(report)


def judged_families(report: Report) -> list[FamilySummary]:
    """The families that counted tokens and carry the verdict."""
    return [f for f in report.families if f.tv is not None and not f.is_diagnostic]


def worst_family(report: Report) -> FamilySummary | None:
    """The judged family with the highest upper bound."""
    return max(judged_families(report), key=lambda f: f.upper or 0.0, default=None)


def largest_deviation(report: Report) -> FamilySummary | None:
    """The judged family with the largest debiased deviation."""
    return max(judged_families(report), key=lambda f: f.tv_debiased or 0.0, default=None)


def kind_of(family: FamilySummary, eps: float) -> str:
    """Says on which side of eps a family's interval is: "beyond", "within" or "open"."""
    assert family.lower is not None and family.upper is not None
    if family.lower > eps:
        return "beyond"
    return "within" if family.upper <= eps else "open"


def ranked_templates(report: Report) -> list[TemplateSummary]:
    """Templates, the best supported first; those that never bet come last."""
    return sorted(report.templates, key=lambda t: (t.num_tokens == 0, -t.log10_e))


def ranked_cells(report: Report, most: int = 10) -> list[CellRatio]:
    """The cells of the heat map that are furthest from the target in standard errors."""
    cells = [cell for row in cell_ratios(report) for cell in row if cell is not None]
    return sorted(cells, key=lambda cell: -abs(cell.z))[:most]


def cell_ratios(report: Report) -> list[list[CellRatio | None]]:
    """Observed over expected of each cell of the heat map, None where fewer than 5 are expected."""
    heat = report.heat
    if heat is None:
        return []
    table = []
    for slot, observed, expected in zip(heat.slots, heat.observed, heat.expected, strict=True):
        total = sum(observed)
        pairs = zip(heat.octiles, observed, expected, strict=True)
        table.append([_ratio(slot, octile, o, e, total) for octile, o, e in pairs])
    return table


def _ratio(slot: str, octile: str, observed: int, expected: float, total: int) -> CellRatio | None:
    if expected < 5.0:
        return None
    deviation = math.sqrt(expected * max(1.0 - expected / total, 1e-9))
    half = Z_99 * deviation / expected
    ratio = observed / expected
    return CellRatio(
        slot,
        octile,
        observed,
        expected,
        ratio,
        max(0.0, ratio - half),
        ratio + half,
        (observed - expected) / deviation,
    )
