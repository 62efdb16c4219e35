"""Rows of work spread over processes, and how far they are."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

__all__ = ["Progress", "completed", "num_processors"]

T = TypeVar("T")

_COMPILE = "numba:compile"
#: seconds within which a compilation of a child is known
_LOOK_EVERY = 0.2


@dataclass(frozen=True)
class Progress(Generic[T]):
    """How far a run of rows is.

    Attributes:
        result: Of the row that was just finished.
        num_done, num_rows: Rows.
        share: Of the work, about, 0..1.
        seconds: Since the run began.
    """

    result: T
    num_done: int
    num_rows: int
    share: float
    seconds: float

    @property
    def seconds_left(self) -> float:
        """About how long the rest takes."""
        return self.seconds * (1.0 - self.share) / self.share


def num_processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def completed(
    function: Callable[..., T], calls: Sequence[tuple[Any, ...]], jobs: int
) -> Iterator[tuple[int, T]]:
    """Yields the number and the result of each call as they come.

    The first compilation of a child is an event of numba here, for whoever listens to its own.

    Args:
        function: Importable by name.
        calls: Its arguments, picklable; they begin in this order.
        jobs: Processes, at least 2, each a fresh interpreter with one thread of torch.
    """
    # a fork would copy the locks of threads that it does not have
    context = multiprocessing.get_context("spawn")
    before = multiprocessing.active_children()
    # without a lock, which a child that is killed would keep
    compiles = context.RawValue(ctypes.c_bool, False)
    pool = ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_begin_worker, initargs=(compiles,)
    )
    try:
        futures = {pool.submit(function, *call): at for at, call in enumerate(calls)}
        left, is_told = set(futures), False
        while left:
            done, left = wait(left, None if is_told else _LOOK_EVERY, FIRST_COMPLETED)
            if compiles.value and not is_told:
                is_told = True
                _tell_of_compilation()
            for future in done:
                yield futures[future], future.result()
    except BaseException:
        for child in set(multiprocessing.active_children()) - set(before):
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _tell_of_compilation() -> None:
    from numba.core.event import trigger_event

    with trigger_event(_COMPILE):
        pass


def _begin_worker(compiles: Any) -> None:
    import torch

    # dies of Ctrl-C without a word; the parent says it
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)
    if find_spec("numba") is None:
        return
    from numba.core.event import Listener, register

    class Notice(Listener):
        def on_start(self, compilation: Any) -> None:
            compiles.value = True

        def on_end(self, compilation: Any) -> None:
            pass

    register(_COMPILE, Notice())
