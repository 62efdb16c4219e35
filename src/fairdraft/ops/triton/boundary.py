"""Filtered draws of any row: the boundary of what stays is searched, however much stays.

One program reads its row again and again, a search of two bits a pass. Counts and masses are
integers, so the boundary is the reference's. Axes: V vocabulary, T tiles.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.ops.triton.arithmetic import TILE, exp2_weight
from fairdraft.ops.triton.keys import EXCLUDED_KEY, key_value, mass_of, ordered_key
from fairdraft.ops.triton.race import first, race_tokens
from fairdraft.ops.triton.reading import load_stats, load_tiles, store_stats

_INF = tl.constexpr(float("inf"))


@triton.jit
def row_mass(row_ptr, vocab_size, row_max, c, lowest, TILES: tl.constexpr):
    """The mass of a row's tokens whose keys are `lowest` or more."""
    masses = tl.zeros([TILES * TILE], tl.int64)
    for chunk in range(0, tl.cdiv(vocab_size, TILES * TILE)):
        x = load_tiles(row_ptr, vocab_size, chunk, TILES)
        weights = exp2_weight(x - row_max, c)
        masses += tl.where(ordered_key(x) >= lowest, mass_of(weights), 0)
    return tl.sum(masses, 0)


@triton.jit
def sums_from(
    row_ptr, vocab_size, row_max, c, lo, hi, marks, IS_MASS: tl.constexpr, TILES: tl.constexpr
):
    """Counts, or masses, of tokens from each of three marks up to `hi`, exclusive.

    Also the least and the greatest key from `lo` up to `hi`. Marks are between the two.
    """
    one, two, three = tl.full([], 0, tl.int64), tl.full([], 0, tl.int64), tl.full([], 0, tl.int64)
    least, most = hi, lo
    for chunk in range(0, tl.cdiv(vocab_size, TILES * TILE)):
        x = load_tiles(row_ptr, vocab_size, chunk, TILES)
        keys = ordered_key(x)
        is_open = (keys >= lo) & (keys < hi)
        top = tl.max(tl.where(is_open, keys, lo), 0)
        least = tl.minimum(least, tl.min(tl.where(is_open, keys, hi), 0))
        most = tl.maximum(most, top)
        # late passes find little left, and skip the weights of the rest
        if top >= marks[0]:
            if IS_MASS:
                amounts = tl.where(is_open, mass_of(exp2_weight(x - row_max, c)), 0)
            else:
                amounts = is_open.to(tl.int32)
            one += tl.sum(tl.where(keys >= marks[0], amounts, 0), 0).to(tl.int64)
            two += tl.sum(tl.where(keys >= marks[1], amounts, 0), 0).to(tl.int64)
            three += tl.sum(tl.where(keys >= marks[2], amounts, 0), 0).to(tl.int64)
    return one, two, three, least, most


