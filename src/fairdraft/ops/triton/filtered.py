"""`ops.sample` under top-k, top-p and min-p in two Triton kernels.

The first keeps maxima of groups of ids, and for rows without filters the statistics of tiles; the
second has one program a row. It gathers the few tokens that can stay and races them, or, where
they do not fit, searches the boundary of what stays. Axes: B rows, V vocabulary, T tiles, G groups.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.noise.device import TILE_LEVEL, exponentials
from fairdraft.ops.triton.arithmetic import TILE, exp2_weight, row_total, temperature_scale
from fairdraft.ops.triton.boundary import draw_filtered, row_mass
from fairdraft.ops.triton.candidates import (
    GROUP,
    GROUPS,
    coarse_bound,
    gather,
    load_candidates,
    load_tops,
    min_p_bound,
    race_candidates,
    select,
    store_tiles,
    tile_sums,
)
from fairdraft.ops.triton.keys import EXCLUDED_KEY, ordered_key
from fairdraft.ops.triton.race import call_error, first, greedy, race_in_tile, row_error
from fairdraft.ops.triton.reading import (
    let_next_start,
    load_stats,
    load_tiles,
    row_address,
    store_stats,
    wait_for_previous,
)

_INF = tl.constexpr(float("inf"))


@triton.jit
def load_filters(filters, row, vocab_size, STRIDES: tl.constexpr):
    """top_k (0 is off), top_p and min_p of a row, and whether they are in range."""
    k = tl.load(filters[0] + row * STRIDES[0]).to(tl.int64)
    p = tl.load(filters[1] + row * STRIDES[1]).to(tl.float64)
    m = tl.load(filters[2] + row * STRIDES[2]).to(tl.float64)
    is_good = (k >= -1) & (p > 0.0) & (p <= 1.0) & (m >= 0.0) & (m <= 1.0)
    k = tl.where((k > 0) & (k < vocab_size), k, 0)
    return (k, p, m), is_good


@triton.jit
def is_filtered(filters, c):
    """Whether a row has a filter; greedy rows and bad temperatures have none."""
    return (c > 0.0) & ((filters[0] > 0) | (filters[1] < 1.0) | (filters[2] > 0.0))


@triton.jit
def maxima_kernel(
    logits_ptr,  # [B, V]
    logits_stride,
    temperature_ptr,  # [B] or [1]
    filters,  # top_k int, top_p and min_p floating point: [B] or [1]
    tile_ptrs,  # tile_max, tile_sum: float32 [B, T]; of a filtered row a sum is 0 or NaN
    group_max_ptr,  # float32 [B, G], of filtered rows
    vocab_size,
    num_tiles,
    STRIDES: tl.constexpr,  # of the six fields and of temperature, 0 or 1
    FILTER_STRIDES: tl.constexpr,
    IS_FAST: tl.constexpr,
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
    own, _ = load_filters(filters, row, vocab_size, FILTER_STRIDES)
    out = (tile_ptrs[0] + row * num_tiles, tile_ptrs[1] + row * num_tiles)
    if is_filtered(own, c):
        top = tl.max(tl.reshape(x, (TILES * GROUPS, GROUP)), 1)
        group = chunk * TILES * GROUPS + tl.arange(0, TILES * GROUPS)
        is_group = group < num_tiles * GROUPS
        tl.store(group_max_ptr + row * num_tiles * GROUPS + group, top, mask=is_group)
        num_nan = tl.sum(tl.reshape((x != x).to(tl.int32), (TILES, TILE)), 1)
        tile = chunk * TILES + tl.arange(0, TILES)
        total = tl.where(num_nan > 0, float("nan"), 0.0)
        tl.store(out[1] + tile, total, mask=tile < num_tiles)
    else:
        store_stats(x, chunk, num_tiles, tl.where(c > 0.0, c, 1.0), out, IS_FAST, TILES)


@triton.jit
def load_maxima(maxima_ptr, num_tiles, is_there, MAX_TILES: tl.constexpr):
    """Maxima of a filtered row's groups [T, GROUPS]; -inf for another row."""
    tile = tl.arange(0, MAX_TILES)
    at = tile[:, None] * GROUPS + tl.arange(0, GROUPS)[None, :]
    is_read = tile[:, None] < tl.where(is_there, num_tiles, 0)
    return tl.load(maxima_ptr + at, mask=is_read, other=-_INF, cache_modifier=".cg")


