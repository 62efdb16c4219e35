"""Exact speculative decoding for PyTorch, with proof.

The names below are loaded on first use, so that `import fairdraft` alone stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairdraft.engine import (
        LLM,
        CompletionOutput,
        RequestMetrics,
        RequestOutput,
        SamplingParams,
        StructuredOutputsParams,
    )

__version__ = "0.1.0"

_ENGINE_NAMES = (
    "LLM",
    "CompletionOutput",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
)

__all__ = [
    "LLM",
    "CompletionOutput",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in _ENGINE_NAMES:
        return getattr(import_module("fairdraft.engine"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
