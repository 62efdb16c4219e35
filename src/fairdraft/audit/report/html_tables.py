"""The tables of the page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from fairdraft.audit.report.document import Report
from fairdraft.audit.report.findings import (
    kind_of,
    ranked_cells,
    ranked_templates,
    threshold,
)
from fairdraft.audit.report.wording import count, distance, exponent
from fairdraft.stats.summary import FamilySummary

_MARKS = {"beyond": "◆ beyond eps", "within": "● within eps", "open": "■ not settled"}


def table(
    heads: Sequence[str],
    rows: Iterable[tuple[str, Sequence[str]]],
    *,
    numbers: Sequence[int] = (),
    caption: str = "",
) -> str:
    """Writes a table.

    Args:
        heads: Column heads, text.
        rows: A class and the cells of each row; the cells are HTML.
        numbers: Columns to align at the right.
        caption: Text above it.
    """
    kinds = [' class="n"' if at in numbers else "" for at in range(len(heads))]
    head = "".join(
        f'<th scope="col"{kind}>{escape(name)}</th>'
        for kind, name in zip(kinds, heads, strict=True)
    )
    body = "".join(_row(style, cells, kinds) for style, cells in rows)
    note = f'<p class="note">{escape(caption)}</p>' if caption else ""
    return (
        f'{note}<div class="scroll"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def _row(style: str, cells: Sequence[str], kinds: Sequence[str]) -> str:
    start = f'<tr class="{style}">' if style else "<tr>"
    pairs = zip(kinds, cells, strict=True)
    return start + "".join(f"<td{kind}>{cell}</td>" for kind, cell in pairs) + "</tr>\n"


def family_table(report: Report) -> str:
    """Writes each family with its deviation, interval and evidence."""
    heads = ("family", "tokens", "deviation", "interval", "floor", "log10 E", "against eps")
    eps = float(report.settings["eps"])
    rows = [_family_row(family, eps) for family in report.families]
    caption = (
        "Deviation: averaged total variation with the floor (what a right sampler shows) "
        "taken out. Named: picked out by the e-BH procedure."
    )
    return table(heads, rows, numbers=(1, 2, 3, 4, 5), caption=caption)


def _family_row(family: FamilySummary, eps: float) -> tuple[str, list[str]]:
    name = f"{escape(family.name)}<br><small>{escape(family.title)}"
    name += " (diagnostic)</small>" if family.is_diagnostic else "</small>"
    if family.tv is None:
        return "aside", [name, "0", "–", "–", "–", "–", "no token"]
    kind = kind_of(family, eps)
    mark = f'<span class="mark {kind}">{_MARKS[kind]}</span>'
    if family.is_localized:
        mark += "<br><small>named</small>"
    interval = f"{distance(family.lower)} to {distance(family.upper)}"
    style = "strong" if family.is_localized else "aside" if family.is_diagnostic else ""
    return style, [
        name,
        count(family.num_tokens),
        distance(family.tv_debiased),
        interval,
        distance(family.floor),
        exponent(family.log10_e),
        mark,
    ]


def template_table(report: Report) -> str:
    """Writes the known bugs, the best supported first."""
    limit = threshold(report)
    rows = []
    for template in ranked_templates(report):
        passed = template.num_tokens > 0 and template.log10_e >= limit
        evidence = exponent(template.log10_e) if template.num_tokens else "–"
        style = "strong" if passed else "" if template.num_tokens else "aside"
        name = f"{escape(template.name)}<br><small>{escape(template.title)}</small>"
        rows.append((style, [name, count(template.num_tokens), evidence]))
    caption = (
        f"log10 E of each bug's exact law against the target's; {limit:g} and more is past the "
        "limit, negative speaks against the bug."
    )
    return table(("known bug", "tokens", "log10 E"), rows, numbers=(1, 2), caption=caption)


def cell_table(report: Report) -> str:
    """Writes the ten cells of the heat map that are furthest from the target."""
    rows = [
        (
            "",
            [
                escape(cell.slot),
                escape(cell.octile),
                count(cell.observed),
                f"{cell.expected:,.1f}",
                f"{cell.ratio:.3f}",
                f"{cell.lower:.3f} to {cell.upper:.3f}",
                f"{cell.z:+.1f}",
            ],
        )
        for cell in ranked_cells(report)
    ]
    heads = ("slot", "q/p octile", "observed", "expected", "ratio", "99% interval", "z")
    caption = "Each interval stands for itself: of 100 cells one is outside by chance."
    return table(heads, rows, numbers=(2, 3, 4, 5, 6), caption=caption)


def value_table(values: dict[str, Any]) -> str:
    """Writes names and JSON values."""
    rows = [("", [f"<code>{escape(name)}</code>", _value(item)]) for name, item in values.items()]
    return table(("name", "value"), rows)


def _value(item: Any) -> str:
    text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
    return f'<span class="value">{escape(text)}</span>'
