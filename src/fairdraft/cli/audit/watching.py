"""Shows how an audit goes: a few live lines on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.live import Live
from rich.text import Text

from fairdraft.audit.report.wording import duration, exponent

if TYPE_CHECKING:
    from rich.console import Console

    from fairdraft.audit.progress import Progress

__all__ = ["Watcher", "progress_lines"]

#: seconds between two lines where lines stay
QUIET_SECONDS = 10.0
BAR_WIDTH = 24
_STAGES = {
    "addresses": "tracing the addresses of some draws",
    "replay": "replaying some rounds",
    "contexts": "comparing some logits with a forward over the whole text",
}


class Watcher:
    """Called with every progress of an audit; `with watcher:` around the run.

    Args:
        console: On stderr.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, transient=True, auto_refresh=False)
        self._spoke_at = -QUIET_SECONDS

    def __enter__(self) -> Watcher:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, sentence: str) -> None:
        """Prints a line that stays."""
        self._console.print(sentence, style="dim", soft_wrap=True)

    def __call__(self, progress: Progress) -> None:
        """Shows how it goes."""
        for sentence in progress.notes:
            self.say(sentence)
        if self._console.is_terminal:
            self._live.update(Text("\n").join(progress_lines(progress)), refresh=True)
            return
        is_stage = not progress.num_tokens or not progress.tokens_per_second
        if is_stage or time.monotonic() - self._spoke_at >= QUIET_SECONDS:
            self._spoke_at = time.monotonic()
            self.say("; ".join(line.plain for line in progress_lines(progress, bar=False)))


def progress_lines(progress: Progress, *, bar: bool = True) -> list[Text]:
    """How far it is, how fast, and what is found so far; each fits 80 columns."""
    if progress.stage in _STAGES:
        return [Text(_STAGES[progress.stage], style="dim")]
    count, planned = progress.num_tokens, progress.planned_tokens
    goal = "" if planned is None else f" of about {planned:,}"
    first = Text.assemble((f"{progress.stage}: ", "bold"), f"{count:,}{goal} tokens")
    if bar and planned:
        done = min(BAR_WIDTH, BAR_WIDTH * count // planned)
        first = Text.assemble(("━" * done, "cyan"), ("━" * (BAR_WIDTH - done), "dim"), " ", first)
    second = f"log10 E {exponent(progress.log10_e)} of {exponent(progress.threshold)}"
    if progress.tokens_per_second:
        second = f"{progress.tokens_per_second:,.0f} tokens/s, {second}"
    left = progress.seconds_left
    if left is not None:
        second += f", about {duration(left)} left"
    lines = [first, Text(second, style="dim")]
    if progress.largest is not None:
        third = (
            f"{progress.largest}: deviation {progress.deviation:.4f}, at most "
            f"{progress.upper:.4f}; eps {progress.eps:g}"
        )
        lines.append(Text(third, style="dim"))
    return lines
