"""Writes the engine's tables of `docs/processors.md` from `results/matrix.json`.

    python bench/matrix.py --record --effect 0.1
    python bench/matrix_page.py

The table of what is enumerated, in the same page, is `python -m tests.law.processed`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from blocks import fill, markdown_table, rewrite
from conditions import ROOT, describe
from matrix_cells import COMMON
from matrix_drafts import TREE
from matrix_faults import PLANTED_COMMON, Planted
from matrix_tree_faults import PLANTED_TREE

PAGE = ROOT / "docs" / "processors.md"
RECORDED = ROOT / "bench" / "results" / "matrix.json"


def main() -> None:
    """Fills in the blocks of the page."""
    rewrite(PAGE, filled)


def filled(page: str) -> str:
    """The page with each block written anew from the results."""
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    blocks = {
        "engine-matrix": table(recorded),
        "engine-common-faults": common_table(recorded),
        "engine-tree-faults": tree_table(recorded),
        "engine-conditions": summary(recorded),
    }
    return fill(page, blocks, PAGE.name)


def table(recorded: dict[str, Any]) -> str:
    """A line a parameter, a column a rule, and the fault that must fail."""
    cells, faults = recorded["cells"], _by_ratio(recorded)
    rules = list(dict.fromkeys(cell["rule"] for cell in cells))
    columns = ["parameter", *(f"`{rule}`" for rule in rules), "moves the law by", "planted fault"]
    lines = []
    for name in dict.fromkeys(cell["parameter"] for cell in cells):
        own = [cell for cell in cells if cell["parameter"] == name]
        planted = [fault for fault in faults if fault["parameter"] == name]
        by_rule = [_tested([cell for cell in own if cell["rule"] == rule]) for rule in rules]
        lines.append([name, *by_rule, f"{own[0]['moved']:.2f}", _planted(planted)])
    return markdown_table(columns, lines, are_numbers=False)


def common_table(recorded: dict[str, Any]) -> str:
    """A line a fault under rule `common_noise`, with what said so."""
    columns = ("fault", "what is wrong", "planted with", "the law", "the text")
    lines = []
    for start, cells in _by_fault(recorded, COMMON, PLANTED_COMMON):
        text = "passes" if any(cell["same_text"] for cell in cells) else "fails"
        lines.append((*start, text))
    return markdown_table(columns, lines, are_numbers=False)


def tree_table(recorded: dict[str, Any]) -> str:
    """A line a fault under rule `tree`, with what said so."""
    columns = ("fault", "what is wrong", "planted with", "the law")
    lines = [start for start, _ in _by_fault(recorded, TREE, PLANTED_TREE)]
    return markdown_table(columns, lines, are_numbers=False)


def _by_fault(
    recorded: dict[str, Any], rule: str, planted: dict[str, tuple[Planted, ...]]
) -> Iterator[tuple[tuple[str, ...], list[dict[str, Any]]]]:
    """The first four entries of each fault's line, and its cells."""
    titles = {p.fault.name: p.fault.title for each in planted.values() for p in each}
    found: dict[str, list[dict[str, Any]]] = {}
    for cell in recorded["faults"]:
        if cell["rule"] == rule:
            found.setdefault(cell["fault"], []).append(cell)
    for name, cells in found.items():
        where = ", ".join(cell["parameter"] for cell in cells)
        yield (f"`{name}`", titles[name], where, _law(cells)), cells


def summary(recorded: dict[str, Any]) -> str:
    """How large the run was, and where."""
    cells, faults = recorded["cells"], recorded["faults"]
    texts = [cell["num_trials"] for cell in cells]
    left_out = "".join(f" Left out: {n}, {why}." for n, why in recorded["left_out"].items())
    runs = "; ".join(
        f"{run['num_cells']} cells in {run['seconds']:.0f} s in {run['jobs']} processes on "
        f"{describe(run['conditions'])}"
        for run in recorded["runs"]
    )
    later = " (a later run took the place of some)" if len(recorded["runs"]) > 1 else ""
    return (
        f"Effect {recorded['effect']:g}, false alarm {recorded['false_alarm']:g} a cell and "
        f"{len(cells) * recorded['false_alarm']:.2g} for all {len(cells)}, miss "
        f"{recorded['miss']:g}; {min(texts):,} to {max(texts):,} texts a cell, "
        f"{recorded['texts']:,} in all; {len(faults)} planted faults, for an effect of "
        f"{recorded['fault_effect']:g}; seed {recorded['seed']}; {runs}{later}.{left_out}\n"
    )


def _by_ratio(recorded: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in recorded["faults"] if cell["rule"] not in (COMMON, TREE)]


def _law(cells: list[dict[str, Any]]) -> str:
    """What the test of the law said, and the TV that it saw."""
    if not all(cell["as_expected"] for cell in cells):
        return "NOT AS EXPECTED"
    if not cells[0]["breaks_law"]:
        return f"passes, as it must: TV {cells[0]['tv']:.2f}, floor {cells[0]['floor']:.2f}"
    seen = " and ".join(f"{cell['tv']:.2f}" for cell in cells)
    return f"fails, TV {seen}"


def _tested(cells: list[dict[str, Any]]) -> str:
    """How many of the kinds of q passed, the smallest p-value, and the drafts that stood."""
    passed = [cell for cell in cells if cell["as_expected"]]
    if len(passed) < len(cells):
        wrong = ", ".join(cell["q"] for cell in cells if not cell["as_expected"])
        return f"FAILS: {wrong}"
    stood = [cell["stood"] for cell in cells]
    least = 10.0 ** min(cell["log10_p"] for cell in cells)
    return f"{len(cells)} of {len(cells)}, p >= {least:.2g}; {min(stood):.2f} to {max(stood):.2f}"


def _planted(faults: list[dict[str, Any]]) -> str:
    if not all(fault["as_expected"] for fault in faults):
        return f"`{faults[0]['fault']}` PASSES"
    found = " and ".join(f"{fault['tv']:.2f}" for fault in faults)
    return f"`{faults[0]['fault']}` fails, TV {found}"


if __name__ == "__main__":
    main()
