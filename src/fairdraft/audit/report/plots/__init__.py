"""The plots of a report, each an inline SVG or the reason why there is none."""

from __future__ import annotations

from fairdraft.audit.report.document import Report
from fairdraft.audit.report.plots.canvas import MissingPlotLibrary, check_plot_library
from fairdraft.audit.report.plots.evidence import evidence_plot
from fairdraft.audit.report.plots.forest import forest_plot
from fairdraft.audit.report.plots.heat import heat_plot
from fairdraft.audit.report.plots.planner import planner_plot
from fairdraft.audit.report.plots.plot import Plot
from fairdraft.audit.report.plots.position import position_plot
from fairdraft.audit.report.plots.rates import acceptance_plot, agreement_plot

__all__ = ["MissingPlotLibrary", "Plot", "check_plot_library", "draw_plots"]

_DRAWERS = (
    evidence_plot,
    forest_plot,
    heat_plot,
    position_plot,
    agreement_plot,
    acceptance_plot,
    planner_plot,
)


def draw_plots(report: Report) -> tuple[Plot, ...]:
    """Draws all plots, the most telling first.

    Raises:
        MissingPlotLibrary: If matplotlib is not installed.
    """
    return tuple(draw(report) for draw in _DRAWERS)
