"""`ops.sample` on device tensors: checks, buffers and the launch.

Axes: B rows, V vocabulary, T tiles.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairdraft.noise import Address
from fairdraft.noise.address import MAX_LANES
from fairdraft.ops.arithmetic import TILE
from fairdraft.ops.device_address import DeviceAddress, device_fields
from fairdraft.ops.sample import Method, Sampled, TileStats
from fairdraft.ops.triton.launch import Arithmetic, launch_sample, temperature_tensor
from fairdraft.ops.triton.workspace import Workspace

LOGITS_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def sample_on_device(
    logits: Tensor,
    address: Address | DeviceAddress,
    *,
    temperature: Any,
    method: Method,
    arithmetic: Arithmetic,
    return_stats: bool,
    out: Sampled | None,
    workspace: Workspace | None,
    validate: bool,
) -> Sampled:
    """See `ops.sample`; nothing here waits for the device."""
    if validate:
        check_logits("logits", logits, dims=2)
    count, vocab_size = logits.shape
    device = logits.device
    fields = device_fields(address, count, device, validate=validate)
    temperatures = temperature_tensor("temperature", temperature, count, device, validate=validate)
    if out is None:
        out = _empty(count, vocab_size, device, return_stats)
    elif validate:
        _check_out(out, count, device, return_stats)
    if count:
        stats = out.stats
        launch_sample(
            logits,
            temperatures,
            fields,
            (out.token_ids, out.margin, out.error),
            None
            if stats is None
            else (stats.tile_max, stats.tile_sum, stats.row_max, stats.row_sum),
            is_flat=method == "gumbel",
            arithmetic=arithmetic,
            workspace=workspace or Workspace(device),
        )
    return out


def check_logits(name: str, logits: Tensor, dims: int) -> None:
    """Refuses logits that the kernels cannot read."""
    if logits.dtype not in LOGITS_DTYPES:
        raise ValueError(f"{name} is {logits.dtype}; kernels read float32, bfloat16 and float16")
    if logits.dim() != dims or (logits.shape[-1] > 1 and logits.stride(-1) != 1):
        raise ValueError(
            f"{name} has shape {tuple(logits.shape)} and strides {logits.stride()}; give {dims} "
            "dimensions whose last, the vocabulary, is contiguous"
        )
    if not 1 <= logits.shape[-1] <= MAX_LANES:
        raise ValueError(
            f"{name} has a vocabulary of {logits.shape[-1]}; noise addresses cover 1..{MAX_LANES}"
        )


def _empty(count: int, vocab_size: int, device: torch.device, has_stats: bool) -> Sampled:
    tiles = -(-vocab_size // TILE)
    stats = None
    if has_stats:
        stats = TileStats(
            torch.empty((count, tiles), dtype=torch.float32, device=device),
            torch.empty((count, tiles), dtype=torch.float32, device=device),
            torch.empty(count, dtype=torch.float32, device=device),
            torch.empty(count, dtype=torch.int64, device=device),
        )
    return Sampled(
        torch.empty(count, dtype=torch.int64, device=device),
        torch.empty(count, dtype=torch.float64, device=device),
        torch.empty(count, dtype=torch.int64, device=device),
        stats,
    )


def _check_out(out: Sampled, count: int, device: torch.device, has_stats: bool) -> None:
    if out.token_ids.shape != (count,) or out.token_ids.device != device:
        raise ValueError(
            f"out holds {tuple(out.token_ids.shape)} tokens on {out.token_ids.device}; "
            f"{count} rows on {device} need as many"
        )
    if has_stats and out.stats is None:
        raise ValueError("out has no stats; make it by a call with return_stats=True")