@triton.jit
def crossing(
    row_ptr, vocab_size, row_max, c, lo, limit, IS_MASS: tl.constexpr, TILES: tl.constexpr
):
    """The largest key from which on the tokens come to the limit, and what lies above it.

    Those from `lo` on have to come to it. Sums are compared as float64.
    """
    hi = ordered_key(row_max) + 1
    above = tl.full([], 0, tl.int64)
    while hi != lo + 1:
        width = hi.to(tl.int64) - lo
        marks = (
            (lo + tl.maximum(width // 4, 1)).to(tl.int32),
            (lo + tl.maximum(width // 2, 1)).to(tl.int32),
            (lo + tl.maximum(width * 3 // 4, 1)).to(tl.int32),
        )
        one, two, three, least, most = sums_from(
            row_ptr, vocab_size, row_max, c, lo, hi, marks, IS_MASS, TILES
        )
        one, two, three = one + above, two + above, three + above
        has_one, has_two = one.to(tl.float64) >= limit, two.to(tl.float64) >= limit
        has_three = three.to(tl.float64) >= limit
        # sums fall from mark to mark, so the last that comes to the limit decides
        above = tl.where(has_three, above, tl.where(has_two, three, tl.where(has_one, two, one)))
        hi = tl.where(has_three, hi, tl.where(has_two, marks[2], marks[1]))
        hi = tl.where(has_one, hi, marks[0])
        lo = tl.where(has_one, marks[0], lo)
        lo = tl.where(has_two, marks[1], lo)
        lo = tl.where(has_three, marks[2], lo)
        # no token lies beyond these, so one class of equal logits ends the search
        lo, hi = tl.maximum(lo, least), tl.minimum(hi, most + 1)
    return lo, above


@triton.jit
def find_boundary(row_ptr, vocab_size, row_max, c, filters, TILES: tl.constexpr):
    """The key of the last class of equal logits that stays, the mass above it, and the limit."""
    top_k, top_p = filters[0], filters[1]
    edge = tl.full([], EXCLUDED_KEY, tl.int32)
    above, limit = tl.full([], 0, tl.int64), tl.full([], _INF, tl.float64)
    if top_k > 0:
        k = top_k.to(tl.float64)
        edge, above = crossing(row_ptr, vocab_size, row_max, c, edge, k, False, TILES)
        # that was a count, and ties at the k-th logit all stay
        above = above * 0
    if top_p < 1.0:
        total = row_mass(row_ptr, vocab_size, row_max, c, edge, TILES)
        limit = top_p * total.to(tl.float64)
        edge, above = crossing(row_ptr, vocab_size, row_max, c, edge, limit, True, TILES)
    return edge, above, limit


@triton.jit
def filter_row(row_ptr, vocab_size, num_tiles, row_max, c, filters, out, TILES: tl.constexpr):
    """Stores the statistics of what stays; returns the boundary's key and its last id."""
    edge, above, limit = find_boundary(row_ptr, vocab_size, row_max, c, filters, TILES)
    own = mass_of(exp2_weight(key_value(edge) - row_max, c))
    num_ties = tl.full([], 0, tl.int64)
    last_id = tl.full([], -1, tl.int32)
    for chunk in range(0, tl.cdiv(vocab_size, TILES * TILE)):
        x = load_tiles(row_ptr, vocab_size, chunk, TILES)
        token = chunk * TILES * TILE + tl.arange(0, TILES * TILE)
        keys = ordered_key(x)
        ties = ((keys == edge) & (keys > EXCLUDED_KEY)).to(tl.int32)
        before = above + (num_ties + tl.cumsum(ties, 0) - ties) * own
        stays = (ties > 0) & (before.to(tl.float64) < limit)
        last_id = tl.maximum(last_id, tl.max(tl.where(stays, token, -1), 0))
        num_ties += tl.sum(ties, 0)
        kept = kept_tiles(x, token, row_max, c, edge, last_id, filters[2])
        store_stats(kept, chunk, num_tiles, c, out, False, TILES)
    tl.debug_barrier()
    return edge, last_id


@triton.jit
def kept_tiles(x, token, row_max, c, edge, last_id, min_p):
    """Logits with what the filters drop at -inf."""
    keys = ordered_key(x)
    is_kept = (keys > edge) | ((keys == edge) & (token <= last_id))
    is_kept &= exp2_weight(x - row_max, c).to(tl.float64) >= min_p
    return tl.where(is_kept & (keys > EXCLUDED_KEY), x, -_INF)


@triton.jit
def draw_filtered(
    row_ptr,
    vocab_size,
    num_tiles,
    row_max,
    c,
    filters,
    out,
    times,
    key,
    counter,
    TILES: tl.constexpr,
):
    """Draws from a row under filters, whatever stays: id, margin and weights of its tiles."""
    edge, last_id = filter_row(row_ptr, vocab_size, num_tiles, row_max, c, filters, out, TILES)
    tile_max, tile_sum = load_stats(out[0], out[1], num_tiles, times.shape[0])
    weights = tile_sum * exp2_weight(tile_max - row_max, c)
    tile, tile_margin = first(times, weights)
    x = load_tiles(row_ptr, vocab_size, tile, 1)
    token = tile * TILE + tl.arange(0, TILE)
    kept = kept_tiles(x, token, row_max, c, edge, last_id, filters[2])
    token, margin = race_tokens(exp2_weight(kept - tl.max(kept, 0), c), tile, key, counter)
    return token, tl.minimum(tile_margin, margin), weights
