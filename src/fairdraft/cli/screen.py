"""What a person sees: status and table on stderr, the text itself on stdout."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fairdraft.cli.compare import Comparison
from fairdraft.cli.paint import PROMPT_STYLE, STYLES, Painter, legend
from fairdraft.cli.table import summary_table

if TYPE_CHECKING:
    from fairdraft.cli.session import Run
    from fairdraft.engine import RequestOutput

MAX_TITLE = 60


class Screen:
    """Two consoles: `text` is stdout, `notes` is stderr.

    Args:
        quiet: Print no text and no table, only notes; for --json.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        for stream in (sys.stdout, sys.stderr):
            # a model may say what the terminal's encoding lacks
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        self.text = Console(file=sys.stdout, highlight=False, markup=False)
        self.notes = Console(file=sys.stderr, highlight=False)

    def note(self, message: str) -> None:
        """Prints a status line at once."""
        self.notes.print(f"[dim]{escape(message)}[/]", soft_wrap=True)

    def error(self, message: str) -> None:
        """Prints an error line."""
        self.notes.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True)

    def show_table(self, run: Run, comparison: Comparison | None) -> None:
        """Prints the table of a run."""
        if not self.quiet:
            keys = [output.noise_key for output in run.outputs]
            self.notes.print()
            self.notes.print(summary_table(run.summary, keys, comparison))


class LiveText:
    """Shows a single sample while it is generated.

    Args:
        screen: Where.
        prompt: Printed first on a terminal, so that the text reads on from it.
    """

    def __init__(self, screen: Screen, prompt: str) -> None:
        self._console = screen.text
        self._painter = Painter(screen.text)
        self._prompt = prompt
        self._begun = False
        self._shown = 0

    def __call__(self, event: RequestOutput) -> None:
        """Writes what is new in an event."""
        self._begin()
        for sample in event.outputs:
            for text, source in sample.pieces:
                self._painter.write(text, STYLES[source])
                self._shown += len(text)
        self._painter.flush()

    def abandon(self) -> None:
        """Ends the line, since an error is about to be printed."""
        if self._begun:
            self._painter.close()

    def close(self, run: Run) -> None:
        """Writes what an interruption kept from being an event, and ends the line."""
        self._begin()
        if run.interrupted and run.outputs and run.outputs[0].outputs:
            self._painter.write(run.outputs[0].outputs[0].text[self._shown :])
        self._painter.close()

    def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        if self._console.is_terminal:
            self._console.print(legend())
            self._console.print()
            self._painter.write(self._prompt, PROMPT_STYLE)


class Batch:
    """A progress bar on stderr while several samples are generated; their texts at the end.

    Args:
        screen: Where; the bar shows on a terminal only.
        num_requests: Requests in the batch.
        gap: What stands between a prompt and its text on a terminal.
    """

    def __init__(self, screen: Screen, num_requests: int, gap: str = "") -> None:
        self._screen = screen
        self._gap = gap
        self._num_tokens = 0
        self._progress = Progress(
            TextColumn("{task.completed} of {task.total} requests"),
            BarColumn(),
            TextColumn("{task.fields[tokens]} tokens"),
            TimeRemainingColumn(),
            console=screen.notes,
            transient=True,
            disable=not screen.notes.is_terminal,
        )
        self._task: TaskID = self._progress.add_task("decode", total=num_requests, tokens=0)
        self._progress.start()

    def __call__(self, event: RequestOutput) -> None:
        """Moves the bar."""
        self._num_tokens += sum(len(sample.token_ids) for sample in event.outputs)
        self._progress.update(self._task, advance=int(event.finished), tokens=self._num_tokens)

    def abandon(self) -> None:
        """Removes the bar, since an error is about to be printed."""
        self._progress.stop()

    def close(self, run: Run) -> None:
        """Removes the bar and prints every text under a line that names its request."""
        self._progress.stop()
        if self._screen.quiet:
            return
        if self._screen.text.is_terminal:
            self._screen.text.print(legend())
        for number, output in enumerate(run.outputs, start=1):
            self._print_request(run, output, f"[{number}/{len(run.outputs)}]")

    def _print_request(self, run: Run, output: RequestOutput, place: str) -> None:
        console = self._screen.text
        for sample in output.outputs:
            title = f"{place} sample {sample.index}" if len(output.outputs) > 1 else place
            if not console.is_terminal:
                title += f" {_short(output.prompt or '')}"
            console.print(f"\n{title}", style="bold", soft_wrap=True)
            painter = Painter(console)
            if console.is_terminal:
                painter.write((output.prompt or "") + self._gap, PROMPT_STYLE)
            pieces = run.transcript.pieces(output.request_id, sample.index)
            for text, source in pieces:
                painter.write(text, STYLES[source])
            painter.write(sample.text[sum(len(text) for text, _ in pieces) :])
            painter.close()


def _short(prompt: str) -> str:
    line = " ".join(prompt.split())
    return line if len(line) <= MAX_TITLE else line[: MAX_TITLE - 1] + "\u2026"
