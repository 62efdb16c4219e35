"""Runs an audit for a command: progress, interruption, report and exit code."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairdraft.cli.failure import EXIT_INTERRUPTED, UsageFault

if TYPE_CHECKING:
    from rich.console import Console

    from fairdraft.audit.report import Report
    from fairdraft.audit.session import AuditSession
    from fairdraft.audit.subject import Subject

__all__ = ["Order", "check_order", "deliver", "run_subject", "stops_on_interrupt"]


@dataclass(frozen=True)
class Order:
    """What a command was asked for, apart from its subject.

    Attributes:
        eps, alpha, delta, eps0: As in `AuditSettings`.
        max_tokens: Likewise.
        max_minutes: Of this sitting, or None.
        state: File that holds the audit, or None.
        html: File of the page, or None.
        json: Whether stdout gets the JSON document in place of the tables.
    """

    eps: float = 0.01
    alpha: float = 1e-3
    delta: float = 0.01
    eps0: float | None = None
    max_tokens: int = 1_000_000
    max_minutes: float | None = None
    state: Path | None = None
    html: Path | None = None
    json: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any], **changes: Any) -> Order:
        """Takes what it holds from a command's options.

        Args:
            given: Every option by name.
            changes: What goes before them.
        """
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in given.items() if name in names} | changes)


def check_order(order: Order) -> None:
    """Refuses what could not be done at the end, before models are loaded.

    Raises:
        UsageFault: If a file could not be written there.
        ValueError: If a number is out of range, or the page could not be drawn.
    """
    settings_of(order)
    for name, path in (("--state", order.state), ("--html", order.html)):
        if path is None:
            continue
        folder = path.absolute().parent
        if not folder.is_dir():
            raise UsageFault(f"{name} {path}: there is no folder {folder}; make it first")
        if path.is_dir():
            raise UsageFault(f"{name} {path} is a folder; name a file in it")
    if order.html is not None:
        from fairdraft.audit.report.plots.canvas import check_plot_library

        check_plot_library()


def settings_of(order: Order) -> Any:
    """The audit's settings."""
    from fairdraft.audit.settings import AuditSettings

    return AuditSettings(
        eps=order.eps,
        alpha=order.alpha,
        delta=order.delta,
        eps0=order.eps0,
        max_tokens=order.max_tokens,
        max_seconds=None if order.max_minutes is None else 60.0 * order.max_minutes,
    )


def run_subject(subject: Subject, order: Order) -> int:
    """Audits a subject, shows how it goes, hands the report over.

    Returns:
        The verdict's exit code, or 130 if Ctrl-C ended the audit.
    """
    from fairdraft.audit.session import AuditInterrupted, AuditSession
    from fairdraft.cli.audit.watching import Watcher

    console = notes_console()
    watcher = Watcher(console)
    session = AuditSession(subject, settings_of(order), state_path=order.state, on_progress=watcher)
    before = session.num_tokens
    if before:
        watcher.say(f"going on from {order.state} after {before:,} tokens")
    is_interrupted = False
    with watcher, stops_on_interrupt(watcher.say) as is_stopped:
        try:
            report = session.run(is_stopped)
        except AuditInterrupted as interruption:
            report, is_interrupted = interruption.report, True
    is_interrupted = is_interrupted or (is_stopped() and report.verdict.state == "INCONCLUSIVE")
    code = deliver(report, order)
    if is_interrupted:
        watcher.say(_how_to_go_on(session, order))
        return EXIT_INTERRUPTED
    return code


def deliver(report: Report, order: Order) -> int:
    """Prints a report, writes its page, and returns the verdict's exit code."""
    report = replace(report, command=shlex.join(["fairdraft", *sys.argv[1:]]))
    if order.html is not None:
        from fairdraft.audit.report.html import write_html

        try:
            write_html(report, order.html)
            notes_console().print(f"wrote {order.html}", soft_wrap=True)
        except OSError as error:
            # the verdict stands, whatever became of its page
            notes_console().print(f"error: {order.html}: {error.strerror}", soft_wrap=True)
    if order.json:
        sys.stdout.write(json.dumps(report.to_json(), indent=1, allow_nan=False) + "\n")
        sys.stdout.flush()
        return report.exit_code
    from rich.console import Console

    from fairdraft.audit.report.table import print_report

    print_report(report, Console(file=sys.stdout, highlight=False))
    return report.exit_code


def notes_console() -> Console:
    """The console on stderr."""
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False, markup=False)


@contextmanager
def stops_on_interrupt(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Turns the first Ctrl-C of the block into an answer; the second is a KeyboardInterrupt.

    Args:
        say: Told what the first one does.

    Yields:
        A function that says whether Ctrl-C came. Outside the main thread it never does.
    """
    arrived: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(number: int, frame: Any) -> None:
        if arrived:
            raise KeyboardInterrupt
        arrived.append(number)
        say("stopping after this batch; Ctrl-C again stops at once")

    usual = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(arrived)
    finally:
        signal.signal(signal.SIGINT, usual)


def _how_to_go_on(session: AuditSession, order: Order) -> str:
    """Says how to resume; an audit without a file is saved to one first."""
    count = session.num_tokens
    if order.state is not None:
        return f"interrupted after {count:,} tokens; the same command goes on from {order.state}"
    if not count:
        return "interrupted before the first batch was scored"
    path = _free_path(f"fairdraft-audit-{session.main.info.kind}")
    try:
        session.save(path)
    except OSError as error:
        return (
            f"interrupted after {count:,} tokens, and they could not be saved to {path} "
            f"({error.strerror}); next time give --state FILE where there is room"
        )
    return f"interrupted after {count:,} tokens; the same command with --state {path} goes on"


def _free_path(stem: str) -> Path:
    path, number = Path(f"{stem}.state"), 1
    while path.exists():
        number += 1
        path = Path(f"{stem}-{number}.state")
    return path
