"""Evidence against tokens, with the line at which a verdict of bias falls."""

from __future__ import annotations

import math

from fairdraft.audit.report.document import Report
from fairdraft.audit.report.findings import crossing, threshold
from fairdraft.audit.report.plots.canvas import BAD, GOOD, HALO, INK, LINE, MUTED, SMALL, canvas
from fairdraft.audit.report.plots.plot import Plot
from fairdraft.audit.report.wording import count, power_of_ten, short_count

NAME = "evidence"
TITLE = "Evidence against tokens"
HEIGHT = 270
_MAX_POINTS = 600


def evidence_plot(report: Report) -> Plot:
    """Draws log10 of the merged evidence after each batch of tokens."""
    if not report.curve:
        return Plot(NAME, TITLE, "", missing="No token was scored, so there is no evidence.")
    limit = threshold(report)
    at = crossing(report)
    reading = _reading(report, limit, at)
    tokens, heights = zip(*_thin(report.curve), strict=True)
    finite = [value for value in heights if math.isfinite(value)]
    top = max([limit * 1.25, *(value * 1.06 for value in finite)])
    bottom = min([-0.06 * top, *(value - 0.04 * top for value in finite)])
    with canvas(NAME, HEIGHT) as drawing:
        axes = drawing.axes
        axes.axhline(0.0, color=LINE, linewidth=1.0)
        axes.axhline(limit, color=BAD, linewidth=1.6, dashes=(5, 3))
        xs, ys = (0, *tokens), (0.0, *(min(max(value, bottom), top) for value in heights))
        axes.plot(xs, ys, color=BAD if at is not None else GOOD, linewidth=2.0)
        _mark_limit(axes, limit, top, report.settings["alpha"], tokens[-1])
        if at is not None:
            height = min(dict(report.curve)[at], top)
            axes.plot([at], [height], "D", color=BAD, markersize=6)
        axes.plot([tokens[-1]], [ys[-1]], "o", color=INK, markersize=4, clip_on=False)
        axes.set_xlim(0, max(tokens[-1], 1) * 1.02)
        axes.set_ylim(bottom, top)
        axes.grid(axis="y")
        axes.set_xlabel("tokens scored")
        axes.set_ylabel("log10 of the evidence")
        axes.xaxis.set_major_formatter(lambda value, _: short_count(value))
        axes.locator_params(axis="x", nbins=5)
        axes.tick_params(length=0)
        svg = drawing.svg(TITLE, reading)
    return Plot(NAME, TITLE, reading, svg)


def _mark_limit(axes, limit: float, top: float, alpha: float, width: int) -> None:
    # under the line where the room above it ends
    above = limit < 0.85 * top
    axes.annotate(
        f"bias is certain from here (1/α = {1.0 / alpha:,.0f})",
        (width * 1.02, limit),
        xytext=(-2, 4 if above else -4),
        textcoords="offset points",
        ha="right",
        va="bottom" if above else "top",
        color=MUTED,
        fontsize=SMALL,
        gid=HALO,
    )


def _reading(report: Report, limit: float, at: int | None) -> str:
    end = f"It ends at {power_of_ten(report.log10_e)} after {count(report.num_tokens)} tokens"
    if at is not None:
        return (
            f"It passed the line of {power_of_ten(limit)} at {count(at)} tokens, which a right "
            f"sampler does in at most a share α of all runs. {end}."
        )
    return (
        "Evidence of bias grows steadily where there is bias and stays low where there is none. "
        f"{end}; the line at {power_of_ten(limit)} was not reached."
    )


def _thin(curve: tuple[tuple[int, float], ...]) -> list[tuple[int, float]]:
    step = max(1, math.ceil(len(curve) / _MAX_POINTS))
    kept = list(curve[::step])
    return kept if kept[-1] == curve[-1] else [*kept, curve[-1]]
