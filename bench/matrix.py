"""The equivalence matrix by the engine: every parameter under every rule and kind of drafts.

    python bench/matrix.py [--effect 0.04] [--seed 0] [--jobs 2] [--quick] [--record]

`LLM.generate` on toys of four ids, two drafts a round, for each parameter x rule x kind of q, and
for each parameter under rules `token` and `block` with a fault planted. The joint law of the first
three tokens is tested against the definitions by a chi-square test that is planned before: it
refuses a right engine with chance 1e-9 a cell and passes one that is off by `--effect` in total
variation with chance 1e-6. Exits 1 if a cell fails, or a planted fault does not. The last line of
stdout is JSON; `--record` writes it to `results/matrix.json`, which `matrix_page.py` reads.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import matrix_cells
import torch
from conditions import ROOT, conditions
from matrix_cells import Cell

from fairdraft.audit.processes import Progress, completed, num_processors
from fairdraft.stats.power import FALSE_ALARM, MISS

RECORDED = ROOT / "bench" / "results" / "matrix.json"
#: TV that a cell must see, and one with a planted fault
EFFECT, FAULT_EFFECT = 0.04, 0.08
QUICK_EFFECT, QUICK_PARAMETERS = 0.3, ("presence_penalty", "bad_words")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--effect", type=float, default=EFFECT, help="TV that a cell must see")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=num_processors(), help="processes")
    parser.add_argument("--quick", action="store_true", help="two parameters, in seconds")
    parser.add_argument("--record", action="store_true", help="write results/matrix.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    missing = matrix_cells.left_out()
    for name, why in missing.items():
        print(f"left out: {name}, {why}", file=sys.stderr)
    names = [name for name in matrix_cells.PARAMETERS if name not in missing]
    if given.quick:
        names, given.effect = [n for n in names if n in QUICK_PARAMETERS], QUICK_EFFECT
    document = measure(names, given.effect, given.seed, given.jobs)
    document["left_out"] = missing
    if given.record:
        RECORDED.write_text(_lines(document), encoding="utf-8")
    for cell in document["cells"] + document["faults"]:
        if not cell["as_expected"]:
            print(f"not as expected: {cell}", file=sys.stderr)
    print(json.dumps(document))
    return 0 if document["is_correct"] else 1


def measure(names: list[str], effect: float, seed: int, jobs: int) -> dict[str, Any]:
    """Runs the cells of some parameters.

    Args:
        names: Parameters.
        effect: TV that a cell must see; cells of faults are planned for FAULT_EFFECT.
        seed: Of the run.
        jobs: Processes.
    """
    before, begin = conditions(), time.perf_counter()
    cells = matrix_cells.cells(names)
    effects = [FAULT_EFFECT if cell.is_planted else effect for cell in cells]
    calls = [(cell, at, effects[at], seed) for at, cell in enumerate(cells)]
    costs = [matrix_cells.plan_of(c.parameter, e)[0].num_trials for c, _, e, _ in calls]
    results: dict[int, dict[str, Any]] = {}
    done = 0
    for at, result in _finished(calls, min(jobs, len(calls))):
        results[at] = result
        done += costs[at]
        seconds = time.perf_counter() - begin
        _say(cells[at], Progress(result, len(results), len(cells), done / sum(costs), seconds))
    found = [results[at] for at in range(len(cells))]
    return {
        "benchmark": "matrix",
        "is_correct": all(result["as_expected"] for result in found),
        "conditions": before,
        "seconds": round(time.perf_counter() - begin, 1),
        "jobs": jobs,
        "seed": seed,
        "num_ids": matrix_cells.V,
        "num_drafts": matrix_cells.K,
        "num_tokens": matrix_cells.LENGTH,
        "effect": effect,
        "fault_effect": FAULT_EFFECT,
        "false_alarm": FALSE_ALARM,
        "miss": MISS,
        "texts": sum(result["num_trials"] for result in found),
        "cells": [result for result in found if result["fault"] is None],
        "faults": [result for result in found if result["fault"] is not None],
    }


def _finished(
    calls: list[tuple[Cell, int, float, int]], jobs: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    if jobs > 1:
        yield from completed(matrix_cells.run_cell, calls, jobs)
        return
    for at, call in enumerate(calls):
        yield at, matrix_cells.run_cell(*call)


def _say(cell: Cell, progress: Progress[dict[str, Any]]) -> None:
    word = "as expected" if progress.result["as_expected"] else "NOT AS EXPECTED"
    print(
        f"{progress.num_done} of {progress.num_rows}, about {progress.seconds_left:.0f} s left: "
        f"{cell}: {word}",
        file=sys.stderr,
        flush=True,
    )


def _lines(document: dict[str, Any]) -> str:
    """The document as JSON, a cell a line."""
    parts = []
    for name, value in document.items():
        text = json.dumps(value)
        if isinstance(value, list):
            text = "[\n" + ",\n".join(f"  {json.dumps(cell)}" for cell in value) + "\n ]"
        parts.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
