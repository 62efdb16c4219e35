"""Ctrl-C that waits until a short piece of work is whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Raises a Ctrl-C that arrives in the block as KeyboardInterrupt at its end.

    What the block prints and counts then agrees. Outside the main thread it does nothing, since
    Ctrl-C never arrives there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived = []
    usual = signal.signal(signal.SIGINT, lambda number, frame: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if arrived:
        raise KeyboardInterrupt
