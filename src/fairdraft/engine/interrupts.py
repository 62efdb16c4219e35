"""Ctrl-C between two consistent states, never in the middle of a change."""

from __future__ import annotations

# every round comes by, and `signal` spends ten times longer on turning numbers into enumerations
import _signal  # pyright: ignore[reportMissingImports]
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Raises a KeyboardInterrupt that arrives inside the block at its end.

    Only Python's own handler is replaced, and only in the main thread, where signals arrive; a
    handler of the caller's stays as it is.
    """
    is_ours = (
        threading.current_thread() is threading.main_thread()
        and _signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not is_ours:
        yield
        return
    held: list[FrameType | None] = []
    _signal.signal(signal.SIGINT, lambda number, frame: held.append(frame))
    try:
        yield
    finally:
        _signal.signal(signal.SIGINT, signal.default_int_handler)
    if held:
        raise KeyboardInterrupt
