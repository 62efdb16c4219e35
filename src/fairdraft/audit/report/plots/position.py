"""Deviation by position in the text."""

from __future__ import annotations

from fairdraft.audit.report.document import Report
from fairdraft.audit.report.plots.canvas import BAD, GOOD, UNSURE, canvas
from fairdraft.audit.report.plots.plot import Plot
from fairdraft.audit.report.wording import distance
from fairdraft.stats.summary import PositionSummary

NAME = "positions"
TITLE = "Deviation by position"
HEIGHT = 230


def position_plot(report: Report) -> Plot:
    """Draws the total variation over ranges of positions with its interval."""
    rows = [row for row in report.positions if row.num_tokens]
    if not rows:
        return Plot(NAME, TITLE, "", missing="No position was counted.")
    eps = float(report.settings["eps"])
    worst = max(rows, key=lambda row: row.lower)
    found = "No range is shown to deviate."
    if worst.lower > 0.0:
        found = f"The highest lower bound is {distance(worst.lower)}, at {_range(worst, ' to ')}."
    reading = (
        "A fault that begins at some position, such as a clamped counter near the length limit, "
        "shows as a step. Few tokens in a range make a wide bar; the floor is not taken out here. "
        f"{found}"
    )
    with canvas(NAME, HEIGHT) as drawing:
        axes = drawing.axes
        axes.axhspan(0.0, eps, color=GOOD, alpha=0.10, linewidth=0)
        axes.axhline(eps, color=GOOD, linewidth=1.4, label=f"eps = {eps:g}")
        for place, row in enumerate(rows):
            color, marker = UNSURE, "s"
            if row.lower > eps:
                color, marker = BAD, "D"
            elif row.upper <= eps:
                color, marker = GOOD, "o"
            axes.plot([place] * 2, [row.lower, row.upper], color=color, linewidth=2.4)
            axes.plot([place], [row.tv], marker, color=color, markersize=6)
        axes.set_xlim(-0.6, len(rows) - 0.4)
        axes.set_ylim(0.0, _limit(rows, eps))
        names = [_range(row, "–") for row in rows]
        step = max(1, -(-len(rows) // 6))
        axes.set_xticks(range(0, len(rows), step), names[::step])
        axes.set_xlabel("position in the text")
        axes.set_ylabel("total variation")
        axes.grid(axis="y")
        axes.tick_params(length=0)
        axes.locator_params(axis="y", nbins=5)
        drawing.legend()
        svg = drawing.svg(TITLE, reading)
    return Plot(NAME, TITLE, reading, svg)


def _limit(rows: list[PositionSummary], eps: float) -> float:
    # a range of few tokens must not press all others down
    uppers = sorted(row.upper for row in rows)
    points = max(row.tv for row in rows)
    return max(1.5 * eps, 1.15 * points, min(1.08 * uppers[-1], 2.5 * uppers[len(uppers) // 2]))


def _range(row: PositionSummary, to: str) -> str:
    return f"{row.first}{to}{row.last}" if row.last > row.first else str(row.first)
