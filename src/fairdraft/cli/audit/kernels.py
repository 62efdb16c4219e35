"""`fairdraft audit kernels`: our ops under the noise layouts of public engines, and under ours."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fairdraft.cli import options
from fairdraft.cli.audit import rows
from fairdraft.cli.compiling import compiling_is_said
from fairdraft.cli.failure import guarded, say

if TYPE_CHECKING:
    from rich.console import Console

    from fairdraft.audit.kernels.result import RowResult
    from fairdraft.audit.kernels.run import KernelAudit

__all__ = ["kernels", "register"]

Quick = Annotated[bool, typer.Option("--quick", help="Leave out the rows that take longest.")]
Device = Annotated[
    str,
    typer.Option(help="cpu; or cuda: the kernels of a GPU, with larger rows besides."),
]
Seed = Annotated[int, typer.Option(help="Another integer gives other samples.")]


@guarded
def kernels(
    quick: Quick = False,
    seed: Seed = 0,
    device: Device = "cpu",
    jobs: rows.Jobs = None,
    json: options.Json = False,
) -> int:
    """Audit our ops under the noise layouts of public engines, and under ours.

    Reproduces the published figures of shared draft-residual noise. On a GPU
    (--device cuda) the layouts are planted in its kernels, and --jobs is how
    many processes compile them ahead. The table goes to stdout, progress to
    stderr. Exit codes: 0 if every row came to what was expected of it, else 1.
    """
    notes = rows.opened()
    from rich.console import Console

    from fairdraft.audit.kernels import document
    from fairdraft.audit.kernels.table import WIDTH, kernel_view

    run = _on_host if device == "cpu" else _on_device
    found = run(notes, quick, seed, device, jobs)
    if json:
        from fairdraft.cli.document import dumps, library_versions

        sys.stdout.write(dumps({**document(found), "versions": library_versions()}) + "\n")
        return found.exit_code
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(kernel_view(found))
    return found.exit_code


@compiling_is_said()
def _on_host(notes: Console, quick: bool, seed: int, device: str, jobs: int | None) -> KernelAudit:
    from fairdraft.audit.kernels import rows_of, run_kernels

    chosen = rows_of(quick=quick)
    jobs = rows.settled(jobs)
    with rows.shown(notes, len(chosen), jobs, _said, transient=False) as on_progress:
        return run_kernels(chosen, seed=seed, jobs=jobs, on_progress=on_progress)


def _on_device(
    notes: Console, quick: bool, seed: int, device: str, jobs: int | None
) -> KernelAudit:
    from fairdraft.audit.kernels.device.rows import device_rows_of
    from fairdraft.audit.kernels.device.setting import checked_device

    checked_device(device)
    from fairdraft.audit.kernels.device.run import run_on_device

    chosen = device_rows_of(quick=quick)
    if jobs != 1:
        say("compiling the kernels of all rows first, in processes of their own")
    # rows run one after the other, in this process
    with rows.shown(notes, len(chosen), 1, _said, transient=False) as on_progress:
        return run_on_device(
            chosen,
            device=device,
            seed=seed,
            jobs=jobs,
            has_streams=not quick,
            on_progress=on_progress,
        )


def register(app: typer.Typer) -> None:
    """Adds the command to an application."""
    app.command(name="kernels")(kernels)


def _said(result: RowResult) -> str:
    return f"{result.row.name}: {result.judgment.state}"
