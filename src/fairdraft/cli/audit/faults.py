"""`fairdraft audit faults`: plants known mistakes one by one, and the audit must find each."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from fairdraft.cli import options
from fairdraft.cli.failure import UsageFault, guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from fairdraft.audit.faults import Progress

__all__ = ["faults", "register"]

#: more would wait for the longest row
MAX_JOBS = 4

Only = Annotated[
    list[str] | None,
    typer.Option(help="Run this row alone; may be given again.", metavar="NAME"),
]
List = Annotated[bool, typer.Option("--list", help="Print the catalogue, and run nothing.")]
Seed = Annotated[int, typer.Option(help="Another integer gives other texts.")]
Jobs = Annotated[
    int | None,
    typer.Option(help="Processes; as many as there are processors, up to 4.", min=1, max=64),
]


@guarded
def faults(
    only: Only = None,
    list_: List = False,
    seed: Seed = 0,
    jobs: Jobs = None,
    json: options.Json = False,
) -> int:
    """Plant known mistakes one by one; the audit must find each within its planned tokens.

    A fault is an override of one function of the production path. Clean rows, with
    nothing planted, must not fail. The table goes to stdout, progress to stderr. Exit
    codes: 0 if every row came to what was expected of it, else 1.
    """
    from rich.console import Console

    from fairdraft.audit.faults import find_cases
    from fairdraft.audit.faults.document import case_document, document
    from fairdraft.audit.faults.table import MIN_WIDTH, case_view, catalogue_view
    from fairdraft.cli.document import dumps, library_versions

    try:
        cases = find_cases(only or ())
    except ValueError as error:
        raise UsageFault(f"--only: {error}") from None
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = MIN_WIDTH
    if list_:
        if json:
            sys.stdout.write(dumps(case_document(cases)) + "\n")
        else:
            console.print(case_view(cases))
        return 0
    from fairdraft.audit.faults import run_catalogue

    jobs = min(jobs or min(_num_processors(), MAX_JOBS), len(cases))
    notes = Console(file=sys.stderr, highlight=False)
    with _shown(notes, len(cases), jobs) as on_progress:
        found = run_catalogue(cases, seed=seed, jobs=jobs, on_progress=on_progress)
    if json:
        sys.stdout.write(dumps({**document(found), "versions": library_versions()}) + "\n")
    else:
        console.print(catalogue_view(found))
    return found.exit_code


def register(app: typer.Typer) -> None:
    """Adds the command to an application."""
    app.command(name="faults")(faults)


def _num_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _shown(notes: Console, num_cases: int, jobs: int) -> Iterator[Callable[[Progress], None]]:
    """Shows progress while the block runs: a bar on a terminal, a line a row elsewhere."""
    rows = f"{num_cases} row" + ("s" if num_cases > 1 else "")
    start = f"{rows} in {jobs} process" + ("es" if jobs > 1 else "")
    if not notes.is_terminal:
        notes.print(start, soft_wrap=True)
        yield lambda step: notes.print(_line(step), soft_wrap=True, markup=False)
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), TextColumn("{task.fields[left]}"))
    with Bar(*columns, console=notes, transient=True) as bar:
        task = bar.add_task(start, total=1.0, left="")

        def move(step: Progress) -> None:
            bar.update(
                task,
                completed=step.share,
                description=f"{step.num_done} of {step.num_cases} rows",
                left=f"about {step.seconds_left:.0f} s left",
            )

        yield move


def _line(step: Progress) -> str:
    outcome = step.outcome
    mark = "NOT AS EXPECTED: " if outcome.surprises else ""
    clauses = "; ".join(outcome.surprises) or str(outcome.verdict.state)
    return (
        f"{step.num_done} of {step.num_cases} rows, about {step.seconds_left:.0f} s left: "
        f"{outcome.case.name}: {mark}{clauses}"
    )
