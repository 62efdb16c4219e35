"""What makes a function a kernel: compiled once for a machine, and again when a source changed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit

from fairdraft import noise, ops


def kernel(function: Callable[..., Any]) -> Any:
    """Compiles on first use, without the interpreter lock, and keeps the result on disk.

    The disk cache is looked up by name and by the age of the function's own file. A kernel calls
    into other files, so its name carries a digest of all of them: an edited helper is never
    answered by old machine code. Where no folder can be written it is compiled in every process.
    """
    function.__qualname__ += f"_{_sources_digest()}"
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:
        return njit(**options)(function)


@cache
def _sources_digest() -> str:
    mix = hashlib.blake2b(digest_size=6)
    for room in (noise, ops):
        for path in sorted(Path(str(room.__file__)).parent.rglob("*.py")):
            mix.update(path.read_bytes())
    return mix.hexdigest()
