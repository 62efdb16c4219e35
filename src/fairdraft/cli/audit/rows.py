"""What the commands that run a table of rows share: processes and progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from fairdraft.audit.processes import Progress

#: more would wait for the longest row
MAX_JOBS = 4

Jobs = Annotated[
    int | None,
    typer.Option(help="Processes; as many as there are processors, up to 4.", min=1, max=64),
]


def settled(jobs: int | None) -> int:
    """Processes to use."""
    from fairdraft.audit.processes import num_processors

    return jobs or min(num_processors(), MAX_JOBS)


def opened() -> Console:
    """The console on stderr, which says at once that something happens."""
    from rich.console import Console

    notes = Console(file=sys.stderr, highlight=False)
    notes.print("[dim]loading[/]" if notes.is_terminal else "loading", soft_wrap=True)
    return notes


@contextmanager
def shown(
    notes: Console, num_rows: int, jobs: int, say: Callable[[Any], str], *, transient: bool
) -> Iterator[Callable[[Progress[Any]], None]]:
    """Shows progress while the block runs: a bar on a terminal, a line a row elsewhere.

    Args:
        notes: The console on stderr.
        num_rows: Rows in all.
        jobs: Processes.
        say: Name and result of a finished row in a few words.
        transient: Whether the bar goes away at the end.

    Yields:
        What to call after each row.
    """
    rows = f"{num_rows} row" + ("s" if num_rows > 1 else "")
    start = f"{rows} in {jobs} process" + ("es" if jobs > 1 else "")
    if not notes.is_terminal:
        notes.print(start, soft_wrap=True)
        yield lambda step: notes.print(
            f"{_count(step)}, {_left(step)}: {say(step.result)}", soft_wrap=True, markup=False
        )
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Bar(*columns, console=notes, transient=transient) as bar:
        task = bar.add_task(start, total=1.0, left="starting")

        def move(step: Progress[Any]) -> None:
            bar.update(task, completed=step.share, description=_count(step), left=_left(step))

        yield move


def _count(step: Progress[Any]) -> str:
    return f"{step.num_done} of {step.num_rows} rows"


def _left(step: Progress[Any]) -> str:
    return f"about {step.seconds_left:.0f} s left"
