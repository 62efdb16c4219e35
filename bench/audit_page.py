"""Writes the tables of `docs/audit-error-rates.md` from the results beside this file.

    python bench/audit_page.py

A table stands between `<!-- name -->` and `<!-- end -->`; everything else of the page is prose.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from conditions import ROOT, describe

PAGE = ROOT / "docs" / "audit-error-rates.md"
RESULTS = ROOT / "bench" / "results" / "audit_error_rates.json"


def main() -> None:
    """Fills in every block of the page."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def filled(page: str) -> str:
    """The page with each block written anew from the results."""
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    blocks = {
        "conditions": _conditions(document),
        "null": _alarms(document["false_alarms"]),
        "eps0": _alarms(document["false_alarms_at_eps0"]),
        "eps": _passes(document),
    }
    for name, text in blocks.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        page, count = pattern.subn(lambda match, text=text: match[1] + text + match[2], page)
        if count != 1:
            raise ValueError(f"{PAGE.name} has {count} blocks named {name}; it needs one")
    return page


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _conditions(document: dict[str, Any]) -> str:
    how = f"{document['seconds']:.0f} s in {document['workers']} processes"
    return f"{describe(document['conditions'])}; {how}.\n"


def _alarms(table: dict[str, Any]) -> str:
    alphas = list(next(iter(table.values())))
    columns = ("process", *(f"alpha {float(alpha):g}" for alpha in alphas))
    rows = ((name, *(_rate(entry[alpha]) for alpha in alphas)) for name, entry in table.items())
    return _table(columns, rows)


def _passes(document: dict[str, Any]) -> str:
    entries = {f"off by eps, {name}": entry for name, entry in document["false_passes"].items()}
    entries["exact"] = document["passes_when_exact"]
    rows = ((name, _rate(entry), f"{entry['trials']}") for name, entry in entries.items())
    return _table(("law", "share that PASSes", "runs"), rows)


def _rate(entry: dict[str, float]) -> str:
    return f"{entry['rate']:.4f} [{entry['lower']:.4f}, {entry['upper']:.4f}]"


if __name__ == "__main__":
    main()
