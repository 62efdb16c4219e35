"""For the tests of other projects: does a sampler emit what its target says?

The names below are loaded on first use, since a pytest plugin must cost nothing at the start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairdraft.testing.assertion import NotLossless, assert_lossless
    from fairdraft.testing.sampler import Round, SamplerSubject

__all__ = ["NotLossless", "Round", "SamplerSubject", "assert_lossless"]

_HOMES = {
    "NotLossless": "assertion",
    "Round": "sampler",
    "SamplerSubject": "sampler",
    "assert_lossless": "assertion",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
