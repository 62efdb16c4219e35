"""Launches of the verification kernels.

Axes: B requests, K drafts, R = K + 1 rows, V vocabulary, T tiles.
"""

# launch options are no parameters of a kernel, and plain values are its constants
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairdraft.noise import device as noise_device
from fairdraft.ops.arithmetic import TILE, power_of_two
from fairdraft.ops.dispatch import own_device
from fairdraft.ops.triton.block import mass_kernel
from fairdraft.ops.triton.chain import chain_kernel
from fairdraft.ops.triton.chain_memory import DeviceChain, chain_memory, residual_memory
from fairdraft.ops.triton.emit import emit_kernel
from fairdraft.ops.triton.few import decide_kernel, path_kernel, read_kernel
from fairdraft.ops.triton.launch import (
    Arithmetic,
    has_pdl,
    launch_options,
    max_tiles,
)
from fairdraft.ops.triton.resolve import resolve_kernel
from fairdraft.ops.triton.target import sharing_warps
from fairdraft.ops.triton.workspace import Workspace

#: programs that keep every multiprocessor busy
_ENOUGH = 1024
#: so few rows are read before it is known which count
FEW_ROWS = 96
#: tiles of a program that reads them
_FEW_TILES = 4


def launch_verify(
    chain: DeviceChain,
    out: tuple[Tensor, ...],
    *,
    is_block: bool,
    arithmetic: Arithmetic,
    workspace: Workspace,
    address: Any = None,
) -> None:
    """Fills token_ids, margin [B, R], num_accepted, num_emitted, last_stream, error, broken [B].

    `address` is as in `launch_sample`.
    """
    with own_device(chain.token_ids.device):
        workspace.begin()
        _launch_all(chain, out, is_block, arithmetic, workspace, address)
        workspace.end()


