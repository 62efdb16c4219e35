"""Launches of the sampling kernels: what they read, where they write, how they are cut up.

Axes: B rows, V vocabulary, T tiles, N programs a row.
"""

# launch options are no parameters of a kernel, and plain values are its constants
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fairdraft.noise import device as noise_device
from fairdraft.ops.arithmetic import TILE, power_of_two
from fairdraft.ops.rows import temperature_scales
from fairdraft.ops.triton.gumbel import flat_kernel
from fairdraft.ops.triton.sample import pick_kernel, stats_kernel
from fairdraft.ops.triton.target import sharing_warps
from fairdraft.ops.triton.workspace import Workspace, stats_buffers

Arithmetic = Literal["fast", "portable"]
#: programs that keep every multiprocessor busy, with one warp each and with four tiles each
_ENOUGH, _PLENTY = 512, 2048


def program_shape(num_rows: int, num_tiles: int) -> tuple[int, int]:
    """Tiles and warps of a program that reads rows: one warp, so that no sum crosses warps."""
    if num_rows * -(-num_tiles // 4) >= _PLENTY:
        return 4, 1
    return (2, 1) if num_rows * -(-num_tiles // 2) >= _ENOUGH else (1, 1)


def max_tiles(num_tiles: int) -> int:
    """A power of two that holds every tile of a row; lanes go in pairs."""
    return max(2, power_of_two(num_tiles))


def temperature_tensor(
    name: str, values: Any, count: int, device: torch.device, *, validate: bool = True
) -> tuple[Tensor, int]:
    """Temperatures on the device, and their stride: 0 for one value, 1 for one a row.

    Raises:
        ValueError: If a plain number is out of range or a tensor does not fit.
    """
    if not isinstance(values, Tensor):
        if np.ndim(values) == 0:
            return _constant(name, float(values), device), 0
        array = np.asarray(values, np.float64)
        if validate:
            temperature_scales(name, array, count)
        values = torch.from_numpy(array.copy()).to(device)
    shape = values.shape
    if not shape:
        return values.to(device=device, dtype=torch.float64), 0
    if validate and not (
        shape == (count,)
        and values.dtype.is_floating_point
        and values.device == device
        and values.is_contiguous()
    ):
        raise ValueError(
            f"{name} is {values.dtype} {tuple(shape)} on {values.device}; give a number, "
            f"or floating point ({count},) on {device}"
        )
    return values, 1


@lru_cache(maxsize=1024)
def _constant(name: str, value: float, device: torch.device) -> Tensor:
    temperature_scales(name, value, 1)
    return torch.full((), value, dtype=torch.float64, device=device)


def launch_sample(
    logits: Tensor,
    temperature: tuple[Tensor, int],
    fields: tuple[tuple[Tensor, ...], tuple[int, ...]],
    out: tuple[Tensor, Tensor, Tensor],
    stats: tuple[Tensor, Tensor, Tensor, Tensor] | None,
    *,
    is_flat: bool,
    arithmetic: Arithmetic,
    workspace: Workspace,
    address: Any = None,
) -> None:
    """Runs `stats_kernel` and `pick_kernel`, and `flat_kernel` for a `portable` flat race.

    `address` forms the counters; None for `noise.device.pack_counter`, as it is now.
    """
    address = address or noise_device.pack_counter
    count, vocab_size = logits.shape
    num_tiles = -(-vocab_size // TILE)
    # noise for every token is arithmetic, which more warps spread
    tiles, warps = program_shape(count, num_tiles)
    if is_flat:
        tiles, warps = min(4, power_of_two(num_tiles)), 4
    num_chunks = -(-num_tiles // tiles)
    is_fast = arithmetic == "fast"
    is_second_pass = is_flat and not is_fast
    has_row_stats = stats is not None or is_second_pass
    if stats is None:
        stats = stats_buffers(workspace, "row", count, num_tiles)
    parts = _parts(workspace, count, num_chunks) if is_flat else ()
    tensors, strides = fields[0], (*fields[1], temperature[1])
    grid = (count * num_chunks,)
    pdl = has_pdl(logits.device)
    options = launch_options(pdl)
    stats_kernel[grid](
        logits,
        logits.stride(0),
        temperature[0],
        tensors,
        stats[:2],
        parts or stats,
        vocab_size,
        num_tiles,
        STRIDES=strides,
        ADDRESS=address,
        IS_FAST=is_fast,
        IS_FLAT=is_flat and is_fast,
        TILES=tiles,
        HAS_PDL=pdl,
        **options | {"num_warps": warps},
    )
    pick_kernel[(count,)](
        logits,
        logits.stride(0),
        temperature[0],
        tensors,
        stats,
        parts or stats,
        out,
        vocab_size,
        num_tiles,
        num_chunks,
        STRIDES=strides,
        ADDRESS=address,
        IS_FLAT=is_flat and is_fast,
        HAS_ROW_STATS=has_row_stats,
        MAX_TILES=max_tiles(num_tiles),
        HAS_PDL=pdl,
        **options | {"num_warps": 4},
    )
    if is_second_pass:
        inputs = (temperature[0], strides, tensors, stats[2])
        _launch_flat(logits, inputs, parts, out, workspace, tiles, address)


def _launch_flat(
    logits: Tensor,
    inputs: tuple[Any, ...],
    parts: tuple[Tensor, ...],
    out: tuple[Tensor, ...],
    workspace: Workspace,
    tiles: int,
    address: Any,
) -> None:
    """The flat race of rows whose maxima are known, in `portable` arithmetic."""
    temperature, strides, tensors, row_max = inputs
    count, vocab_size = logits.shape
    num_chunks = parts[0].shape[1]
    flat_kernel[(count * num_chunks,)](
        logits,
        logits.stride(0),
        temperature,
        tensors,
        row_max,
        parts,
        out,
        workspace.zeros("done", (count,), torch.int32),
        vocab_size,
        num_chunks,
        STRIDES=strides,
        ADDRESS=address,
        TILES=tiles,
        MAX_CHUNKS=max_tiles(num_chunks),
        **launch_options(False) | {"num_warps": sharing_warps(logits.device, 4)},
    )


def launch_options(pdl: bool) -> dict[str, Any]:
    """Options of every launch: `portable` arithmetic allows no contraction."""
    options: dict[str, Any] = {"enable_fp_fusion": False}
    if pdl:
        options["launch_pdl"] = True
    return options


@cache
def has_pdl(device: torch.device) -> bool:
    """Programmatic dependent launch: NVIDIA from compute capability 9.0 on."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


def _parts(workspace: Workspace, count: int, num_chunks: int) -> tuple[Tensor, ...]:
    shape = (count, num_chunks)
    floats = [workspace.empty(f"part_{i}", shape, torch.float32) for i in range(3)]
    return (*floats, workspace.empty("part_token", shape, torch.int32))
