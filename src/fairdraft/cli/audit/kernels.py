"""`fairdraft audit kernels`: our ops under the noise layouts of public engines, and under ours."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fairdraft.cli import options
from fairdraft.cli.audit import rows
from fairdraft.cli.failure import guarded

if TYPE_CHECKING:
    from fairdraft.audit.kernels.result import RowResult

__all__ = ["kernels", "register"]

Quick = Annotated[
    bool, typer.Option("--quick", help="Leave out the wide vocabulary and the acceptance probe.")
]
Seed = Annotated[int, typer.Option(help="Another integer gives other samples.")]


@guarded
def kernels(
    quick: Quick = False, seed: Seed = 0, jobs: rows.Jobs = None, json: options.Json = False
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

    chosen = rows_of(quick=quick)
    jobs = rows.settled(jobs)
    with rows.shown(notes, len(chosen), jobs, _said, transient=False) as on_progress:
        found = run_kernels(chosen, seed=seed, jobs=jobs, on_progress=on_progress)
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


def _said(result: RowResult) -> str:
    return f"{result.row.name}: {result.judgment.state}"
