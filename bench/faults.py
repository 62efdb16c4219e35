"""Runs of the catalogue of planted faults, row by row, and the tables of `docs/faults.md`.

    python bench/faults.py --pilot 101 102 103 104 105 [--only ROW ...]   # fault_pilots.json
    python bench/faults.py --record [--only ROW ...] [--missing]          # faults.json
    python bench/faults.py                                                # writes the page

A pilot runs each planted fault to FAIL, however long it takes, with seeds that the recorded run
does not have: planned tokens come from it. Rows run in `--jobs` processes and are written as they
come; others stay as they were recorded, so a run that was broken off goes on with `--missing`. A
table stands between `<!-- name -->` and `<!-- end -->`; everything else of the page is prose.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from blocks import fill, markdown_table, rewrite
from conditions import ROOT, conditions, describe

from fairdraft.audit.faults import CASES, Case, Catalogue, Outcome, find_cases, run_case
from fairdraft.audit.faults import run_catalogue as run_cases
from fairdraft.audit.faults.document import document
from fairdraft.audit.processes import Progress, completed, num_processors
from fairdraft.cli.document import dumps, library_versions
from fairdraft.stats.verdict import VerdictState

PAGE = ROOT / "docs" / "faults.md"
RECORDED = ROOT / "bench" / "results" / "faults.json"
PILOTS = ROOT / "bench" / "results" / "fault_pilots.json"
#: seed of the recorded run
SEED = 0
#: a pilot gives up after so many times the planned tokens
PATIENCE = 10


def main() -> int:
    """Runs what is asked for, or writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pilot", type=int, nargs="+", metavar="SEED", help="run pilots")
    parser.add_argument("--record", action="store_true", help="run rows as they are recorded")
    parser.add_argument("--only", nargs="+", default=[], metavar="ROW", help="these rows alone")
    parser.add_argument("--missing", action="store_true", help="rows that are not recorded alone")
    parser.add_argument("--jobs", type=int, default=num_processors(), help="processes")
    given = parser.parse_args()
    if given.pilot and given.record:
        parser.error("--pilot and --record write two files; give one of them")
    try:
        cases = find_cases(given.only)
    except ValueError as error:
        parser.error(f"--only: {error}")
    if not (given.pilot or given.record):
        rewrite(PAGE, filled)
        return 0
    torch.set_num_threads(1)
    if given.pilot:
        pilot(cases, given.pilot, given.missing, given.jobs)
        return 0
    return record(cases, given.missing, given.jobs)


def record(cases: Sequence[Case], only_missing: bool, jobs: int) -> int:
    """Runs rows and writes each into the recorded run; 1 if one is not as expected, else 0."""
    rows = {row["name"]: row for row in _read(RECORDED).get("rows", [])}
    asked = [case for case in cases if not (only_missing and case.name in rows)]
    commit = conditions()["commit"]

    def keep(progress: Progress[Outcome]) -> None:
        outcome = progress.result
        (row,) = document(Catalogue((outcome,), SEED, outcome.seconds))["rows"]
        rows[outcome.case.name] = row | {"commit": commit}
        RECORDED.write_text(dumps(merged(rows)) + "\n", encoding="utf-8")
        said = "; ".join(outcome.surprises) or str(outcome.verdict.state)
        _say(progress, f"{outcome.case.name}: {said}")

    if asked:
        run_cases(asked, seed=SEED, jobs=min(jobs, len(asked)), on_progress=keep)
    return merged(rows)["exit_code"]


def merged(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One document of the catalogue's rows, in its order, from runs at any time."""
    found = [rows[case.name] for case in CASES if case.name in rows]
    surprises = [f"{row['name']}: {clause}" for row in found for clause in row["surprises"]]
    return {
        **document(Catalogue((), SEED, sum(row["seconds"] for row in found))),
        "rows": found,
        "surprises": surprises,
        "exit_code": 1 if surprises else 0,
        "versions": library_versions(),
    }


def pilot(cases: Sequence[Case], seeds: Sequence[int], only_missing: bool, jobs: int) -> None:
    """Runs faults that must FAIL with each seed, and writes each with the tokens it took."""
    written = _read(PILOTS)
    found = dict(written.get("tokens_to_fail", {})) if written.get("seeds") == seeds else {}
    names = [
        case.name
        for case in cases
        if case.fault is not None
        and case.expected is VerdictState.FAIL
        and not (only_missing and case.name in found)
    ]
    before, begin = conditions(), time.perf_counter()
    for done, (at, tokens) in enumerate(_finished(pilot_of, [(n, seeds) for n in names], jobs), 1):
        found[names[at]] = tokens
        kept = {case.name: found[case.name] for case in CASES if case.name in found}
        # those of the larger part, where some rows are piloted apart
        where = before if len(names) > len(kept) / 2 else written.get("conditions", before)
        result = {"conditions": where, "seeds": seeds, "tokens_to_fail": kept}
        PILOTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        seconds = time.perf_counter() - begin
        progress = Progress(tokens, done, len(names), done / len(names), seconds)
        _say(progress, f"{names[at]}: {tokens}")


def pilot_of(name: str, seeds: Sequence[int]) -> list[int | None]:
    """Tokens to FAIL of one row with each seed, with patience."""
    (case,) = find_cases([name])
    patient = replace(case, num_tokens=PATIENCE * case.num_tokens)
    return [run_case(patient, seed).tokens_to_fail for seed in seeds]


def _finished(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], jobs: int
) -> Iterator[tuple[int, Any]]:
    if min(jobs, len(calls)) > 1:
        yield from completed(function, calls, min(jobs, len(calls)))
        return
    for at, call in enumerate(calls):
        yield at, function(*call)


def _say(progress: Progress[Any], said: str) -> None:
    count = f"{progress.num_done} of {progress.num_rows}"
    print(f"{count}, about {progress.seconds_left:.0f} s left: {said}", file=sys.stderr, flush=True)


def _read(path: Any) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def filled(page: str) -> str:
    """The page with each block written anew from the results."""
    recorded, pilots = _read(RECORDED), _read(PILOTS)
    planted = [row for row in recorded["rows"] if row["function"] is not None]
    clean = [row for row in recorded["rows"] if row["function"] is None]
    commits = Counter(row["commit"] for row in recorded["rows"])
    at = ", ".join(f"{count} at commit {commit}" for commit, count in commits.items())
    whole = f"{len(recorded['rows'])} rows recorded, {at}"
    columns = ("fault", "what is wrong", "function", "setup", "planned", "pilots", "FAIL after")
    blocks = {
        "conditions": f"{describe(pilots['conditions'])}; seeds of the pilots {pilots['seeds']}, "
        f"seed of the recorded run {recorded['seed']}; {whole}.\n",
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
    named += ["the text"] if row["num_differing"] else []
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
    sys.exit(main())
