"""How a measurement stands: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fairdraft.audit.report.wording import duration

#: seconds between two lines where lines stay
QUIET_SECONDS = 10.0


class Watcher:
    """Called after each request of a measurement; `with watcher:` around the run."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr, highlight=False)
        self._progress = Progress(
            TextColumn("{task.completed} of {task.total} requests"),
            BarColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("measure", total=None, left="")
        self._spoke_at = 0.0

    def __enter__(self) -> Watcher:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, done: int, total: int, seconds: float) -> None:
        """Shows how it goes.

        Args:
            done: Requests so far.
            total: In all.
            seconds: Since the first began.
        """
        left = f"about {duration(seconds / done * (total - done))} left"
        self._progress.update(self._task, completed=done, total=total, left=left)
        if not self._console.is_terminal and seconds - self._spoke_at >= QUIET_SECONDS:
            self._spoke_at = seconds
            self._console.print(f"{done} of {total} requests, {left}", soft_wrap=True)
