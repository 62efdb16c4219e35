"""The rows as text in columns, one block an experiment."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from fairdraft.audit.closing import STATE_STYLES, closing
from fairdraft.audit.kernels.judging import ALPHA, DELTA, ChiSquare
from fairdraft.audit.kernels.result import RowResult
from fairdraft.audit.kernels.run import KernelAudit

__all__ = ["WIDTH", "kernel_view"]

#: columns that a row takes
WIDTH = 100
_COLUMNS = (
    *(("layout", -11), ("samples", 10), ("TV", 7), ("floor", 7), ("interval", 16)),
    *(("chi-square", 11), ("limit", 6), ("accepted", 9)),
)
_INDENT = " " * 12


def kernel_view(audit: KernelAudit) -> RenderableType:
    """Returns every block, the claims and the closing sentence as one thing to print."""
    return Group(*_parts(audit))


def _parts(audit: KernelAudit) -> Iterator[Text]:
    for title, results in groupby(audit.results, key=lambda result: result.row.experiment.title):
        group = list(results)
        experiment = group[0].row.experiment
        yield Text(title, style="bold")
        yield Text(f"{experiment.published}; eps {_share(experiment.eps)}", style="dim")
        yield Text(_columns(heading for heading, _ in _COLUMNS) + "  verdict", style="dim")
        for result in group:
            yield from _lines(result)
        yield Text()
    if audit.claims:
        yield Text("Together", style="bold")
        for claim in audit.claims:
            style = "dark_cyan" if claim.holds else "bold red3"
            yield Text.assemble(("yes  " if claim.holds else "NO   ", style), claim.sentence)
        yield Text()
    yield Text(
        f"FAIL: chance of a false alarm {ALPHA:g} a row. PASS: the total variation (TV) is at most "
        f"eps, wrong with chance {DELTA:g}. Interval: of TV, each end wrong with chance {DELTA:g}. "
        "Floor: TV that a right sampler shows. Limit: of chi-square. Accepted: of first drafts.",
        style="dim",
    )
    yield closing(len(audit.results), audit.seconds, audit.surprises)


def _lines(result: RowResult) -> Iterator[Text]:
    judgment = result.judgment
    distance = judgment.distance
    statistic, limit = _test(judgment.chi_square)
    cells = (
        *(result.row.layout, f"{result.num_trials:,}"),
        *(_share(distance.observed, 5), _share(distance.floor, 5)),
        f"{_share(distance.lower, 4)} to {_share(distance.upper, 4)}",
        *(statistic, limit, _share(result.acceptance.share, 4)),
    )
    verdict = (str(judgment.state), STATE_STYLES[judgment.state])
    mark = ("not expected", "bold red3") if result.surprises else ("as expected", "dim")
    yield Text.assemble(_columns(cells), "  ", verdict, "  ", mark)
    for name in _names(result):
        yield Text(_INDENT + name, style="dim")
    for clause in result.surprises:
        yield Text(_INDENT + clause, style="red3")


def _columns(cells: Iterator[str] | tuple[str, ...]) -> str:
    widths = (width for _, width in _COLUMNS)
    pairs = zip(cells, widths, strict=True)
    return "".join(cell.ljust(-w) if w < 0 else cell.rjust(w) for cell, w in pairs)


def _names(result: RowResult) -> list[str]:
    law, trace = result.judgment.diagnosis, next(iter(result.traced.names), None)
    if law is not None and law == trace:
        return [f"named by law and trace: {law}"]
    found = [("law", law), ("trace", trace)]
    return [f"named by the {source}: {name}" for source, name in found if name is not None]


def _test(test: ChiSquare | None) -> tuple[str, str]:
    if test is None:
        return "-", "-"
    digits = 0 if test.statistic >= 1000 else 1
    return f"{test.statistic:,.{digits}f}", f"{test.limit:.1f}"


def _share(value: float, digits: int | None = None) -> str:
    """A share of 1 without its leading zero: .0125."""
    text = f"{value:g}" if digits is None else f"{value:.{digits}f}"
    return text.removeprefix("0") if text.startswith("0.") else text
