"""Which implementation runs: an explicit request is honoured or refused, never changed."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Literal, get_args

Impl = Literal["auto", "reference", "cpu", "triton"]

_IMPLS = get_args(Impl)


def resolve_impl(impl: Impl) -> Literal["reference", "cpu"]:
    """Names the implementation to run.

    Raises:
        ValueError: If it is unknown, or cannot run here (the message says why).
    """
    if impl not in _IMPLS:
        raise ValueError(f"impl = {impl!r} is unknown; choose one of {', '.join(_IMPLS)}")
    if impl == "triton":
        raise ValueError("impl = 'triton' has no kernels in this release; use 'auto' or 'cpu'")
    if impl == "reference":
        return "reference"
    if _has_numba():
        return "cpu"
    if impl == "cpu":
        raise ValueError("impl = 'cpu' needs numba; pip install numba, or use 'reference'")
    return "reference"


@cache
def _has_numba() -> bool:
    return find_spec("numba") is not None