@triton.jit
def bound_of(maxima, row_max, c, filters, N: tl.constexpr):
    """A key that all tokens reach that can stay; without top-k, a guess at one."""
    top_k, top_p, min_p = filters
    num_tiles: tl.constexpr = maxima.shape[0]
    # of a row of few tiles, maxima of groups bound it better
    if num_tiles <= 128:
        keys = tl.reshape(ordered_key(maxima), (num_tiles * GROUPS,))
    else:
        keys = ordered_key(tl.max(maxima, 1))
    k = tl.where(top_k > 0, top_k, N * 3 // 8).to(tl.int32)
    bound = coarse_bound(keys, k, keys.shape[0])
    if top_p == 1.0:
        lower = min_p_bound(row_max, c, min_p)
        bound = tl.where(top_k > 0, tl.maximum(bound, lower), lower)
    return bound


@triton.jit
def draw_candidates(
    row_ptr,
    vocab_size,
    num_tiles,
    maxima,
    maxima_ptr,
    places,
    out,
    row_max,
    c,
    filters,
    key,
    counter,
    HAS_ROW_STATS: tl.constexpr,
    N: tl.constexpr,
    STEP: tl.constexpr,
    TILES: tl.constexpr,
):
    """Draws from a row of which few tokens stay: id, margin, total, and whether it is open."""
    MAX_TILES: tl.constexpr = maxima.shape[0]
    token, margin = tl.full([], -1, tl.int32), tl.full([], 0.0, tl.float64)
    row_sum, is_open = tl.full([], 0, tl.int64), c > 0.0
    bound = bound_of(maxima, row_max, c, filters, N)
    keys = tl.reshape(ordered_key(maxima), (MAX_TILES * GROUPS,))
    count = gather(row_ptr, vocab_size, keys, bound, places, N, STEP)
    if count <= N:
        total = tl.full([], 0, tl.int64)
        if (filters[0] == 0) & (filters[1] < 1.0):
            total = row_mass(row_ptr, vocab_size, row_max, c, EXCLUDED_KEY, TILES)
        order, value, ids = load_candidates(places, 0, count, N)
        top = load_tops(maxima_ptr, ids)
        found = (order, value, ids, top)
        is_kept, last, is_certain = select(places, count, found, row_max, c, filters, total)
        is_open = is_certain == 0
        if is_certain:
            tile = ids // TILE
            sums = tile_sums(places, count, maxima_ptr, tile, last, row_max, c, filters[2])
            token, margin = race_candidates(found, is_kept, sums, row_max, c, key, counter)
            if HAS_ROW_STATS:
                tops, totals = store_tiles(ids, top, is_kept, sums, out, num_tiles, MAX_TILES)
                row_sum = row_total(totals * exp2_weight(tops - row_max, c))
    return token, margin, row_sum, is_open


@triton.jit
def pick_filtered_kernel(
    logits_ptr,  # [B, V]
    logits_stride,
    temperature_ptr,  # [B] or [1]
    filters,  # top_k int, top_p and min_p floating point: [B] or [1]
    at,  # key, position, anchor, stream, node, sample: int64 [B] or [1]
    stats,  # tile_max [B, T], tile_sum [B, T], row_max [B], row_sum [B]
    group_max_ptr,  # float32 [B, G]
    scratch,  # groups int32 and candidates int64: [B, N]
    out,  # token_ids int64 [B], margin float64 [B], error int64 [B]
    vocab_size,
    num_tiles,
    STRIDES: tl.constexpr,  # of the six fields and of temperature, 0 or 1
    FILTER_STRIDES: tl.constexpr,
    ADDRESS: tl.constexpr,
    HAS_ROW_STATS: tl.constexpr,
    MAX_TILES: tl.constexpr,
    N: tl.constexpr,
    STEP: tl.constexpr,
    TILES: tl.constexpr,
    HAS_PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    let_next_start(HAS_PDL)
    c = temperature_scale(tl.load(temperature_ptr + row * STRIDES[6]))
    own, has_filters = load_filters(filters, row, vocab_size, FILTER_STRIDES)
    key, counter, is_good = row_address(at, row, STRIDES, ADDRESS)
    has_filter = is_filtered(own, c)
    row_ptr = logits_ptr + row * logits_stride
    tiles = (stats[0] + row * num_tiles, stats[1] + row * num_tiles)
    maxima_ptr = group_max_ptr + row * num_tiles * GROUPS
    places = (scratch[0] + row * N, scratch[1] + row * N)
    wait_for_previous(HAS_PDL)
    tile_max, tile_sum = load_stats(tiles[0], tiles[1], num_tiles, MAX_TILES)
    maxima = load_maxima(maxima_ptr, num_tiles, has_filter, MAX_TILES)
    tile_max = tl.where(has_filter, tl.max(maxima, 1), tile_max)
    error, row_max = row_error(tile_max, tile_sum)
    error = call_error(error, is_good, (c == c) & has_filters)
    token, margin = tl.full([], -1, tl.int32), tl.full([], 0.0, tl.float64)
    row_sum = tl.full([], 0, tl.int64)
    is_drawn = (error == 0) & (c > 0.0)
    is_open = is_drawn
    if is_drawn & has_filter:
        token, margin, row_sum, is_open = draw_candidates(
            row_ptr,
            vocab_size,
            num_tiles,
            maxima,
            maxima_ptr,
            places,
            tiles,
            row_max,
            c,
            own,
            key,
            counter,
            HAS_ROW_STATS,
            N,
            STEP,
            TILES,
        )
    if is_open:
        times = exponentials(key, counter, 0, TILE_LEVEL, MAX_TILES)
        if has_filter:
            token, margin, weights = draw_filtered(
                row_ptr, vocab_size, num_tiles, row_max, c, own, tiles, times, key, counter, TILES
            )
        else:
            weights = tile_sum * exp2_weight(tile_max - row_max, c)
            tile, tile_margin = first(times, weights)
            token, margin = race_in_tile(row_ptr, vocab_size, -1, c, tile, key, counter)
            margin = tl.minimum(tile_margin, margin)
        if HAS_ROW_STATS:
            row_sum = row_total(weights)
    elif (error == 0) & (c == 0.0):
        token, margin = greedy(row_ptr, vocab_size, -1, tile_max)
    tl.store(out[0] + row, token.to(tl.int64))
    tl.store(out[1] + row, margin)
    tl.store(out[2] + row, error.to(tl.int64))
    if HAS_ROW_STATS:
        tl.store(stats[2] + row, tl.where(is_drawn, row_max, 0.0))
        tl.store(stats[3] + row, row_sum)
