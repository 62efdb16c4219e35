"""Where kernels can run."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

__all__ = ["checked_device"]


def checked_device(name: str) -> torch.device:
    """The device, if kernels run there.

    Raises:
        ValueError: Says why they do not.
    """
    if name not in ("cuda", "cpu"):
        raise ValueError(f"device = {name!r} is unknown; give cpu, or cuda for the current GPU")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device = 'cuda', but torch finds no GPU; give cpu")
    if name == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(
            "kernels run on the CPU in Triton's interpreter alone (TRITON_INTERPRET=1)"
        )
    if find_spec("triton") is None:
        raise ValueError(f"device = {name!r} needs triton, which is not installed")
    # with its index, as tensors on it say
    return torch.empty(0, device=name).device
