"""The report on a terminal: the verdict in color, the four answers, and the tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fairdraft.audit.report.answers import TITLES, answers, verdict_sentence
from fairdraft.audit.report.document import Report
from fairdraft.audit.report.findings import kind_of, ranked_templates, threshold
from fairdraft.audit.report.wording import count, distance, duration, exponent
from fairdraft.stats.summary import FamilySummary

# words carry the verdict; the colors only repeat it
VERDICT_STYLES = {
    "PASS": "bold white on dark_cyan",
    "FAIL": "bold white on red3",
    "BIASED_WITHIN_TOLERANCE": "bold white on dodger_blue3",
    "INCONCLUSIVE": "bold black on yellow3",
    "INVALID": "bold white on purple4",
}
_MARKS = {
    "beyond": ("◆ beyond", "bold red3"),
    "within": ("● within", "dark_cyan"),
    "open": ("■ open", "yellow3"),
}
_MAX_TEMPLATES = 3


def print_report(report: Report, console: Console) -> None:
    """Prints everything a person needs after a run, at the console's width."""
    console.print(report_view(report))


def report_view(report: Report) -> RenderableType:
    """Returns verdict, answers and tables as one thing to print."""
    return Group(*_parts(report))


def verdict_line(report: Report) -> Text:
    """Returns the verdict's name on its color, and its sentence."""
    state = report.verdict.state
    badge = Text(f" {TITLES[state]} ", style=VERDICT_STYLES[state])
    return Text.assemble(badge, " ", verdict_sentence(report))


def family_table(report: Report) -> Table:
    """Returns the families with deviation, interval and evidence."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    eps = float(report.settings["eps"])
    table.add_column("family", overflow="fold")
    for name in ("tokens", "deviation", "interval", "log10 E"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(f"eps {eps:g}", no_wrap=True)
    for family in report.families:
        if not family.is_diagnostic:
            table.add_row(*_family_row(family, eps))
    table.add_section()
    for family in report.families:
        if family.is_diagnostic:
            table.add_row(*_family_row(family, eps), style="dim")
    return table


def template_table(report: Report) -> Table:
    """Returns the best supported of the known bugs."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("known bug", no_wrap=True)
    table.add_column("log10 E", justify="right", no_wrap=True)
    table.add_column("", style="dim", overflow="fold")
    limit = threshold(report)
    for template in _best_templates(report):
        style = "bold" if template.log10_e >= limit else None
        table.add_row(
            Text(template.name), exponent(template.log10_e), Text(template.title), style=style
        )
    return table


def _parts(report: Report) -> Iterator[RenderableType]:
    yield Text()
    yield verdict_line(report)
    yield _answer_table(report)
    if any(family.num_tokens for family in report.families):
        yield family_table(report)
        yield from _legend(report)
    if _best_templates(report):
        yield template_table(report)
    if report.verdict.state == "PASS":
        yield Text(
            "PASS speaks of the declared families and this run's settings only.", style="dim"
        )
    for note in report.notes:
        yield Text(f"note: {note}", style="dim")
    yield Text(_closing(report), style="dim")


def _legend(report: Report) -> Iterator[Text]:
    lines = []
    if any(family.is_localized for family in report.families):
        lines.append("* named by e-BH")
    if any(family.is_diagnostic and family.num_tokens for family in report.families):
        lines.append("dim rows are no part of the verdict")
    if lines:
        yield Text(f" {'; '.join(lines)}", style="dim")


def _answer_table(report: Report) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for answer in answers(report)[1:]:
        numbered = len(answer.details) > 1 and answer.question == "What next?"
        lines = [
            f"{number}. {line}" if numbered else line
            for number, line in enumerate(answer.details, start=1)
        ]
        grid.add_row(answer.question, Text("\n".join([answer.headline, *lines])))
    return Padding(grid, (1, 0, 0, 0))


def _family_row(family: FamilySummary, eps: float) -> tuple[Text | str, ...]:
    name = Text(family.name)
    if family.tv is None:
        return name, "0", "–", "–", "–", Text("no token", style="dim")
    word, style = _MARKS[kind_of(family, eps)]
    if family.is_localized:
        name = Text(f"{family.name} *", style="bold")
    interval = f"{distance(family.lower)}–{distance(family.upper)}"
    return (
        name,
        count(family.num_tokens),
        distance(family.tv_debiased),
        interval,
        exponent(family.log10_e),
        Text(word, style=style),
    )


def _best_templates(report: Report) -> list:
    bets = [template for template in ranked_templates(report) if template.num_tokens]
    return [t for t in bets if t.log10_e > 0.0][:_MAX_TEMPLATES]


def _closing(report: Report) -> str:
    speed = ""
    if report.seconds > 0.0 and report.num_tokens:
        speed = f", {report.num_tokens / report.seconds:,.0f} tokens/s"
    return (
        f"{count(report.num_tokens)} tokens of {count(report.num_texts)} texts in "
        f"{duration(report.seconds)}{speed}; exit code {report.exit_code}."
    )
