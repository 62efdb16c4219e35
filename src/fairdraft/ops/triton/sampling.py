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
from fairdraft.ops.dispatch import own_device
from fairdraft.ops.filters import Filters
from fairdraft.ops.sample import Method, Sampled, TileStats, stats_shapes
from fairdraft.ops.triton.filtered_launch import device_filters, launch_filtered
from fairdraft.ops.triton.launch import (
    Arithmetic,
    launch_sample,
    temperature_tensor,
)
from fairdraft.ops.triton.workspace import Workspace

LOGITS_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def sample_on_device(
    logits: Tensor,
    address: Address | DeviceAddress,
    *,
    temperature: Any,
    filters: Filters,
    method: Method,
    arithmetic: Arithmetic,
    return_stats: bool,
    out: Sampled | None,
    workspace: Workspace | None,
    validate: bool,
) -> Sampled:
    """See `ops.sample`; nothing here waits for the device."""
    (count, vocab_size), _ = layout_of("logits", logits, 2, validate)
    device = logits.device
    fields = device_fields(address, count, device, validate=validate)
    temperatures = temperature_tensor("temperature", temperature, count, device, validate=validate)
    own = None
    if not filters.is_off:
        if method == "gumbel":
            raise ValueError(
                "method = 'gumbel' takes no filters on a GPU; filter by ops.filter_logits before"
            )
        own = device_filters(filters, count, device, validate=validate)
    if out is None:
        out = _empty(count, vocab_size, device, return_stats)
    elif validate:
        _check_out(out, count, vocab_size, logits, return_stats)
    if not count:
        return out
    stats = None if out.stats is None else out.stats.tensors()
    written = out.token_ids, out.margin, out.error
    workspace = workspace or Workspace(device)
    options: dict[str, Any] = {"arithmetic": arithmetic, "workspace": workspace}
    with own_device(device):
        workspace.begin()
        if own is not None:
            launch_filtered(logits, temperatures, own, fields, written, stats, **options)
        else:
            is_flat = method == "gumbel"
            launch_sample(logits, temperatures, fields, written, stats, is_flat=is_flat, **options)
        workspace.end()
    return out


def check_logits(name: str, logits: Tensor, dims: int) -> None:
    """Refuses logits that the kernels cannot read."""
    layout_of(name, logits, dims, validate=True)


def layout_of(
    name: str, logits: Tensor, dims: int, validate: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of logits, each read once; refuses what the kernels cannot read."""
    if validate and logits.dtype not in LOGITS_DTYPES:
        raise ValueError(f"{name} is {logits.dtype}; kernels read float32, bfloat16 and float16")
    shape, strides = logits.shape, logits.stride()
    # what is right takes one pass; what is wrong may take its time
    if not validate or (
        len(shape) == dims and 1 <= shape[-1] <= MAX_LANES and (strides[-1] == 1 or shape[-1] == 1)
    ):
        return shape, strides
    if len(shape) != dims or (shape[-1] > 1 and strides[-1] != 1):
        raise ValueError(
            f"{name} has shape {tuple(shape)} and strides {strides}; give {dims} "
            "dimensions whose last, the vocabulary, is contiguous"
        )
    raise ValueError(
        f"{name} has a vocabulary of {shape[-1]}; noise addresses cover 1..{MAX_LANES}"
    )


def check_stats(
    name: str, stats: TileStats, count: int, vocab_size: int, device: torch.device, whose: str
) -> None:
    """Refuses statistics that are not those of `count` rows, or not laid out as they were made."""
    if _are_stats(stats, count, -(-vocab_size // TILE), device):
        return
    for field, (need, dtype) in stats_shapes(count, -(-vocab_size // TILE)).items():
        found: Tensor = getattr(stats, field)
        if found.shape != need:
            raise ValueError(f"{name}.{field} has shape {tuple(found.shape)}, not {need}: {whose}")
        if found.dtype is not dtype or found.device != device or not found.is_contiguous():
            raise ValueError(
                f"{name}.{field} is {found.dtype} on {found.device} with strides {found.stride()}; "
                f"kernels read {dtype} on {device}, contiguous: give what `ops.sample` returned"
            )


def _are_stats(stats: TileStats, count: int, num_tiles: int, device: torch.device) -> bool:
    """What `check_stats` asks, in one pass: every call comes by."""
    tile_max, tile_sum, row_max, row_sum = stats.tensors()
    return (
        tile_max.shape == tile_sum.shape == (count, num_tiles)
        and row_max.shape == row_sum.shape == (count,)
        and tile_max.dtype is tile_sum.dtype is row_max.dtype is torch.float32
        and row_sum.dtype is torch.int64
        and tile_max.is_contiguous()
        and tile_sum.is_contiguous()
        and row_max.is_contiguous()
        and row_sum.is_contiguous()
        and tile_max.device == tile_sum.device == row_max.device == row_sum.device == device
    )


def _token_shapes(count: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    types = {"token_ids": torch.int64, "margin": torch.float64, "error": torch.int64}
    return {name: ((count,), dtype) for name, dtype in types.items()}


def _empty(count: int, vocab_size: int, device: torch.device, has_stats: bool) -> Sampled:
    def made(shapes: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> dict[str, Tensor]:
        return {
            name: torch.empty(shape, dtype=dtype, device=device)
            for name, (shape, dtype) in shapes.items()
        }

    stats = TileStats(**made(stats_shapes(count, -(-vocab_size // TILE)))) if has_stats else None
    return Sampled(**made(_token_shapes(count)), stats=stats)


def _check_out(out: Sampled, count: int, vocab_size: int, like: Tensor, has_stats: bool) -> None:
    if has_stats and out.stats is None:
        raise ValueError("out has no stats; make it by a call with return_stats=True")
    device, shape = like.device, (count,)
    _check_written("token_ids", out.token_ids, shape, torch.int64, device)
    _check_written("margin", out.margin, shape, torch.float64, device)
    _check_written("error", out.error, shape, torch.int64, device)
    if out.stats is not None:
        for name, (need, dtype) in stats_shapes(count, -(-vocab_size // TILE)).items():
            _check_written(name, getattr(out.stats, name), need, dtype, device)


def _check_written(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    if tensor.shape != shape or tensor.dtype is not dtype or tensor.device != device:
        raise ValueError(
            f"out.{name} is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}; "
            f"this call writes {dtype} {shape} on {device}"
        )
