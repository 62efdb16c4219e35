"""Last kernel of `ops.verify_chain`: where each request ends, its residual, and what it emits.

Axes: B requests, K drafts, R = K + 1 rows, V vocabulary, T tiles.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.noise import Stream
from fairdraft.noise.device import TILE_LEVEL, exponentials
from fairdraft.ops.triton.arithmetic import TILE, exp2_weight
from fairdraft.ops.triton.block import block_end
from fairdraft.ops.triton.law import (
    NO_EXPONENT,
    request_laws,
    residual_of,
    residual_tiles,
    residual_weights,
    scaled_weights,
)
from fairdraft.ops.triton.race import first as first_of
from fairdraft.ops.triton.race import race, race_tokens
from fairdraft.ops.triton.reading import (
    is_last,
    let_next_start,
    load_stats,
    wait_for_previous,
)
from fairdraft.ops.triton.request import (
    ACCEPTED,
    ERROR,
    PENDING,
    REJECTED,
    final_address,
    masked_token,
    request_span,
    row_places,
    scales,
)

_TARGET, _RESIDUAL, _BONUS = (
    tl.constexpr(int(s)) for s in (Stream.TARGET, Stream.RESIDUAL, Stream.BONUS)
)
_INF = tl.constexpr(float("inf"))


@triton.jit
def store_residual(
    rows,
    laws,
    sizes,
    chunk,
    out,
    TILES: tl.constexpr,
    LOOPS: tl.constexpr,
    IS_BLOCK: tl.constexpr,
):
    """Stores exponents and sums of a program's residual tiles, some at a time."""
    rho, num_tiles, vocab_size, masked_id = sizes
    for i in range(LOOPS):
        part = chunk * LOOPS + i
        values = residual_of(
            rows, laws, rho, part, num_tiles, vocab_size, masked_id, TILES, IS_BLOCK
        )
        exponent, tile_sum = residual_tiles(values)
        tile = part * TILES + tl.arange(0, TILES)
        tl.store(out[0] + tile, exponent, mask=tile < num_tiles)
        tl.store(out[1] + tile, tile_sum, mask=tile < num_tiles)


@triton.jit
def replacement(
    rows,
    laws,
    residual,
    p_tile_sum,
    sizes,
    key,
    counter,
    MAX_TILES: tl.constexpr,
    IS_BLOCK: tl.constexpr,
):
    """Draws from the residual whose tiles are known, or from p where nothing is left of it."""
    rho, num_tiles, vocab_size, masked_id = sizes
    tile = tl.arange(0, MAX_TILES)
    is_tile = tile < num_tiles
    exponents = tl.load(residual[0] + tile, mask=is_tile, other=NO_EXPONENT, cache_modifier=".cg")
    sums = tl.load(residual[1] + tile, mask=is_tile, other=0.0, cache_modifier=".cg")
    weights, is_there = residual_weights(exponents, sums)
    if is_there:
        times = exponentials(key, counter, 0, TILE_LEVEL, MAX_TILES)
        won, tile_margin = first_of(times, weights)
        exponent = tl.sum(tl.where(tile == won, exponents, 0), 0)
        values = residual_of(rows, laws, rho, won, num_tiles, vocab_size, masked_id, 1, IS_BLOCK)
        in_tile = scaled_weights(values, tl.full([1], 0, tl.int32) + exponent)
        token, margin = race_tokens(tl.reshape(in_tile, (TILE,)), won, key, counter)
        margin = tl.minimum(margin, tile_margin)
    else:
        top, total = load_stats(laws[0], p_tile_sum, num_tiles, MAX_TILES)
        tile_weights = total * exp2_weight(top - laws[2], laws[1])
        token, margin = race(
            rows[0], vocab_size, masked_id, laws[1], tile_weights, key, counter, MAX_TILES
        )
    return token, margin


