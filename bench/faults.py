"""Pilot runs of the catalogue of planted faults, and the tables of `docs/faults.md`.

    python bench/faults.py --pilot 101 102 103 104 105     # results/fault_pilots.json
    fairdraft audit faults --json > bench/results/faults.json
    python bench/faults.py                                 # writes the page

A pilot runs each planted fault to FAIL, however long it takes, with seeds that the recorded run
does not have: planned tokens come from it. A table stands between `<!-- name -->` and
`<!-- end -->`; everything else of the page is prose.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from blocks import fill, markdown_table
from conditions import ROOT, conditions, describe

from fairdraft.audit.faults import CASES, run_case
from fairdraft.stats.verdict import VerdictState

PAGE = ROOT / "docs" / "faults.md"
RECORDED = ROOT / "bench" / "results" / "faults.json"
PILOTS = ROOT / "bench" / "results" / "fault_pilots.json"
#: a pilot gives up after so many times the planned tokens
PATIENCE = 10


def main() -> None:
    """Runs pilots if asked to, then writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pilot", type=int, nargs="+", metavar="SEED", help="run pilots first")
    seeds = parser.parse_args().pilot
    if seeds:
        document = {"conditions": conditions(), "seeds": seeds, "tokens_to_fail": _pilot(seeds)}
        PILOTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        return
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def _pilot(seeds: Sequence[int]) -> dict[str, list[int | None]]:
    import torch

    torch.set_num_threads(1)
    found: dict[str, list[int | None]] = {}
    for case in CASES:
        if case.fault is None or case.expected is not VerdictState.FAIL:
            continue
        patient = replace(case, num_tokens=PATIENCE * case.num_tokens)
        found[case.name] = [run_case(patient, seed).tokens_to_fail for seed in seeds]
        print(case.name, found[case.name], file=sys.stderr, flush=True)
    return found


def filled(page: str) -> str:
    """The page with each block written anew from the results."""
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    pilots = json.loads(PILOTS.read_text(encoding="utf-8"))
    planted = [row for row in recorded["rows"] if row["function"] is not None]
    clean = [row for row in recorded["rows"] if row["function"] is None]
    columns = ("fault", "what is wrong", "function", "setup", "planned", "pilots", "FAIL after")
    blocks = {
        "conditions": f"{describe(pilots['conditions'])}; seeds of the pilots {pilots['seeds']}, "
        f"seed of the recorded run {recorded['seed']}.\n",
        "planted": _words((*columns, "named by"), (_planted(row, pilots) for row in planted)),
        "clean": _words(("setup", "what it is", "tokens", "verdict", "e"), map(_clean, clean)),
    }
    return fill(page, blocks, PAGE.name)


def _words(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return markdown_table(columns, rows, are_numbers=False)


def _planted(row: dict[str, Any], pilots: dict[str, Any]) -> tuple[str, ...]:
    tokens = pilots["tokens_to_fail"].get(row["name"])
    verdict, title = row["verdict"]["state"], row["title"]
    after = "-" if row["tokens_to_fail"] is None else f"{row['tokens_to_fail']:,}"
    if verdict != "FAIL":
        after = f"{verdict} at {row['num_tokens']:,}"
    named = [f"`{row['named']}`"] if row["named"] else []
    named += ["the trace"] if row["num_collisions"] else []
    return (
        f"`{row['name']}`",
        f"{title} ({row['source']})" if row["source"] else title,
        f"`{row['function'].removeprefix('fairdraft.')}`",
        row["setup"]["name"],
        f"{row['planned_tokens']:,}",
        _range(tokens),
        after,
        ", ".join(named) or "-",
    )


def _range(tokens: list[int] | None) -> str:
    if tokens is None:
        return "-"
    ends = dict.fromkeys((min(tokens), max(tokens)))
    return " to ".join(f"{end:,}" for end in ends)


def _clean(row: dict[str, Any]) -> tuple[str, ...]:
    most = row["log10_e"]
    return (
        row["setup"]["name"],
        row["setup"]["title"],
        f"{row['num_tokens']:,}",
        row["verdict"]["state"],
        f"{10.0**most:.2g}",
    )


if __name__ == "__main__":
    main()
