"""A planted fault: one production function, and what to put in its place."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fairdraft.noise import Trace

__all__ = ["Fault", "Planting"]

Function = Callable[..., Any]

_IN_PLACE = threading.Lock()


@dataclass
class Planting:
    """A fault while it is in place.

    Attributes:
        count: How often the faulty function ran.
        trace: Where a faulty layout notes draws that it hides inside others, or None.
    """

    count: int = 0
    trace: Trace | None = None


@dataclass(frozen=True)
class Fault:
    """A mistake somebody made, as an override of one function of the production path.

    Attributes:
        name: Short and unique, words joined by hyphens.
        title: What is wrong, a clause.
        function: Dotted path of the function, where the product looks it up.
        make: From the original and the planting to the faulty function.
        kind: What goes wrong: "address", "q", "accept", "residual", "row" or "processor".
        source: Public report that it comes from, if any.
    """

    name: str
    title: str
    function: str
    make: Callable[[Function, Planting], Function] = field(repr=False)
    kind: str
    source: str = ""

    @contextmanager
    def planted(self, trace: Trace | None = None) -> Iterator[Planting]:
        """Puts the faulty function in place, in the whole process, until the block ends.

        Args:
            trace: The trace that the subject records to, if any.

        Raises:
            ValueError: If a fault is in place already.
        """
        if not _IN_PLACE.acquire(blocking=False):
            raise ValueError(
                f"a fault is in place, so {self.name!r} cannot be; end its block first"
            )
        planting = Planting(trace=trace)
        try:
            owner, attribute, faulty = self.replacement(planting)
            original = getattr(owner, attribute)
            setattr(owner, attribute, faulty)
            try:
                yield planting
            finally:
                setattr(owner, attribute, original)
        finally:
            _IN_PLACE.release()

    def replacement(self, planting: Planting) -> tuple[Any, str, Function]:
        """What to set: owner, attribute and the faulty function, which counts its calls."""
        owner, attribute = self._locate()
        original = getattr(owner, attribute)
        faulty = self.make(original, planting)

        @functools.wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            planting.count += 1
            return faulty(*args, **kwargs)

        return owner, attribute, counted

    def _locate(self) -> tuple[Any, str]:
        """The module or class that holds the function, and its name there."""
        *path, attribute = self.function.split(".")
        for length in range(len(path), 0, -1):
            name = ".".join(path[:length])
            try:
                owner = importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name != name:
                    raise
                continue
            return functools.reduce(getattr, path[length:], owner), attribute
        raise AssertionError(f"no module in {self.function}")
