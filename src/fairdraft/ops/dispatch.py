"""Which implementation runs: an explicit request is honoured or refused, never changed."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal, get_args

import torch

Impl = Literal["auto", "reference", "cpu", "triton"]

_CPU = torch.device("cpu")
Arithmetic = Literal["auto", "fast", "portable"]

_IMPLS, _ARITHMETICS = get_args(Impl), get_args(Arithmetic)
_HERE: AbstractContextManager[Any] = nullcontext()


def device_of(tensor: Any) -> torch.device:
    """Where a tensor is; what is none is read on the host, which says what is wrong with it."""
    return tensor.device if isinstance(tensor, torch.Tensor) else _CPU


def resolve_impl(impl: Impl, device: torch.device = _CPU) -> Literal["reference", "cpu", "triton"]:
    """Names the implementation to run for tensors on a device.

    Raises:
        ValueError: If it is unknown, or cannot run here (the message says why).
    """
    if impl not in _IMPLS:
        raise ValueError(f"impl = {impl!r} is unknown; choose one of {', '.join(_IMPLS)}")
    if device.type != "cpu" or impl == "triton":
        return _resolve_device(impl, device)
    if impl == "reference":
        return "reference"
    if _is_installed("numba"):
        return "cpu"
    if impl == "cpu":
        raise ValueError("impl = 'cpu' needs numba; pip install numba, or use 'reference'")
    return "reference"


def _resolve_device(impl: Impl, device: torch.device) -> Literal["triton"]:
    if impl in ("reference", "cpu"):
        raise ValueError(f"impl = {impl!r} reads host memory, the tensors are on {device}: .cpu()")
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(
            "impl = 'triton' needs tensors on a GPU; on the CPU its kernels run in Triton's "
            "interpreter alone (TRITON_INTERPRET=1), use 'auto' or 'cpu'"
        )
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"the tensors are on {device}; kernels run on CUDA devices: .cpu()")
    if not _is_installed("triton"):
        raise ValueError(f"the tensors are on {device}, which needs triton; install it, or .cpu()")
    return "triton"


def resolve_arithmetic(
    arithmetic: Arithmetic, impl: Literal["reference", "cpu", "triton"]
) -> Literal["fast", "portable"]:
    """Names the arithmetic: `portable` on the host, `fast` on a GPU unless asked otherwise.

    Raises:
        ValueError: If it is unknown, or the implementation has it not.
    """
    if arithmetic not in _ARITHMETICS:
        raise ValueError(f"arithmetic = {arithmetic!r} is unknown; use 'fast' or 'portable'")
    if impl == "triton":
        return "portable" if arithmetic == "portable" else "fast"
    if arithmetic == "fast":
        raise ValueError(f"impl {impl!r} computes 'portable' only; leave arithmetic at 'auto'")
    return "portable"


def own_device(device: torch.device) -> AbstractContextManager[Any]:
    """Makes a tensor's device the current one, on whose stream kernels are launched."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return _HERE
    return torch.cuda.device(device)


def has_kernels(device: torch.device) -> bool:
    """Whether "auto" runs Triton kernels for tensors on a device."""
    return device.type == "cuda" and _is_installed("triton")


@cache
def _is_installed(name: str) -> bool:
    return find_spec(name) is not None
