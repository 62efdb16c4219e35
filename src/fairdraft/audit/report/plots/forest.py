"""How far each family is from the target, with the band that is tolerated."""

from __future__ import annotations

from fairdraft.audit.report.document import Report
from fairdraft.audit.report.findings import kind_of
from fairdraft.audit.report.plots.canvas import BAD, GOOD, HALO, INK, LINE, SMALL, UNSURE, canvas
from fairdraft.audit.report.plots.plot import Plot
from fairdraft.audit.report.wording import distance
from fairdraft.stats.summary import FamilySummary

NAME = "deviations"
TITLE = "Deviation of each family"
ROW = 33
_KINDS = {
    "beyond": (BAD, "D", "beyond eps"),
    "within": (GOOD, "o", "within eps"),
    "open": (UNSURE, "s", "not settled"),
}


def forest_plot(report: Report) -> Plot:
    """Draws the debiased total variation of each family with its interval, eps as a band."""
    rows = [family for family in report.families if family.tv is not None]
    if not rows:
        return Plot(NAME, TITLE, "", missing="No family counted a token.")
    rows.sort(key=lambda family: family.is_diagnostic)
    eps = float(report.settings["eps"])
    limit = _limit(rows, eps)
    reading = _reading(rows, eps)
    with canvas(NAME, 76 + ROW * len(rows)) as drawing:
        axes = drawing.axes
        axes.axvspan(0.0, eps, color=GOOD, alpha=0.10, linewidth=0)
        axes.axvline(eps, color=GOOD, linewidth=1.4)
        shown = []
        for place, family in enumerate(rows):
            kind = kind_of(family, eps)
            shown.append(kind)
            _draw_row(axes, place, family, kind, limit)
        axes.text(eps, -0.72, f" eps = {eps:g}", color=GOOD, va="center", fontsize=SMALL, gid=HALO)
        axes.set_ylim(len(rows) - 0.45, -1.0)
        axes.set_xlim(0.0, limit)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("total variation, floor taken out")
        axes.locator_params(axis="x", nbins=5)
        axes.tick_params(length=0)
        drawing.legend(_legend(shown))
        svg = drawing.svg(TITLE, reading)
    return Plot(NAME, TITLE, reading, svg)


def _limit(rows: list[FamilySummary], eps: float) -> float:
    uppers = sorted(family.upper or 0.0 for family in rows)
    points = max(family.tv_debiased or 0.0 for family in rows)
    # one family with few tokens must not press all others against the left edge
    middle = uppers[len(uppers) // 2]
    return max(1.5 * eps, 1.15 * points, min(1.08 * uppers[-1], 3.0 * middle))


def _draw_row(axes, place: int, family: FamilySummary, kind: str, limit: float) -> None:
    assert family.lower is not None and family.upper is not None
    color, marker, _ = _KINDS[kind]
    faint = 0.55 if family.is_diagnostic else 1.0
    title = family.name + (" (diagnostic)" if family.is_diagnostic else "")
    axes.text(0.008 * limit, place - 0.06, title, color=INK, va="bottom", fontsize=SMALL, gid=HALO)
    height = place + 0.22
    end = min(family.upper, limit)
    axes.plot([family.lower, end], [height] * 2, color=color, linewidth=2.4, alpha=faint)
    if family.upper > limit:
        axes.plot([limit], [height], ">", color=color, clip_on=False, alpha=faint)
    axes.plot(
        [family.tv_debiased],
        [height],
        marker,
        color=color,
        markersize=6.5,
        alpha=faint,
        clip_on=False,
    )
    axes.axhline(place + 0.48, color=LINE, linewidth=0.6)


def _legend(shown: list[str]) -> list:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=color, marker=marker, linewidth=2.4, markersize=6.5, label=label)
        for kind, (color, marker, label) in _KINDS.items()
        if kind in shown
    ]


def _reading(rows: list[FamilySummary], eps: float) -> str:
    judged = [family for family in rows if not family.is_diagnostic] or rows
    largest = max(judged, key=lambda family: family.tv_debiased or 0.0)
    widest = max(judged, key=lambda family: family.upper or 0.0)
    return (
        "The point is the measured deviation, the bar its confidence interval, the band what eps "
        f"tolerates. The largest deviation is {distance(largest.tv_debiased)} "
        f"({largest.name}); the highest upper bound is {distance(widest.upper)} "
        f"({widest.name}) against eps = {eps:g}."
    )
