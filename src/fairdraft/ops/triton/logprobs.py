"""`ops.logprobs` on device tensors: from tile statistics, one program a row.

Sums are `portable`, so they are the bits that the CPU samples by. Axes: N rows, V vocabulary, T
tiles.
"""

# launch options are no parameters of a kernel, and plain values are its constants
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairdraft.noise.device import pack_counter
from fairdraft.ops.arithmetic import FIXED_POINT
from fairdraft.ops.dispatch import own_device
from fairdraft.ops.logprobs import Logprobs, Measured, top_of
from fairdraft.ops.sample import TileStats
from fairdraft.ops.triton.arithmetic import TILE, exp2_weight, row_total, temperature_scale
from fairdraft.ops.triton.launch import (
    launch_options,
    max_tiles,
    program_shape,
    temperature_tensor,
)
from fairdraft.ops.triton.race import call_error, greedy, row_error
from fairdraft.ops.triton.reading import load_stats
from fairdraft.ops.triton.sample import stats_kernel
from fairdraft.ops.triton.sampling import check_logits, check_stats
from fairdraft.ops.triton.workspace import Workspace, stats_buffers

_FIXED_POINT = tl.constexpr(FIXED_POINT)
_INF = tl.constexpr(float("inf"))
#: tiles that are looked at together for logits above a token's
_GROUP = tl.constexpr(8)


@triton.jit
def logprobs_kernel(
    logits_ptr,  # [N, V]
    logits_stride,
    token_ids_ptr,  # int64 or int32 [N]
    temperature_ptr,  # [N] or [1]
    tile_ptrs,  # tile_max, tile_sum: float32 [N, T]
    out,  # logprobs float64, ranks int64, row_max float64, log_total float64, error int64: [N]
    vocab_size,
    num_tiles,
    STRIDE: tl.constexpr,  # of temperature, 0 or 1
    MAX_TILES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperature_ptr + row * STRIDE).to(tl.float64)
    c = temperature_scale(temperature)
    token = tl.load(token_ids_ptr + row).to(tl.int64)
    row_ptr = logits_ptr + row * logits_stride
    max_ptr = tile_ptrs[0] + row * num_tiles
    top, total = load_stats(max_ptr, tile_ptrs[1] + row * num_tiles, num_tiles, MAX_TILES)
    error, row_max = row_error(top, total)
    is_id = (token >= 0) & (token < vocab_size)
    error = call_error(error, True, (c == c) & (is_id | (token == -1)))
    row_top = row_max.to(tl.float64)
    # a constant that is NaN never equals itself, which compilers check
    log_total = tl.full([], _INF, tl.float64)
    log_total = log_total - log_total
    logprob, rank = log_total, tl.full([], 0, tl.int64)
    if error == 0:
        if c > 0.0:
            units = row_total(total * exp2_weight(top - row_max, c))
            log_total = tl.log(units.to(tl.float64) / _FIXED_POINT)
        if is_id:
            x = tl.load(row_ptr + token).to(tl.float32)
            rank = 1 + num_above(row_ptr, max_ptr, x, vocab_size, num_tiles)
            if c > 0.0:
                logprob = (x.to(tl.float64) - row_top) / temperature - log_total
            else:
                best, _ = greedy(row_ptr, vocab_size, -1, top)
                logprob = tl.where(token == best, 0.0, -_INF).to(tl.float64)
    tl.store(out[0] + row, logprob)
    tl.store(out[1] + row, rank)
    tl.store(out[2] + row, row_top)
    tl.store(out[3] + row, log_total)
    tl.store(out[4] + row, error.to(tl.int64))


@triton.jit
def num_above(row_ptr, max_ptr, x, vocab_size, num_tiles):
    """How many logits of a row are larger than x; reads only tiles that hold one."""
    count = tl.zeros([_GROUP, TILE], tl.int32)
    for start in range(0, num_tiles, _GROUP):
        tile = start + tl.arange(0, _GROUP)
        top = tl.load(max_ptr + tile, mask=tile < num_tiles, other=-_INF)
        at = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
        is_read = (top > x)[:, None] & (at < vocab_size)
        y = tl.load(row_ptr + at, mask=is_read, other=-_INF).to(tl.float32)
        count += (y > x).to(tl.int32)
    return tl.sum(tl.sum(count, 1), 0).to(tl.int64)


def logprobs_on_device(
    logits: Tensor,
    token_ids: Tensor,
    temperature: Any,
    top_n: int,
    stats: TileStats | None,
    validate: bool,
) -> Logprobs:
    """See `ops.logprobs`; nothing here waits for the device."""
    device = logits.device
    if validate:
        check_logits("logits", logits, dims=2)
        _check_ids(token_ids, len(logits), device)
        if stats is not None:
            check_stats("stats", stats, *logits.shape, logits.device, "those of these rows")
    count, vocab_size = logits.shape
    num_tiles = -(-vocab_size // TILE.value)
    scales = temperature_tensor("temperature", temperature, count, device, validate=validate)
    float64 = torch.empty((3, count), dtype=torch.float64, device=device)
    int64 = torch.empty((2, count), dtype=torch.int64, device=device)
    found = Measured(float64[0], int64[0], float64[1], float64[2], int64[1])
    workspace = Workspace(device)
    tiles = stats_buffers(workspace, "row", count, num_tiles) if stats is None else stats.tensors()
    with own_device(device):
        if count and stats is None:
            _launch_stats(logits, scales, tiles, num_tiles)
        if count:
            logprobs_kernel[(count,)](
                logits,
                logits.stride(0),
                token_ids,
                scales[0],
                tiles[:2],
                tuple(found),
                vocab_size,
                num_tiles,
                STRIDE=scales[1],
                MAX_TILES=max_tiles(num_tiles),
                **launch_options(False) | {"num_warps": 4},
            )
    each = scales[0].double().expand(count)
    top = top_of(logits, tiles[0], found, each, top_n)
    return Logprobs(found.logprobs, found.ranks, *top, found.error)


def _launch_stats(
    logits: Tensor, scales: tuple[Tensor, int], tiles: tuple[Tensor, ...], num_tiles: int
) -> None:
    size, warps = program_shape(len(logits), num_tiles)
    # the race draws no noise here: fields of addresses are not read
    stats_kernel[(len(logits) * -(-num_tiles // size),)](
        logits,
        logits.stride(0),
        scales[0],
        (scales[0],) * 6,
        tiles[:2],
        tiles,
        logits.shape[1],
        num_tiles,
        STRIDES=(0, 0, 0, 0, 0, 0, scales[1]),
        ADDRESS=pack_counter,
        IS_FAST=False,
        IS_FLAT=False,
        TILES=size,
        HAS_PDL=False,
        **launch_options(False) | {"num_warps": warps},
    )


def _check_ids(token_ids: Any, count: int, device: torch.device) -> None:
    if not isinstance(token_ids, Tensor) or token_ids.dtype not in (torch.int64, torch.int32):
        kind = getattr(token_ids, "dtype", type(token_ids).__name__)
        raise ValueError(f"token_ids is {kind}; give an int64 tensor ({count},) on {device}")
    if token_ids.shape != (count,) or token_ids.device != device or not token_ids.is_contiguous():
        raise ValueError(
            f"token_ids has shape {tuple(token_ids.shape)} and strides {token_ids.stride()} on "
            f"{token_ids.device}; give a contiguous ({count},) on {device}, one a row of logits"
        )
