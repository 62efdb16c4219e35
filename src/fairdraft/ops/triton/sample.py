"""`ops.sample` in two Triton kernels: statistics of tiles, then one program a row that races them.

The second starts while the first still runs, and has its noise ready when the statistics are.
Axes: B rows, V vocabulary, T tiles.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.noise.device import TILE_LEVEL, exponentials
from fairdraft.ops.triton.arithmetic import exp2_weight, row_total, temperature_scale, tile_base
from fairdraft.ops.triton.gumbel import pick_best, store_best
from fairdraft.ops.triton.race import call_error, first, greedy, race_in_tile, row_error
from fairdraft.ops.triton.reading import (
    let_next_start,
    load_stats,
    load_tiles,
    row_address,
    store_stats,
    wait_for_previous,
)


@triton.jit
def stats_kernel(
    logits_ptr,  # [B, V]
    logits_stride,
    temperature_ptr,  # [B] or [1]
    at,  # key, position, anchor, stream, node, sample: int64 [B] or [1]
    tile_ptrs,  # tile_max, tile_sum: float32 [B, T]
    parts,  # of the flat race: base, best, second float32 [B, N]; token int32 [B, N]
    vocab_size,
    num_tiles,
    STRIDES: tl.constexpr,  # of the six fields and of temperature, 0 or 1
    ADDRESS: tl.constexpr,
    IS_FAST: tl.constexpr,
    IS_FLAT: tl.constexpr,
    TILES: tl.constexpr,
    HAS_PDL: tl.constexpr,
):
    num_chunks = (num_tiles + TILES - 1) // TILES
    row = (tl.program_id(0) // num_chunks).to(tl.int64)
    chunk = tl.program_id(0) % num_chunks
    wait_for_previous(HAS_PDL)
    let_next_start(HAS_PDL)
    x = load_tiles(logits_ptr + row * logits_stride, vocab_size, chunk, TILES)
    c = temperature_scale(tl.load(temperature_ptr + row * STRIDES[6]))
    # greedy rows and bad temperatures: only maxima and NaN count
    scale = tl.where(c > 0.0, c, 1.0)
    out = (tile_ptrs[0] + row * num_tiles, tile_ptrs[1] + row * num_tiles)
    store_stats(x, chunk, num_tiles, scale, out, IS_FAST, TILES)
    if IS_FLAT:
        key, counter, _ = row_address(at, row, STRIDES, ADDRESS)
        base = tile_base(tl.max(x, 0))
        place = row * num_chunks + chunk
        store_best(x, base, scale, key, counter, chunk, parts, place, True, HAS_PDL)


@triton.jit
def pick_kernel(
    logits_ptr,  # [B, V]
    logits_stride,
    temperature_ptr,  # [B] or [1]
    at,  # key, position, anchor, stream, node, sample: int64 [B] or [1]
    stats,  # tile_max [B, T], tile_sum [B, T], row_max [B], row_sum [B]
    parts,  # of the flat race: base, best, second float32 [B, N]; token int32 [B, N]
    out,  # token_ids int64 [B], margin float64 [B], error int64 [B]
    vocab_size,
    num_tiles,
    num_chunks,
    STRIDES: tl.constexpr,
    ADDRESS: tl.constexpr,
    IS_FLAT: tl.constexpr,
    HAS_ROW_STATS: tl.constexpr,
    MAX_TILES: tl.constexpr,
    HAS_PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    let_next_start(HAS_PDL)
    # what does not depend on the logits runs while their statistics are still being made
    c = temperature_scale(tl.load(temperature_ptr + row * STRIDES[6]))
    key, counter, is_good = row_address(at, row, STRIDES, ADDRESS)
    times = exponentials(key, counter, 0, TILE_LEVEL, MAX_TILES)
    wait_for_previous(HAS_PDL)
    tile_max, tile_sum = load_stats(
        stats[0] + row * num_tiles, stats[1] + row * num_tiles, num_tiles, MAX_TILES
    )
    error, row_max = row_error(tile_max, tile_sum)
    error = call_error(error, is_good, c == c)
    token, margin = tl.full([], -1, tl.int32), tl.full([], 0.0, tl.float64)
    row_sum = tl.full([], 0, tl.int64)
    row_ptr = logits_ptr + row * logits_stride
    is_drawn = (error == 0) & (c > 0.0)
    if is_drawn:
        if IS_FLAT:
            start = row * num_chunks
            token, margin = pick_best(parts, start, num_chunks, row_max, c, MAX_TILES)
        else:
            weights = tile_sum * exp2_weight(tile_max - row_max, c)
            tile, tile_margin = first(times, weights)
            token, margin = race_in_tile(row_ptr, vocab_size, -1, c, tile, key, counter)
            margin = tl.minimum(tile_margin, margin)
            if HAS_ROW_STATS:
                row_sum = row_total(weights)
    elif error == 0:
        token, margin = greedy(row_ptr, vocab_size, -1, tile_max)
    tl.store(out[0] + row, token.to(tl.int64))
    tl.store(out[1] + row, margin)
    tl.store(out[2] + row, error.to(tl.int64))
    if HAS_ROW_STATS:
        tl.store(stats[2] + row, tl.where(is_drawn, row_max, 0.0))
        tl.store(stats[3] + row, row_sum)
