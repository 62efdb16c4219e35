"""Launches of the verification kernels.

Axes: B requests, K drafts, R = K + 1 rows, V vocabulary, T tiles.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton import next_power_of_2

from fairdraft.noise.device import pack_counter
from fairdraft.ops.arithmetic import TILE
from fairdraft.ops.triton.block import mass_kernel
from fairdraft.ops.triton.chain import chain_kernel
from fairdraft.ops.triton.launch import (
    Arithmetic,
    has_pdl,
    launch_options,
    max_tiles,
    program_shape,
)
from fairdraft.ops.triton.resolve import resolve_kernel
from fairdraft.ops.triton.workspace import Workspace

#: programs that keep every multiprocessor busy with residuals
_MANY_RESIDUALS = 1024


class DeviceChain(NamedTuple):
    """Checked device tensors of a call; what is absent has a stand-in that is never read."""

    target: tuple[Tensor, int, int]  # logits, strides of a request and of a row
    draft: tuple[Tensor, int, int] | None
    temperatures: tuple[tuple[Tensor, int], tuple[Tensor, int]]
    token_ids: Tensor  # [B, K], or flat [N]
    num_drafts: Tensor  # [B], or where each request's drafts end among all
    point_mass: Tensor | None  # bool [B]
    forbidden: Tensor | None  # bool, as token_ids
    at: tuple[tuple[Tensor, ...], tuple[int, ...]]  # key, anchor, sample
    draft_stats: tuple[Tensor, Tensor, Tensor, Tensor] | None
    sizes: tuple[int, int, int]  # B, K, V
    is_flat: bool


def launch_verify(
    chain: DeviceChain,
    out: tuple[Tensor, ...],
    *,
    is_block: bool,
    arithmetic: Arithmetic,
    workspace: Workspace,
    address: Any = pack_counter,
) -> None:
    """Fills token_ids, margin [B, R], num_accepted, num_emitted, last_stream, error, broken [B]."""
    count, depth, vocab_size = chain.sizes
    num_tiles = -(-vocab_size // TILE)
    has_draft = chain.draft is not None
    q_rows = chain.token_ids.numel()
    stand_in = chain.token_ids
    point_mass = chain.point_mass
    if point_mass is None:
        point_mass = workspace.zeros("no_point_mass", (1,), torch.bool)
    drafts = (chain.token_ids, chain.num_drafts, point_mass, chain.forbidden)
    if chain.forbidden is None:
        drafts = (*drafts[:3], stand_in)
    rows = count * (depth + 1)
    p_stats = _stats(workspace, "p", rows, num_tiles)
    q_stats = chain.draft_stats or _stats(workspace, "q", max(q_rows, 1), num_tiles)
    found = _found(workspace, rows)
    tests = (
        workspace.empty("test_state", (rows,), torch.int32),
        workspace.empty("test_margin", (rows,), torch.float64),
        workspace.zeros("test_units", (rows,), torch.int64),
    )
    path = (
        workspace.empty("path_stop", (count,), torch.int32),
        workspace.empty("path_state", (count,), torch.int32),
        workspace.empty("rho", (rows,), torch.float64),
    )
    mode = (
        chain.is_flat,
        arithmetic == "fast",
        is_block,
        has_draft,
        chain.draft_stats is not None,
        chain.forbidden is not None,
    )
    temperatures = tuple(t for t, _ in chain.temperatures)
    strides = (*chain.at[1], *(s for _, s in chain.temperatures), int(chain.point_mass is not None))
    pdl = has_pdl(chain.token_ids.device)
    tiles, warps = chain_shape(rows, num_tiles)
    common: dict[str, Any] = dict(
        K=depth, MODE=mode, STRIDES=strides, ADDRESS=address, HAS_PDL=pdl, **launch_options(pdl)
    )
    max_rows = next_power_of_2(depth + 1)
    inputs = (chain.target, chain.draft or chain.target, temperatures, drafts, chain.at[0])
    sizes = (count, vocab_size, num_tiles)
    chain_kernel[(rows * -(-num_tiles // tiles),)](
        *inputs,
        p_stats,
        q_stats,
        found,
        tests,
        path,
        workspace.zeros("rows_done", (rows,), torch.int32),
        workspace.zeros("requests_done", (count,), torch.int32),
        sizes,
        SHAPE=(tiles, max_tiles(num_tiles), max_rows),
        **common | {"num_warps": warps},
    )
    if is_block and has_draft and depth > 1:
        tiles, warps = residual_shape(rows, num_tiles)
        mass_kernel[(count * (depth - 1) * -(-num_tiles // tiles),)](
            *inputs,
            p_stats,
            q_stats,
            found,
            tests,
            path,
            workspace.zeros("masses_done", (rows,), torch.int32),
            sizes,
            SHAPE=(tiles, max_tiles(num_tiles), max_rows),
            **common | {"num_warps": warps},
        )
    residual = (
        workspace.empty("residual_exponent", (count, num_tiles), torch.int32),
        workspace.empty("residual_sum", (count, num_tiles), torch.float32),
    )
    tiles, warps = residual_shape(count, num_tiles)
    resolve_kernel[(count * -(-num_tiles // tiles),)](
        *inputs,
        p_stats,
        q_stats,
        found,
        tests,
        path,
        residual,
        out,
        workspace.zeros("requests_done", (count,), torch.int32),
        sizes,
        SHAPE=(tiles, max_tiles(num_tiles), max_rows),
        **common | {"num_warps": warps},
    )


def chain_shape(num_rows: int, num_tiles: int) -> tuple[int, int]:
    """Tiles and warps of a program that reads rows of the chain."""
    tiles, warps = program_shape(num_rows, num_tiles)
    return (tiles, warps) if tiles == 4 else (min(2, num_tiles), 4)


def residual_shape(num_rows: int, num_tiles: int) -> tuple[int, int]:
    """Tiles and warps of a program that computes a residual in float64."""
    if num_rows * -(-num_tiles // 2) >= _MANY_RESIDUALS:
        return 2, 1
    return 1, 4


def _stats(
    workspace: Workspace, name: str, rows: int, num_tiles: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        workspace.empty(f"{name}_tile_max", (rows, num_tiles), torch.float32),
        workspace.empty(f"{name}_tile_sum", (rows, num_tiles), torch.float32),
        workspace.empty(f"{name}_row_max", (rows,), torch.float32),
        workspace.empty(f"{name}_row_sum", (rows,), torch.int64),
    )


def _found(workspace: Workspace, rows: int) -> tuple[Tensor, ...]:
    """What is known of each row; states are zero between calls."""
    return (
        workspace.zeros("state", (rows,), torch.int32),
        workspace.empty("token", (rows,), torch.int32),
        workspace.empty("broken", (rows,), torch.int32),
        workspace.empty("margin", (rows,), torch.float64),
        workspace.empty("p_x", (rows,), torch.float64),
        workspace.empty("q_x", (rows,), torch.float64),
    )
