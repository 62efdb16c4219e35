"""How many tokens a PASS needs at each eps, and where this run stands."""

from __future__ import annotations

from fairdraft.audit.report.document import Report
from fairdraft.audit.report.findings import judged_families
from fairdraft.audit.report.plots.canvas import BAD, GOOD, INK, MUTED, canvas
from fairdraft.audit.report.plots.plot import Plot
from fairdraft.audit.report.wording import count, short_count
from fairdraft.stats.planner import plan_tokens

NAME = "planner"
TITLE = "Tokens that a PASS needs"
HEIGHT = 260
_NUM_POINTS = 19
_TICKS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def planner_plot(report: Report) -> Plot:
    """Draws the tokens that a right sampler needs for a PASS against eps."""
    families = judged_families(report)
    if not families:
        return Plot(NAME, TITLE, "", missing="No token was scored, so there is no run to place.")
    eps = float(report.settings["eps"])
    # the family of the most cells takes longest; its own tokens count
    slowest = max(families, key=lambda family: len(family.labels))
    low, high = max(eps / 5.0, 0.0005), min(eps * 5.0, 0.5)
    grid = [low * (high / low) ** (at / (_NUM_POINTS - 1)) for at in range(_NUM_POINTS)]
    points = [(x, n) for x in grid if (n := _needed(report, x, len(slowest.labels))) is not None]
    here = _needed(report, eps, len(slowest.labels))
    enough = here is not None and slowest.num_tokens >= here
    reading = (
        f"The family of the most cells ({slowest.name}, {len(slowest.labels)}) sets the pace: a "
        f"right sampler needs about {'more than can be had' if here is None else count(here)} "
        f"of its tokens for a PASS at eps = {eps:g}; this run has {count(slowest.num_tokens)}. "
        "Half of eps takes four times the tokens."
    )
    with canvas(NAME, HEIGHT) as drawing:
        axes = drawing.axes
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.plot(*zip(*points, strict=True), color=INK, linewidth=2.0, label="needed for a PASS")
        axes.axvline(eps, color=MUTED, linewidth=1.0, dashes=(4, 3))
        color, marker = (GOOD, "o") if enough else (BAD, "D")
        axes.plot([eps], [slowest.num_tokens], marker, color=color, markersize=8, label="this run")
        axes.set_xlim(0.93 * low, high)
        heights = [slowest.num_tokens, *(n for _, n in points)]
        axes.set_ylim(0.55 * min(heights), 1.6 * max(heights))
        ticks = [tick for tick in _TICKS if low <= tick <= high]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda value, _: short_count(value))
        axes.set_xlabel("eps")
        axes.set_ylabel("tokens")
        axes.grid()
        axes.tick_params(length=0)
        axes.legend(loc="upper right")
        svg = drawing.svg(TITLE, reading)
    return Plot(NAME, TITLE, reading, svg)


def _needed(report: Report, eps: float, num_cells: int) -> int | None:
    settings = report.settings
    return plan_tokens(
        eps=eps, alpha=settings["alpha"], delta=settings["delta"], num_cells=num_cells
    ).to_pass
