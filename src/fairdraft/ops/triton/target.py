"""How programs are cut up where it matters who made the device."""

from __future__ import annotations

import torch


def is_amd(device: torch.device) -> bool:
    """Whether kernels on a device are AMD's, which torch calls "cuda" as well."""
    return device.type == "cuda" and torch.version.hip is not None


def sharing_warps(device: torch.device, warps: int) -> int:
    """Warps of a program that others of its launch read from (`reading.is_last`): one on AMD.

    And of one that must sum tiles in the order of such programs.
    A release there waits for stores of the wave that makes it, and an acquire is sure to drop stale
    lines for that wave alone; Triton makes either by one wave of a program, whatever their number.
    """
    return 1 if is_amd(device) else warps
