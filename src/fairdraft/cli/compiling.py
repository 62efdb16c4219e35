"""Says that kernels are being compiled, where nothing else would for half a minute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from fairdraft.cli.failure import say

MESSAGE = "compiling CPU kernels for their first use in this installation: up to 20 s"


@contextmanager
def compiling_is_said() -> Iterator[None]:
    """Prints a line on stderr at the first compilation in the block, if there is one.

    Kernels that the cache on disk holds are read from there, and nothing is said. Loads numba.
    """
    if find_spec("numba") is None:
        yield
        return
    from numba.core.event import Listener, install_listener

    class Notice(Listener):
        is_said = False

        def on_start(self, compilation: Any) -> None:
            if not self.is_said:
                self.is_said = True
                say(MESSAGE)

        def on_end(self, compilation: Any) -> None:
            pass

    with install_listener("numba:compile", Notice()):
        yield
