"""Launches of the filtered sampling kernels, and the filters' parameters on the device.

Axes: B rows, V vocabulary, T tiles.
"""

# launch options are no parameters of a kernel, and plain values are its constants
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairdraft.noise import device as noise_device
from fairdraft.ops.arithmetic import TILE, power_of_two
from fairdraft.ops.filters import Filters, filter_params
from fairdraft.ops.triton.candidates import GROUP
from fairdraft.ops.triton.filtered import maxima_kernel, pick_filtered_kernel
from fairdraft.ops.triton.launch import (
    Arithmetic,
    has_pdl,
    launch_options,
    max_tiles,
    program_shape,
)
from fairdraft.ops.triton.workspace import Workspace, stats_buffers

#: places for candidates: for top_k up to 64, or unknown, and for a larger one
FEW, MANY = 128, 256
_MOST_FOR_FEW = 64
#: groups that a program gathers from at once, tiles that it searches at once, and its warps
_STEP, _TILES, _WARPS = 32, 4, 8
#: registers of a thread, so that a multiprocessor holds two programs
_REGISTERS = 128


class DeviceFilters(NamedTuple):
    """top_k, top_p and min_p on the device, and the stride of each: 0 for one value, or 1."""

    tensors: tuple[Tensor, Tensor, Tensor]
    strides: tuple[int, int, int]
    num_places: int


def device_filters(
    filters: Filters, count: int, device: torch.device, *, validate: bool = True
) -> DeviceFilters:
    """Puts the parameters of filters on the device where they are not there yet.

    Raises:
        ValueError: If a plain number is out of range or a tensor does not fit.
    """
    tensors, strides = [], []
    for name, values in filters._asdict().items():
        tensor, stride = _parameter(name, values, count, device, validate)
        tensors.append(tensor)
        strides.append(stride)
    top_k = filters.top_k
    most = 0 if top_k is None or isinstance(top_k, Tensor) else int(np.max(top_k, initial=0))
    return DeviceFilters(tuple(tensors), tuple(strides), FEW if most <= _MOST_FOR_FEW else MANY)


def _parameter(
    name: str, values: Any, count: int, device: torch.device, validate: bool
) -> tuple[Tensor, int]:
    if values is None or isinstance(values, int | float):
        return _constant(name, values, device), 0
    if not isinstance(values, Tensor):
        array = getattr(filter_params(count, 1.0, **{name: values}), name)
        return torch.from_numpy(array.copy()).to(device), 1
    if values.dim() == 0:
        values = values.to(device).expand(count).contiguous()
    if validate:
        _check_tensor(name, values, count, device)
    return values, 1


def _check_tensor(name: str, values: Tensor, count: int, device: torch.device) -> None:
    kind = values.dtype.is_floating_point
    is_number = not kind if name == "top_k" else kind
    if (
        values.device != device
        or not is_number
        or values.dtype is torch.bool
        or values.shape != (count,)
        or (count > 1 and values.stride(0) != 1)
    ):
        wanted = "an integer" if name == "top_k" else "floating point"
        raise ValueError(
            f"{name} is {values.dtype} {tuple(values.shape)} on {values.device}; give a number, "
            f"or {wanted} ({count},) on {device}"
        )


@lru_cache(maxsize=1024)
def _constant(name: str, value: Any, device: torch.device) -> Tensor:
    checked = getattr(filter_params(1, 1.0, **{name: value}), name).item()
    dtype = torch.int64 if name == "top_k" else torch.float64
    return torch.full((), checked, dtype=dtype, device=device)


def launch_filtered(
    logits: Tensor,
    temperature: tuple[Tensor, int],
    filters: DeviceFilters,
    fields: tuple[tuple[Tensor, ...], tuple[int, ...]],
    out: tuple[Tensor, Tensor, Tensor],
    stats: tuple[Tensor, Tensor, Tensor, Tensor] | None,
    *,
    arithmetic: Arithmetic,
    workspace: Workspace,
    address: Any = None,
) -> None:
    """Runs `maxima_kernel` and `pick_filtered_kernel`; `address` is as in `launch_sample`."""
    address = address or noise_device.pack_counter
    count, vocab_size = logits.shape
    num_tiles = -(-vocab_size // TILE)
    tiles, warps = program_shape(count, num_tiles)
    has_row_stats = stats is not None
    if stats is None:
        stats = stats_buffers(workspace, "row", count, num_tiles)
    num_groups = num_tiles * (TILE // GROUP.value)
    maxima = workspace.empty("group_max", (count, num_groups), torch.float32)
    strides = (*fields[1], temperature[1])
    pdl = has_pdl(logits.device)
    options = launch_options(pdl)
    maxima_kernel[(count * -(-num_tiles // tiles),)](
        logits,
        logits.stride(0),
        temperature[0],
        filters.tensors,
        stats[:2],
        maxima,
        vocab_size,
        num_tiles,
        STRIDES=strides,
        FILTER_STRIDES=filters.strides,
        IS_FAST=arithmetic == "fast",
        TILES=tiles,
        HAS_PDL=pdl,
        **options | {"num_warps": warps},
    )
    pick_filtered_kernel[(count,)](
        logits,
        logits.stride(0),
        temperature[0],
        filters.tensors,
        fields[0],
        stats,
        maxima,
        _places(workspace, count, filters.num_places),
        out,
        vocab_size,
        num_tiles,
        STRIDES=strides,
        FILTER_STRIDES=filters.strides,
        ADDRESS=address,
        HAS_ROW_STATS=has_row_stats,
        MAX_TILES=max_tiles(num_tiles),
        N=filters.num_places,
        STEP=_STEP,
        TILES=min(_TILES, power_of_two(num_tiles)),
        HAS_PDL=pdl,
        **options | _pick_options(pdl),
    )


def _pick_options(is_nvidia: bool) -> dict[str, int]:
    options = {"num_warps": _WARPS}
    # an option that other backends do not know
    return options | {"maxnreg": _REGISTERS} if is_nvidia else options


def _places(workspace: Workspace, count: int, num_places: int) -> tuple[Tensor, ...]:
    shape = (count, num_places)
    return (
        workspace.empty("candidate_group", shape, torch.int32),
        workspace.empty("candidate", shape, torch.int64),
    )
