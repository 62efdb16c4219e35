"""Kernel of the lossy rules: reads rows of a chain, and decides each by itself, as `chain.py` does.

A draft is tested against its chance, whatever the laws. What replaces a rejected one is drawn here,
but for a residual, which `resolve.py` and `emit.py` draw at the end of its request.
Axes: B requests, K drafts, R = K + 1 rows, V vocabulary, T tiles.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.ops import lossy
from fairdraft.ops.arithmetic import FIXED_POINT
from fairdraft.ops.rows import RowError
from fairdraft.ops.triton.arithmetic import (
    TILE,
    exact_sum,
    exp2_weight,
    row_total,
    tile_base,
    tile_stats,
)
from fairdraft.ops.triton.chain import draft_row
from fairdraft.ops.triton.law import law_scale, probability
from fairdraft.ops.triton.race import call_error, greedy, race, row_error
from fairdraft.ops.triton.reading import (
    is_last,
    let_next_start,
    load_masked_tiles,
    load_stats,
    load_tiles,
    store_stats,
    wait_for_previous,
)
from fairdraft.ops.triton.request import (
    ACCEPTED,
    DRAWN,
    ERROR,
    REJECTED,
    accept_number,
    ends_before,
    final_address,
    masked_token,
    note_end,
    request_fields,
    request_span,
    row_places,
    scales,
)

_INF = tl.constexpr(float("inf"))
_FIXED_POINT = tl.constexpr(FIXED_POINT)
_DRAFT_ERROR = tl.constexpr(int(RowError.DRAFT))
_WHOLE, _RESIDUAL = tl.constexpr(lossy.WHOLE), tl.constexpr(lossy.RESIDUAL)
_TYPICAL, _THRESHOLD = tl.constexpr(0), tl.constexpr(1)


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
def lossy_kernel(
    target,  # as in `chain_kernel`
    draft,
    temperatures,
    drafts,
    at,
    p_stats,
    q_stats,
    found,
    tests,
    path,
    spread_ptr,  # of rule `typical`: float32 [B, R, T]
    done_ptr,  # int32 [B, R], zeros before and after
    sizes,  # B, V, T
    num_rows,
    num_slots,
    K: tl.constexpr,
    MODE: tl.constexpr,
    STRIDES: tl.constexpr,
    ADDRESS: tl.constexpr,
    RULE: tl.constexpr,  # kind, what follows a rejected draft, values, as in `lossy.Numbers`
    SHAPE: tl.constexpr,  # tiles a program, most tiles, most rows
    HAS_PDL: tl.constexpr,
):
    R: tl.constexpr = K + 1
    TILES: tl.constexpr = SHAPE[0]
    num_requests, vocab_size, num_tiles = sizes
    num_chunks = (num_tiles + TILES - 1) // TILES
    chunk = tl.program_id(0) % num_chunks
    b = ((tl.program_id(0) // num_chunks) % num_requests).to(tl.int64)
    r = (tl.program_id(0) // num_chunks // num_requests).to(tl.int64)
    wait_for_previous(HAS_PDL)
    let_next_start(HAS_PDL)
    limits = (num_rows, num_slots, num_requests)
    first, n, is_possible = request_span(drafts, limits, b, K, SHAPE[2], MODE)
    if r > n:
        return
    has_ended = ends_before(found[6], b, r, SHAPE[2])
    c, draft_c, is_matched = scales(temperatures, drafts, b, STRIDES, MODE[2])
    masked_id = masked_token(drafts, first, r, n, vocab_size, MODE[4])[2]
    p_row, q_row, q_place = row_places(target, draft, first, b, r)
    place = b * R + r
    p_tiles = (p_stats[0] + place * num_tiles, p_stats[1] + place * num_tiles)
    q_tiles = (q_stats[0] + q_place * num_tiles, q_stats[1] + q_place * num_tiles)
    if has_ended == 0:
        x = load_masked_tiles(p_row, vocab_size, chunk, masked_id, TILES)
        scale = tl.where(c > 0.0, c, 1.0)
        store_stats(x, chunk, num_tiles, scale, p_tiles, MODE[0], TILES)
        if RULE[0] == _TYPICAL:
            out = spread_ptr + place * num_tiles
            store_spread(x, chunk, num_tiles, scale, out, MODE[0], TILES)
        if MODE[2] and RULE[1] == _RESIDUAL and not MODE[3]:
            if (r < n) & (is_matched == 0):
                y = load_tiles(q_row, vocab_size, chunk, TILES)
                store_stats(y, chunk, num_tiles, draft_c, q_tiles, MODE[0], TILES)
    if is_last(done_ptr + place, num_chunks):
        # where an earlier row ends the walk meanwhile, nobody reads what is decided here
        if has_ended == 0:
            decide_lossy(
                (p_row, p_tiles, q_tiles),
                (p_stats, q_stats, q_place, place, spread_ptr + place * num_tiles),
                (temperatures, drafts, at),
                found,
                (b, r, n, first, is_possible, vocab_size, num_tiles),
                K,
                MODE,
                STRIDES,
                ADDRESS,
                RULE,
                SHAPE,
            )


@triton.jit
def decide_lossy(
    rows,
    places,
    inputs,
    found,
    index,
    K: tl.constexpr,
    MODE: tl.constexpr,
    STRIDES: tl.constexpr,
    ADDRESS: tl.constexpr,
    RULE: tl.constexpr,
    SHAPE: tl.constexpr,
):
    """Decides one row whose statistics are complete."""
    p_row, p_tiles, q_tiles = rows
    p_stats, q_stats, q_place, place, spread_ptr = places
    temperatures, drafts, at = inputs
    b, r, n, first, is_possible, vocab_size, num_tiles = index
    fields = request_fields(at, b, STRIDES)
    c, draft_c, is_matched = scales(temperatures, drafts, b, STRIDES, MODE[2])
    x_d, is_forbidden, masked_id = masked_token(drafts, first, r, n, vocab_size, MODE[4])
    top, total = load_stats(p_tiles[0], p_tiles[1], num_tiles, SHAPE[1])
    key, counter, is_good = final_address(fields, r, n, ADDRESS, False)
    error, row_max = row_error(top, total)
    error = call_error(error, is_good, (c == c) & (draft_c == draft_c) & is_possible)
    weights = total * exp2_weight(top - row_max, c)
    row_sum = row_total(tl.where((error == 0) & (c > 0.0), weights, 0.0))
    tl.store(p_stats[2] + place, row_max)
    tl.store(p_stats[3] + place, row_sum)
    state = tl.where(error == 0, DRAWN, ERROR + error)
    token, margin = tl.full([], -1, tl.int32), tl.full([], _INF, tl.float64)
    if error == 0:
        share = tl.full([], 0.0, tl.float64)
        if (r < n) & (is_forbidden == 0):
            spread = tl.full([], 0.0, tl.float64)
            if RULE[0] == _TYPICAL:
                spread = row_spread(spread_ptr, top, total, row_max, row_sum, c, num_tiles)
            law = (p_row, p_tiles[0], top, c, row_max, row_sum, spread)
            share = draft_chance(law, x_d, r, vocab_size, K, RULE)
        u = accept_number(fields, r, ADDRESS)
        # a draft without a chance is no near tie, and neither is the end of the drafts
        safe = tl.where(share > 0.0, share, 1.0)
        failed_margin = tl.where(share > 0.0, u / safe - 1.0, _INF)
        if u < share:
            state, margin = tl.full([], ACCEPTED, tl.int32), share / u - 1.0
        elif MODE[2] and RULE[1] == _RESIDUAL and (r < n) & (is_matched == 0):
            q_error = draft_row(q_tiles, q_stats, q_place, draft_c, num_tiles, MODE, SHAPE)[0]
            state = tl.where(q_error == 0, REJECTED, ERROR + _DRAFT_ERROR)
            margin = failed_margin
        elif c == 0.0:
            token, margin = greedy(p_row, vocab_size, masked_id, top)
            margin = tl.minimum(margin, failed_margin)
        else:
            left_out = masked_id
            if RULE[1] != _WHOLE:
                if (r < n) & (x_d >= 0) & (x_d < vocab_size):
                    weights, left_out = unmatched(
                        p_row, vocab_size, x_d, c, (top, total, weights), masked_id, MODE[0]
                    )
            token, margin = race(p_row, vocab_size, left_out, c, weights, key, counter, SHAPE[1])
            margin = tl.minimum(margin, failed_margin)
    tl.store(found[1] + place, token)
    # broken contracts are not counted where q decides nothing
    tl.store(found[2] + place, 0)
    tl.store(found[3] + place, margin)
    tl.store(found[0] + place, state)
    if state > ACCEPTED:
        note_end(found[6], b, r, SHAPE[2])


@triton.jit
def draft_chance(law, x, r, vocab_size, K: tl.constexpr, RULE: tl.constexpr):
    """Twin of `lossy.chance` for an id inside the vocabulary; 0 if the target excludes it."""
    p_row, tile_max_ptr, top, c, row_max, row_sum, spread = law
    logit = tl.load(p_row + x).to(tl.float32)
    one = tl.full([], 1.0, tl.float64)
    if c == 0.0:
        p_x = (greedy(p_row, vocab_size, -1, top)[0] == x).to(tl.float64)
        sure = one
    else:
        tile_max = tl.load(tile_max_ptr + x // TILE, cache_modifier=".cg")
        p_x = probability(logit, tile_max, c, row_max, row_sum)
        # exp(-H) is the largest probability times 2^-spread
        power = exp2_weight((-spread).to(tl.float32), 1.0)
        sure = power.to(tl.float64) * law_scale(one, row_sum)
    if RULE[0] == _TYPICAL:
        bound = tl.minimum(
            tl.full([], RULE[2], tl.float64), tl.full([], RULE[3], tl.float64) * sure
        )
        share = (p_x > bound).to(tl.float64)
    elif RULE[0] == _THRESHOLD:
        share = tl.minimum(one, p_x / tl.full([], RULE[3], tl.float64))
        share = tl.where(p_x >= tl.full([], RULE[2], tl.float64), one, share)
    else:
        share = one * 0.0
        for i in tl.static_range(K):
            share = tl.where(r == i, tl.full([], RULE[2 + i], tl.float64), share)
    return tl.where(logit > -_INF, share, 0.0)


@triton.jit
def store_spread(x, chunk, num_tiles, c, out, IS_FAST: tl.constexpr, TILES: tl.constexpr):
    """Stores the sums of 2^-g g of TILES tiles, g = (max - x) c; twin of `lossy.tile_spreads`."""
    x = tl.reshape(x, (TILES, TILE))
    d = x - tile_base(tl.max(x, 1))[:, None]
    if IS_FAST:
        weights = tl.exp2(d * c)
        total = tl.sum(weights * tl.where(weights > 0.0, -(d * c), 0.0), 1)
    else:
        weights = exp2_weight(d, c)
        total = exact_sum(weights * tl.where(weights > 0.0, -(d * c), 0.0), 1)
    tile = chunk * TILES + tl.arange(0, TILES)
    tl.store(out + tile, total, mask=tile < num_tiles)


@triton.jit
def row_spread(spread_ptr, top, total, row_max, row_sum, c, num_tiles):
    """Twin of `lossy.row_spread`, from the statistics of a row's tiles."""
    tile = tl.arange(0, top.shape[0])
    own = tl.load(spread_ptr + tile, mask=tile < num_tiles, other=0.0, cache_modifier=".cg")
    scale = exp2_weight(top - row_max, c).to(tl.float64)
    lead = (row_max - tile_base(top)).to(tl.float64) * c.to(tl.float64)
    bits = scale * (own.to(tl.float64) + total.to(tl.float64) * lead)
    units = tl.sum((tl.where(scale > 0.0, bits, 0.0) * _FIXED_POINT).to(tl.int64), 0)
    # a greedy row has no total
    return units.to(tl.float64) / tl.maximum(row_sum, 1).to(tl.float64)


@triton.jit
def unmatched(p_row, vocab_size, x, c, stats, masked_id, IS_FAST: tl.constexpr):
    """Weights of the tiles of p without token x and the id to mask, or as they were if p is x."""
    top, total, weights = stats
    own = load_masked_tiles(p_row, vocab_size, x // TILE, x, 1)
    own_top, own_total = tile_stats(tl.reshape(own, (1, TILE)), c, IS_FAST)
    is_own = tl.arange(0, top.shape[0]) == x // TILE
    top = tl.where(is_own, tl.max(own_top, 0), top)
    total = tl.where(is_own, tl.max(own_total, 0), total)
    row_max = tl.max(top, 0)
    has_rest = row_max > -_INF
    rest = total * exp2_weight(top - tile_base(row_max), c)
    return tl.where(has_rest, rest, weights), tl.where(has_rest, x, masked_id)
