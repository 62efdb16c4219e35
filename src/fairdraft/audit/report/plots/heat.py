"""Observed over expected by q/p octile and slot."""

from __future__ import annotations

from fairdraft.audit.report.document import Report
from fairdraft.audit.report.findings import Z_99, cell_ratios
from fairdraft.audit.report.plots.canvas import INK, LINE, MUTED, OVER, SURFACE, UNDER, canvas
from fairdraft.audit.report.plots.plot import Plot

NAME = "heat"
TITLE = "Observed / expected by q/p octile and slot"
ROW = 44
_MISSING = (
    "The draft's probabilities, or a token's place in its round, are not known for any token."
)


def heat_plot(report: Report) -> Plot:
    """Draws one cell for each octile and slot, its ratio written into it."""
    if report.heat is None or not any(map(any, report.heat.observed)):
        return Plot(NAME, TITLE, "", missing=_MISSING)
    table = cell_ratios(report)
    heat = report.heat
    known = [cell for row in table for cell in row if cell is not None]
    widest = max([0.08, *(abs(cell.ratio - 1.0) for cell in known)])
    reading = _reading(known)
    with canvas(NAME, 92 + ROW * len(heat.slots)) as drawing:
        axes = drawing.axes
        for y, row in enumerate(table):
            for x, cell in enumerate(row):
                _draw_cell(axes, x, y, cell, widest)
        axes.set_xlim(0, len(heat.octiles))
        axes.set_ylim(len(heat.slots), 0)
        axes.set_xticks([x + 0.5 for x in range(len(heat.octiles))], _short(heat.octiles))
        axes.set_yticks([y + 0.5 for y in range(len(heat.slots))], heat.slots)
        axes.set_xlabel("q/p octile, the last is what the draft prefers")
        axes.set_ylabel("slot")
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        svg = drawing.svg(TITLE, reading)
    return Plot(NAME, TITLE, reading, svg)


def _short(labels: tuple[str, ...]) -> list[str]:
    return [label.removeprefix("q/p ").removeprefix("octile ") for label in labels]


def _draw_cell(axes, x: int, y: int, cell, widest: float) -> None:
    from matplotlib.patches import Rectangle

    frame = Rectangle((x + 0.03, y + 0.03), 0.94, 0.94, facecolor=SURFACE, edgecolor=LINE, lw=0.8)
    axes.add_patch(frame)
    if cell is None:
        axes.text(x + 0.5, y + 0.5, "few", ha="center", va="center", color=MUTED, fontsize=10)
        return
    strength = 0.85 * min(abs(cell.ratio - 1.0) / widest, 1.0)
    color = OVER if cell.ratio > 1.0 else UNDER
    axes.add_patch(
        Rectangle((x + 0.03, y + 0.03), 0.94, 0.94, facecolor=color, alpha=strength, lw=0)
    )
    stands_out = abs(cell.z) > Z_99
    if stands_out:
        axes.add_patch(
            Rectangle((x + 0.06, y + 0.06), 0.88, 0.88, facecolor="none", edgecolor=INK, lw=1.6)
        )
    axes.text(
        x + 0.5,
        y + 0.5,
        f"{cell.ratio:.2f}",
        ha="center",
        va="center",
        color=INK,
        fontsize=11,
        fontweight="bold" if stands_out else "normal",
    )


def _reading(known: list) -> str:
    outside = [cell for cell in known if abs(cell.z) > Z_99]
    lead = (
        "1.00 is what the target asks for; orange cells came up too often, blue ones too rarely. "
        "A frame marks a cell outside its 99% interval: "
    )
    found = f"{len(outside)} of {len(known)} here, about {0.01 * len(known):.1g} by chance."
    if not outside:
        return lead + found
    worst = max(outside, key=lambda cell: abs(cell.z))
    return f"{lead}{found} The furthest is slot {worst.slot}, {worst.octile}, at {worst.ratio:.3f}."
