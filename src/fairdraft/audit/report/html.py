"""The report as one self-contained HTML page: no network, no script, light and dark, prints."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files

from fairdraft.audit.report.answers import TITLES, Answer, answers, meaning, verdict_sentence
from fairdraft.audit.report.coverage import tested, untested
from fairdraft.audit.report.document import Report
from fairdraft.audit.report.html_tables import (
    cell_table,
    family_table,
    template_table,
    value_table,
)
from fairdraft.audit.report.plots import Plot, draw_plots
from fairdraft.audit.report.wording import duration, grouped, plural
from fairdraft.audit.whole_file import write_text

# a shape beside the word, so that neither color nor language carries the verdict alone
_ICONS = {
    "PASS": '<path d="M5 12.5l4.5 4.5L19 7.5"/>',
    "FAIL": '<path d="M7 7l10 10M17 7L7 17"/>',
    "BIASED_WITHIN_TOLERANCE": '<path d="M5 10c3-4 5 2 7 0s4-2 7-1M5 16c3-4 5 2 7 0s4-2 7-1"/>',
    "INCONCLUSIVE": '<path d="M12 7v5.5l3.5 2.5"/>',
    "INVALID": '<path d="M6 18L18 6"/>',
}
_STYLES = {
    "PASS": "pass",
    "FAIL": "fail",
    "BIASED_WITHIN_TOLERANCE": "biased",
    "INCONCLUSIVE": "inconclusive",
    "INVALID": "invalid",
}


def write_html(report: Report, path: str | os.PathLike[str]) -> None:
    """Writes the page to a file, whole or not at all.

    Raises:
        MissingPlotLibrary: If matplotlib is not installed; the message names the extra.
        OSError: If the file cannot be written.
    """
    write_text(path, render_html(report))


def render_html(report: Report) -> str:
    """Returns the page.

    Raises:
        MissingPlotLibrary: If matplotlib is not installed; the message names the extra.
    """
    title = escape(f"{TITLES[report.verdict.state]}: {report.subject.name}")
    sections = (
        _answers(answers(report)),
        _meaning(report),
        _coverage(report),
        _plots(draw_plots(report)),
        _tables(report),
        _settings(report),
        _reproduce(report),
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" \
content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="generator" content="fairdraft {escape(report.version)}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{_style()}</style>
</head>
<body>
{_band(report)}
<main class="inner">
{"".join(sections)}
<footer>{_footer(report)}</footer>
</main>
</body>
</html>
"""


@cache
def _style() -> str:
    return files("fairdraft.audit.report").joinpath("page.css").read_text(encoding="utf-8")


def _band(report: Report) -> str:
    state = report.verdict.state
    icon = (
        '<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2.6" '
        'stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">'
        f'<circle cx="12" cy="12" r="10.4" stroke-width="2"/>{_ICONS[state]}</svg>'
    )
    return f"""<header class="verdict {_STYLES[state]}"><div class="inner">
<p class="what">{escape(report.subject.name)}</p>
<h1>{icon}{TITLES[state]}</h1>
<p class="sentence">{_prose(verdict_sentence(report))}</p>
</div></header>
"""


def _answers(entries: Iterable[Answer]) -> str:
    cards = []
    for entry in entries:
        if len(entry.details) > 1 and entry.question == "What next?":
            items = "".join(f"<li>{_prose(step)}</li>" for step in entry.details)
            details = f"<ol>{items}</ol>"
        else:
            details = "".join(f"<p>{_prose(line)}</p>" for line in entry.details)
        cards.append(
            f"<div><h2>{escape(entry.question)}</h2>"
            f'<p class="headline">{_prose(entry.headline)}</p>{details}</div>\n'
        )
    return f'<section class="answers" aria-label="In short">\n{"".join(cards)}</section>\n'


def _meaning(report: Report) -> str:
    reasons = _list(report.verdict.reasons)
    notes = f"<h3>What happened in the run</h3>{_list(report.notes)}" if report.notes else ""
    return f"""<section>{_heading("What it means")}
<p>{_prose(meaning(report))}</p>{reasons}{notes}</section>
"""


def _coverage(report: Report) -> str:
    return f"""<section>{_heading("What was tested, and what was not")}
<div class="columns"><div><h3>Tested</h3>{_list(tested(report))}</div>
<div><h3>Not tested</h3>{_list(untested(report))}</div></div></section>
"""


def _plots(plots: Sequence[Plot]) -> str:
    if not any(plot.svg for plot in plots):
        return ""
    figures = []
    for plot in plots:
        reading = f"<p>{_prose(plot.reading)}</p>" if plot.reading else ""
        body = plot.svg or f'<div class="missing">No plot: {escape(plot.missing)}</div>'
        figures.append(
            f'<figure id="{plot.name}"><figcaption><h3>{escape(plot.title)}</h3></figcaption>'
            f"{body}<figcaption>{reading}</figcaption></figure>\n"
        )
    return (
        f'<section>{_heading("Plots")}\n<div class="plots">\n{"".join(figures)}</div></section>\n'
    )


def _tables(report: Report) -> str:
    parts = []
    if any(family.num_tokens for family in report.families):
        parts += [_heading("Families"), family_table(report)]
    if any(template.num_tokens for template in report.templates):
        parts += [_heading("Known bugs, ranked"), template_table(report)]
    if report.heat is not None:
        parts += [_heading("Cells furthest from the target"), cell_table(report)]
    return f"<section>{''.join(parts)}</section>\n"


def _settings(report: Report) -> str:
    subject = report.subject
    about = {
        "kind": subject.kind,
        "name": subject.name,
        "scoring": subject.scoring,
        "speculative": subject.is_speculative,
        "sampler": subject.sampler,
        "rule": subject.rule or "unknown",
        **({"duplicates declared": True} if subject.duplicates_declared else {}),
        **subject.parameters,
    }
    return f"""<section>{_heading("Settings")}
<div class="columns"><div><h3>Subject</h3>{value_table(about)}</div>
<div><h3>Audit</h3>{value_table(report.settings)}
</div><div><h3>Environment</h3>{value_table(dict(report.environment))}</div></div></section>
"""


def _reproduce(report: Report) -> str:
    how = "<p>Run the same audit again with the settings and versions above.</p>"
    if report.command is not None:
        how = f"<pre>{escape(report.command)}</pre>"
    return (
        f"<section>{_heading('How to reproduce')}{how}"
        "<p>With <code>--json</code> the same command prints these numbers in full precision.</p>"
        "</section>\n"
    )


def _footer(report: Report) -> str:
    return escape(
        f"fairdraft {report.version}, {report.created}. "
        f"{plural(report.num_tokens, 'token')} of {plural(report.num_texts, 'text')} in "
        f"{duration(report.seconds)}. Schema {report.schema}."
    )


def _prose(text: str) -> str:
    return re.sub(r"10\^(-?[\d.]*\d)", r"10<sup>\1</sup>", escape(grouped(text)))


def _heading(text: str) -> str:
    return f'<h2 class="section">{escape(text)}</h2>'


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{_prose(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""
