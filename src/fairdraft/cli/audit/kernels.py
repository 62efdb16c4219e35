"""`fairdraft audit kernels`: our ops under the noise layouts of public engines, and under ours."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from fairdraft.cli import options
from fairdraft.cli.failure import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from fairdraft.audit.kernels import Progress

__all__ = ["kernels", "register"]

#: more would wait for the longest row
MAX_JOBS = 4

Quick = Annotated[
    bool, typer.Option("--quick", help="Leave out the wide vocabulary and the acceptance probe.")
]
Seed = Annotated[int, typer.Option(help="Another integer gives other samples.")]
Jobs = Annotated[
    int | None,
    typer.Option(help="Processes; as many as there are processors, up to 4.", min=1, max=64),
]


@guarded
def kernels(
    quick: Quick = False, seed: Seed = 0, jobs: Jobs = None, json: options.Json = False
) -> int:
    """Audit our ops under the noise layouts of public engines, and under ours.

    Reproduces the published figures of shared draft-residual noise. The table
    goes to stdout, progress to stderr. Exit codes: 0 if every row came to what
    was expected of it, else 1.
    """
    from rich.console import Console

    notes = Console(file=sys.stderr, highlight=False)
    notes.print("[dim]loading[/]" if notes.is_terminal else "loading", soft_wrap=True)
    from fairdraft.audit.kernels import document, rows_of, run_kernels
    from fairdraft.audit.kernels.table import WIDTH, kernel_view

    rows = rows_of(quick=quick)
    jobs = jobs or min(_num_processors(), MAX_JOBS)
    with _shown(notes, len(rows), jobs) as on_progress:
        found = run_kernels(rows, seed=seed, jobs=jobs, on_progress=on_progress)
    if json:
        from fairdraft.cli.document import dumps, library_versions

        sys.stdout.write(dumps({**document(found), "versions": library_versions()}) + "\n")
        return found.exit_code
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(kernel_view(found))
    return found.exit_code


def register(app: typer.Typer) -> None:
    """Adds the command to an application."""
    app.command(name="kernels")(kernels)


def _num_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _shown(notes: Console, num_rows: int, jobs: int) -> Iterator[Callable[[Progress], None]]:
    """Shows progress while the block runs: a bar on a terminal, a line a row elsewhere."""
    processes = f"{jobs} process" + ("es" if jobs > 1 else "")
    if not notes.is_terminal:
        notes.print(f"{num_rows} rows in {processes}", soft_wrap=True)
        yield lambda step: notes.print(_line(step), soft_wrap=True, markup=False)
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    text = TextColumn("{task.description}")
    with Bar(text, BarColumn(), TextColumn("{task.fields[left]}"), console=notes) as bar:
        task = bar.add_task(f"{num_rows} rows in {processes}", total=1.0, left="starting")

        def move(step: Progress) -> None:
            bar.update(
                task,
                completed=step.share,
                description=f"{step.num_done} of {step.num_rows} rows",
                left=f"about {step.seconds_left:.0f} s left",
            )

        yield move


def _line(step: Progress) -> str:
    row, judgment = step.result.row, step.result.judgment
    return (
        f"{step.num_done} of {step.num_rows} rows, about {step.seconds_left:.0f} s left: "
        f"{row.name}: {judgment.state}"
    )
