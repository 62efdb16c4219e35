"""Writes the tables of `docs/audit-error-rates.md` from the results beside this file.

    python bench/audit_page.py

A table stands between `<!-- name -->` and `<!-- end -->`; everything else of the page is prose.
"""

from __future__ import annotations

import json
from typing import Any

from blocks import fill, markdown_table, rewrite
from conditions import ROOT, describe

PAGE = ROOT / "docs" / "audit-error-rates.md"
RESULTS = ROOT / "bench" / "results" / "audit_error_rates.json"


def main() -> None:
    """Fills in every block of the page."""
    rewrite(PAGE, filled)


def filled(page: str) -> str:
    """The page with each block written anew from the results."""
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    blocks = {
        "conditions": _conditions(document),
        "null": _alarms(document["false_alarms"]),
        "eps0": _alarms(document["false_alarms_at_eps0"]),
        "eps": _passes(document),
    }
    return fill(page, blocks, PAGE.name)


def _conditions(document: dict[str, Any]) -> str:
    how = f"{document['seconds']:.0f} s in {document['workers']} processes"
    return f"{describe(document['conditions'])}; {how}.\n"


def _alarms(table: dict[str, Any]) -> str:
    alphas = list(next(iter(table.values())))
    columns = ("process", *(f"alpha {float(alpha):g}" for alpha in alphas))
    rows = ((name, *(_rate(entry[alpha]) for alpha in alphas)) for name, entry in table.items())
    return markdown_table(columns, rows)


def _passes(document: dict[str, Any]) -> str:
    entries = {f"off by eps, {name}": entry for name, entry in document["false_passes"].items()}
    entries["exact"] = document["passes_when_exact"]
    rows = ((name, _rate(entry), f"{entry['trials']}") for name, entry in entries.items())
    return markdown_table(("law", "share that PASSes", "runs"), rows)


def _rate(entry: dict[str, float]) -> str:
    return f"{entry['rate']:.4f} [{entry['lower']:.4f}, {entry['upper']:.4f}]"


if __name__ == "__main__":
    main()
