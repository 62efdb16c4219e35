"""The equivalence matrix by the engine: every parameter under every rule and kind of drafts.

    python bench/matrix.py [--effect 0.04] [--seed 0] [--jobs 2] [--quick] [--only TEXT ...]
    python bench/matrix.py --record --effect 0.1 [--only TEXT ...] [--missing]

`LLM.generate` on toys of four ids, two drafts a round (under `tree` two candidates for each), for
each parameter x rule x kind of q, and for each parameter with a fault planted; under
`common_noise` and `tree` faults of the rule as well. The joint law of the first three tokens is
tested against the definitions by a chi-square test that is planned before: it refuses a right
engine with chance 1e-9 a cell and passes one that is off by `--effect` in total variation with
chance 1e-6. Under `common_noise` 512 texts are compared with plain decoding too, token for token.
Exits 1 if a cell fails, or a planted fault does not. The last line of stdout is JSON; `--record`
keeps each cell in `results/matrix.json` as it ends, which `matrix_page.py` reads: a run that was
broken off goes on with `--missing`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import matrix_cells
import matrix_record
import torch
from conditions import ROOT, conditions
from matrix_cells import Cell
from matrix_faults import FAULT_EFFECT

from fairdraft.audit.processes import Progress, completed, num_processors
from fairdraft.stats.power import FALSE_ALARM, MISS

RECORDED = ROOT / "bench" / "results" / "matrix.json"
#: TV that a cell must see
EFFECT = 0.04
QUICK_EFFECT, QUICK_PARAMETERS = 0.3, ("presence_penalty", "bad_words")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--effect", type=float, default=EFFECT, help="TV that a cell must see")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=num_processors(), help="processes")
    parser.add_argument("--quick", action="store_true", help="two parameters, in seconds")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="cells whose names hold a text")
    parser.add_argument("--record", action="store_true", help="keep cells in results/matrix.json")
    parser.add_argument("--missing", action="store_true", help="cells that are not recorded alone")
    given = parser.parse_args()
    if given.missing and not given.record:
        parser.error("--missing looks at what is recorded: give --record too")
    torch.set_num_threads(1)
    missing = matrix_cells.left_out()
    for name, why in missing.items():
        print(f"left out: {name}, {why}", file=sys.stderr)
    if given.quick:
        given.effect = QUICK_EFFECT
    settings = settings_of(given.effect, given.seed)
    kept = matrix_record.Record(RECORDED, settings)
    is_whole = not (given.only or given.missing)
    if given.record and not is_whole:
        try:
            kept.read()
        except ValueError as error:
            parser.error(f"--record: {error}")
    chosen = [
        (number, cell)
        for number, cell in enumerate(matrix_cells.cells(matrix_cells.PARAMETERS))
        if cell.parameter not in missing
        and (not given.quick or cell.parameter in QUICK_PARAMETERS)
        and (not given.only or any(text in str(cell) for text in given.only))
        and not (given.missing and kept.has(asdict(cell)))
    ]
    if not chosen:
        parser.error("no such cell: --only takes parts of names such as 'rule block, sparse q'")
    keep = kept.keeper(given.jobs) if given.record else lambda result, seconds: None
    document = measure(chosen, settings, given.jobs, keep)
    document["left_out"] = missing
    for cell in document["cells"] + document["faults"]:
        if not cell["as_expected"]:
            print(f"not as expected: {cell}", file=sys.stderr)
    print(json.dumps(document))
    return 0 if document["is_correct"] else 1


def settings_of(effect: float, seed: int) -> dict[str, Any]:
    """What cells must share to stand in one table."""
    return {
        "benchmark": "matrix",
        "seed": seed,
        "num_ids": matrix_cells.V,
        "num_drafts": matrix_cells.K,
        "num_tokens": matrix_cells.LENGTH,
        "effect": effect,
        "fault_effect": FAULT_EFFECT,
        "false_alarm": FALSE_ALARM,
        "miss": MISS,
    }


def measure(
    chosen: Sequence[tuple[int, Cell]],
    settings: dict[str, Any],
    jobs: int,
    keep: Callable[[dict[str, Any], float], None],
) -> dict[str, Any]:
    """Runs cells.

    Args:
        chosen: Cells and their numbers in the matrix, which name their seeds.
        settings: Of `settings_of`.
        jobs: Processes.
        keep: Called with each result as it comes, and with the seconds since the run began.
    """
    before, begin = conditions(), time.perf_counter()
    effect, seed = settings["effect"], settings["seed"]
    calls = [(c, n, matrix_cells.effect_of(c, effect), seed) for n, c in chosen]
    costs = [matrix_cells.plan_of(c, e)[0].num_trials for c, _, e, _ in calls]
    results: dict[int, dict[str, Any]] = {}
    done = 0
    for at, result in _finished(calls, min(jobs, len(calls))):
        results[at] = result
        done += costs[at]
        seconds = time.perf_counter() - begin
        keep(result, seconds)
        share = done / sum(costs)
        _say(chosen[at][1], Progress(result, len(results), len(chosen), share, seconds))
    run = {"conditions": before, "seconds": round(time.perf_counter() - begin, 1), "jobs": jobs}
    found = [results[at] for at in range(len(chosen))]
    return matrix_record.document(settings, [run | {"num_cells": len(found)}], found)


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


if __name__ == "__main__":
    sys.exit(main())