@triton.jit
def resolve_kernel(
    target,  # logits, strides of a request and of a row
    draft,  # logits, strides of a request and of a draft
    temperatures,  # of target and draft, [B] or [1]
    drafts,  # token_ids, num_drafts, point_mass, forbidden
    at,  # key, anchor, sample
    p_stats,  # tile_max, tile_sum [B, R, T], row_max, row_sum [B, R]
    q_stats,  # the same of drafts
    found,  # state, token, broken int32 [B, R], margin, p_x, q_x float64 [B, R]
    tests,  # of rule `block`: state int32, margin float64, units int64 [B, R]
    path,  # of rule `block`: stop, state int32 [B], rho float64 [B, R]
    residual,  # exponent int32 [B, T], tile_sum float32 [B, T]
    out,  # token_ids, margin [B, R], num_accepted, num_emitted, last_stream, error, broken [B]
    done_ptr,  # int32 [B], zeros before and after
    shape,  # B, V, T
    K: tl.constexpr,
    MODE: tl.constexpr,
    STRIDES: tl.constexpr,
    ADDRESS: tl.constexpr,
    SHAPE: tl.constexpr,
    HAS_PDL: tl.constexpr,
):
    R: tl.constexpr = K + 1
    TILES: tl.constexpr = SHAPE[0]
    vocab_size, num_tiles = shape[1], shape[2]
    num_chunks = (num_tiles + TILES * SHAPE[3] - 1) // (TILES * SHAPE[3])
    b = (tl.program_id(0) // num_chunks).to(tl.int64)
    chunk = tl.program_id(0) % num_chunks
    wait_for_previous(HAS_PDL)
    let_next_start(HAS_PDL)
    # all of this is asked for at once: one trip to memory
    row = tl.arange(0, SHAPE[2])
    state = tl.load(found[0] + b * R + row, mask=row < R, other=PENDING, cache_modifier=".cg")
    first, n, is_possible = request_span(drafts, b, K, SHAPE[2])
    c, draft_c, is_matched = scales(temperatures, drafts, b, STRIDES, MODE[2])
    end = tl.min(tl.where((state != ACCEPTED) & (row <= n), row, SHAPE[2]), 0)
    state = tl.sum(tl.where(row == end, state, 0), 0)
    end = end.to(tl.int64)
    rho = tl.full([], 1.0, tl.float64)
    passed_margin, failed_margin = rho * _INF, rho * _INF
    is_block = b < 0
    if MODE[1]:
        is_block = is_matched == 0
        if is_block & (state != PENDING):
            end, state, rho, passed_margin, failed_margin = block_end(
                path, tests, b, n, K, SHAPE[2]
            )
    place = b * R + end
    if state == REJECTED:
        p_row, q_row, q_place = row_places(target, draft, first, b, end)
        masked_id = masked_token(drafts, first, end, n, vocab_size, MODE[4])[2]
        laws = request_laws(p_stats, q_stats, place, q_place, num_tiles, c, draft_c)
        tiles_out = (residual[0] + b * num_tiles, residual[1] + b * num_tiles)
        sizes = (rho, num_tiles, vocab_size, masked_id)
        store_residual((p_row, q_row), laws, sizes, chunk, tiles_out, TILES, SHAPE[3], MODE[1])
        if is_last(done_ptr + b, num_chunks):
            key, counter, is_good = final_address(at, b, end, n, STRIDES, ADDRESS)
            token, margin = replacement(
                (p_row, q_row),
                laws,
                tiles_out,
                p_stats[1] + place * num_tiles,
                sizes,
                key,
                counter,
                SHAPE[1],
                MODE[1],
            )
            test_margin = tl.where(is_block, failed_margin, tl.load(found[3] + place))
            margin = tl.minimum(margin, test_margin)
            margins = (margin, passed_margin, is_block)
            emit(found, drafts, out, (first, n, b, end), token, margins, state, K, SHAPE[2])
    elif (state != PENDING) & (chunk == 0):
        token, margin = tl.load(found[1] + place), tl.load(found[3] + place)
        margins = (tl.minimum(margin, failed_margin), passed_margin, is_block)
        emit(found, drafts, out, (first, n, b, end), token, margins, state, K, SHAPE[2])


@triton.jit
def emit(found, drafts, out, index, token, margins, state, K: tl.constexpr, ROWS: tl.constexpr):
    """Writes what a request emits, and makes its rows pending again."""
    R: tl.constexpr = K + 1
    first, n, b, end = index
    margin, passed_margin, is_block = margins
    row = tl.arange(0, ROWS)
    is_row = row < R
    at = b * R + row
    draft_ids = tl.load(drafts[0] + first + row, mask=(row < end) & (row < n), other=-1)
    error = tl.maximum(state - ERROR, 0)
    last_id = tl.where(error == 0, token, -1).to(tl.int64)
    token_ids = tl.where(row < end, draft_ids.to(tl.int64), tl.where(row == end, last_id, -1))
    leads = tl.load(found[3] + at, mask=row < end, other=0.0)
    leads = tl.where(is_block & (row < end), passed_margin, leads)
    leads = tl.where(row == end, tl.where(error == 0, margin, 0.0), leads)
    tl.store(out[0] + at, token_ids, mask=is_row)
    tl.store(out[1] + at, leads, mask=is_row)
    is_ok = (error == 0).to(tl.int64)
    stream = tl.where(end < n, _RESIDUAL, tl.where(n > 0, _BONUS, _TARGET))
    # rule `block` reads every row that can stand, rule `token` those of the walk
    is_walked = is_row & (row <= tl.where(is_block, n, end))
    state_of = tl.load(found[0] + at, mask=is_walked, other=PENDING)
    broken = tl.load(found[2] + at, mask=is_walked & (state_of != PENDING), other=0)
    tl.store(out[2] + b, end)
    tl.store(out[3] + b, end + is_ok)
    tl.store(out[4] + b, stream.to(tl.int64) * is_ok)
    tl.store(out[5] + b, error.to(tl.int64))
    tl.store(out[6] + b, tl.sum(broken, 0).to(tl.int64))
    # every load above is done before anything turns pending
    tl.debug_barrier()
    tl.store(found[0] + at, PENDING, mask=is_row)