def _launch_all(
    chain: DeviceChain,
    out: tuple[Tensor, ...],
    is_block: bool,
    arithmetic: Arithmetic,
    workspace: Workspace,
    address: Any,
) -> None:
    count, depth, vocab_size = chain.sizes
    num_tiles = -(-vocab_size // TILE)
    rows = count * (depth + 1)
    memory = chain_memory(workspace, chain, num_tiles)
    temperatures = tuple(t for t, _ in chain.temperatures)
    target = chain.target
    # each kernel takes these, in this order
    inputs = (
        target,
        chain.draft or target,
        temperatures,
        drafts_of(chain, workspace),
        chain.at[0],
        *memory,
    )
    sizes = (count, vocab_size, num_tiles)
    limits = (chain.num_rows, chain.num_slots)
    common = constants_of(chain, is_block, arithmetic, address or noise_device.pack_counter)
    reach = (max_tiles(num_tiles), power_of_two(depth + 1))
    numbers = (sizes, *limits)
    first = _launch_few if rows <= FEW_ROWS else _launch_chain
    first(inputs, numbers, workspace, reach, common)
    residual = _launch_residuals(inputs, numbers, workspace, reach, arithmetic, common)
    shape = (1, *reach, int(common["MODE"][2]))
    emit_kernel[(count,)](
        *inputs, residual, out, *numbers, SHAPE=shape, **common | {"num_warps": 4}
    )


def _launch_chain(
    inputs: tuple[Any, ...],
    numbers: tuple[Any, ...],
    workspace: Workspace,
    reach: tuple[int, int],
    common: dict[str, Any],
) -> None:
    """Reads rows in the order of walks, and decides each."""
    count, _, num_tiles = numbers[0]
    rows = count * (common["K"] + 1)
    tiles, warps = chain_shape(rows, num_tiles)
    warps = sharing_warps(workspace.device, warps)
    chain_kernel[(rows * -(-num_tiles // tiles),)](
        *inputs,
        workspace.zeros("rows_done", (rows,), torch.int32),
        workspace.zeros("requests_done", (count,), torch.int32),
        *numbers,
        SHAPE=(tiles, *reach, 1),
        **common | {"num_warps": warps} | _registers(common),
    )


def _launch_few(
    inputs: tuple[Any, ...],
    numbers: tuple[Any, ...],
    workspace: Workspace,
    reach: tuple[int, int],
    common: dict[str, Any],
) -> None:
    """Reads every row, then decides each, then puts paths of rule `block` together."""
    count, _, num_tiles = numbers[0]
    rows = count * (common["K"] + 1)
    tiles = min(_FEW_TILES, power_of_two(num_tiles))
    options = common | {"num_warps": 4}
    # as wide as programs of `chain_kernel`, so that a tile is summed in the same order
    warps = sharing_warps(workspace.device, 4)
    read_kernel[(rows * -(-num_tiles // tiles),)](
        *inputs, *numbers, SHAPE=(tiles, *reach, 1), **common | {"num_warps": warps}
    )
    decide_kernel[(rows,)](*inputs, *numbers, SHAPE=(1, *reach, 1), **options)
    if common["MODE"][1]:
        path_kernel[(count,)](*inputs, *numbers, SHAPE=(1, *reach, 1), **options | {"num_warps": 1})


def _launch_residuals(
    inputs: tuple[Any, ...],
    numbers: tuple[Any, ...],
    workspace: Workspace,
    reach: tuple[int, int],
    arithmetic: Arithmetic,
    common: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """Residuals where requests end, or of all rows that rule `block` may end at."""
    count, _, num_tiles = numbers[0]
    depth, mode = common["K"], common["MODE"]
    if not mode[2]:
        return residual_memory(workspace, count, 1)
    kernel, rows, counters = resolve_kernel, count, ()
    if mode[1]:
        kernel, rows = mass_kernel, count * depth
        counters = (workspace.zeros("masses_done", (count * (depth + 1),), torch.int32),)
    tiles, loops, warps = residual_shape(rows, num_tiles, arithmetic)
    if counters:
        warps = sharing_warps(workspace.device, warps)
    residual = residual_memory(workspace, rows, num_tiles)
    kernel[(rows * -(-num_tiles // (tiles * loops)),)](
        *inputs,
        residual,
        *counters,
        *numbers,
        SHAPE=(tiles, *reach, loops),
        **common | {"num_warps": warps},
    )
    return residual


def drafts_of(chain: DeviceChain, workspace: Workspace) -> tuple[Tensor, ...]:
    """What kernels are told of the drafts, each with a stand-in where it is absent."""
    point_mass = chain.point_mass
    if point_mass is None:
        point_mass = workspace.zeros("no_point_mass", (1,), torch.bool)
    ids = chain.token_ids
    # what is absent is not read: the mode says so
    return (
        ids,
        ids if chain.num_drafts is None else chain.num_drafts,
        point_mass,
        ids if chain.forbidden is None else chain.forbidden,
        ids if chain.offsets is None else chain.offsets,
        ids if chain.slots is None else chain.slots,
    )


def constants_of(
    chain: DeviceChain, is_block: bool, arithmetic: Arithmetic, address: Any
) -> dict[str, Any]:
    """What a kernel is compiled for."""
    mode = (
        arithmetic == "fast",
        is_block,
        chain.draft is not None,
        chain.draft_stats is not None,
        chain.forbidden is not None,
        chain.offsets_kind,
        chain.is_flat_draft,
        chain.slots is not None,
        chain.is_common,
    )
    strides = (*chain.at[1], *(s for _, s in chain.temperatures), int(chain.point_mass is not None))
    pdl = has_pdl(chain.token_ids.device)
    return {
        "K": chain.sizes[1],
        "MODE": mode,
        "STRIDES": strides,
        "ADDRESS": address,
        "HAS_PDL": pdl,
        **launch_options(pdl),
    }


def _registers(common: dict[str, Any]) -> dict[str, int]:
    """Registers of a thread of the chain, so that a multiprocessor holds eight programs."""
    reads_draft = common["MODE"][2] and not common["MODE"][3]
    # an option that other backends do not know; tiles of two rows would not fit
    return {"maxnreg": 64} if common["HAS_PDL"] and not reads_draft else {}


def chain_shape(num_rows: int, num_tiles: int) -> tuple[int, int]:
    """Tiles and warps of a program that reads rows of the chain."""
    tiles = 8 if num_rows * -(-num_tiles // 8) >= _ENOUGH // 2 else 2
    return min(tiles, power_of_two(num_tiles)), 4


def residual_shape(num_rows: int, num_tiles: int, arithmetic: Arithmetic) -> tuple[int, int, int]:
    """Tiles at once, how often, and warps of a program that computes a residual."""
    is_fast = arithmetic == "fast"
    for loops in (8, 4) if is_fast else (8, 4, 2):
        if num_rows * -(-num_tiles // loops) >= (2 * _ENOUGH if is_fast else _ENOUGH):
            return 1, loops, 1
    return min(4, power_of_two(num_tiles)) if is_fast else 1, 1, 4
