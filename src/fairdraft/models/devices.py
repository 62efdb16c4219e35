"""Where models can compute, and what there is instead."""

from __future__ import annotations

import torch

__all__ = ["check_device", "devices_here"]


def devices_here() -> list[str]:
    """Names of what this machine has: "cpu", then "cuda:0" and so on."""
    return ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]


def check_device(device: str | torch.device) -> None:
    """Refuses a device that models cannot be moved to.

    Raises:
        ValueError: If it is not known or not here; the message says why, and what is here.
    """
    here = f"here there is {' and '.join(devices_here())}"
    refused = f"device = {str(device)!r} cannot be used: "
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ValueError(f"{refused}torch knows no such device; {here}") from None
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"{refused}models run on a CPU or on CUDA devices; {here}")
    if found.type == "cpu":
        return
    if torch.version.cuda is None and torch.version.hip is None:
        raise ValueError(f"{refused}torch {torch.__version__} is built without CUDA; {here}")
    if not torch.cuda.is_available():
        raise ValueError(f"{refused}torch finds no CUDA device; {here}")
    if found.index is not None and found.index >= torch.cuda.device_count():
        raise ValueError(f"{refused}there are not as many; {here}")
