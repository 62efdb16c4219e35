"""The end of `ops.verify_chain`: what each request emits, by one program a request.

It draws the replacement of a rejected draft, and a bonus that `chain.py` left.
Axes: B requests, K drafts, R = K + 1 rows, V vocabulary, T tiles.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.noise.device import TILE_LEVEL, exponentials
from fairdraft.ops.triton.arithmetic import TILE, exp2_weight
from fairdraft.ops.triton.block import request_end
from fairdraft.ops.triton.law import (
    NO_EXPONENT,
    request_laws,
    residual_of,
    residual_weights,
    scaled_weights,
)
from fairdraft.ops.triton.race import first as first_of
from fairdraft.ops.triton.race import race, race_tokens
from fairdraft.ops.triton.reading import let_next_start, load_stats, wait_for_previous
from fairdraft.ops.triton.request import (
    DRAWN,
    ERROR,
    REJECTED,
    final_address,
    last_stream,
    masked_token,
    request_fields,
    request_span,
    row_places,
    scales,
)


@triton.jit
def residual_tile(residual, num_tiles, key, counter, MAX_TILES: tl.constexpr):
    """The tile that wins the race of a residual: itself, margin, exponent, whether there is one."""
    tile = tl.arange(0, MAX_TILES)
    is_tile = tile < num_tiles
    exponents = tl.load(residual[0] + tile, mask=is_tile, other=NO_EXPONENT)
    sums = tl.load(residual[1] + tile, mask=is_tile, other=0.0)
    times = exponentials(key, counter, 0, TILE_LEVEL, MAX_TILES)
    weights, is_there = residual_weights(exponents, sums)
    won, margin = first_of(times, weights)
    return won, margin, tl.sum(tl.where(tile == won, exponents, 0), 0), is_there


@triton.jit
def residual_token(values, exponent, tile, tile_margin, key, counter):
    """Draws a token of the tile that won, from its residual [1, TILE]: id and margin."""
    weights = scaled_weights(values, tl.full([1], 0, tl.int32) + exponent)
    token, margin = race_tokens(tl.reshape(weights, (TILE,)), tile, key, counter)
    return token, tl.minimum(margin, tile_margin)


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
    IS_FAST: tl.constexpr,
):
    """Draws from the residual whose tiles are known, or from p where there is nothing of it."""
    rho, num_tiles, vocab_size, masked_id, is_rejected = sizes
    won, tile_margin, exponent, is_there = residual_tile(
        residual, tl.where(is_rejected, num_tiles, 0), key, counter, MAX_TILES
    )
    if is_there:
        values = residual_of(
            rows, laws, rho, won, num_tiles, vocab_size, masked_id, 1, IS_BLOCK, IS_FAST
        )
        token, margin = residual_token(values, exponent, won, tile_margin, key, counter)
    else:
        top, total = load_stats(laws[0], p_tile_sum, num_tiles, MAX_TILES)
        tile_weights = total * exp2_weight(top - laws[2], laws[1])
        token, margin = race(
            rows[0], vocab_size, masked_id, laws[1], tile_weights, key, counter, MAX_TILES
        )
    return token, margin


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
def emit_kernel(
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
    residual,  # exponent int32, tile_sum float32, [B, T], or [B, K, T] of rule `block`
    out,  # token_ids, margin [B, R], num_accepted, num_emitted, last_stream, error, broken [B]
    sizes,  # B, V, T
    num_rows,
    num_slots,
    K: tl.constexpr,
    MODE: tl.constexpr,
    STRIDES: tl.constexpr,
    ADDRESS: tl.constexpr,
    SHAPE: tl.constexpr,  # 1, most tiles, most rows, whether a kernel made residuals before
    HAS_PDL: tl.constexpr,
):
    R: tl.constexpr = K + 1
    vocab_size, num_tiles = sizes[1], sizes[2]
    b = tl.program_id(0).to(tl.int64)
    limits = (num_rows, num_slots, sizes[0])
    first, n, _ = request_span(drafts, limits, b, K, SHAPE[2], MODE)
    c, draft_c, is_matched = scales(temperatures, drafts, b, STRIDES, MODE[2])
    is_block = MODE[1] & (is_matched == 0)
    fields = request_fields(at, b, STRIDES)
    # a kernel of residuals lets this one start when rows are decided: only it is waited for then
    IS_EARLY: tl.constexpr = MODE[2] and SHAPE[3] > 0
    if not IS_EARLY:
        wait_for_previous(HAS_PDL)
    known = known_rows(found, drafts, first, n, b, K, SHAPE[2])
    if IS_EARLY and MODE[1]:
        wait_for_previous(HAS_PDL)
    walk = request_end(found, path, tests, b, n, is_block, K, SHAPE[2])
    end, state, rho = walk[0], walk[1], walk[2]
    place = b * R + end
    is_end = tl.arange(0, SHAPE[2]) == end
    token = tl.sum(tl.where(is_end, known[1], 0), 0)
    margin = tl.sum(tl.where(is_end, known[2], 0.0), 0)
    if MODE[2]:
        is_rejected = state == REJECTED
        p_row, q_row, q_place = row_places(target, draft, first, b, end)
        masked_id = masked_token(drafts, first, end, n, vocab_size, MODE[4])[2]
        laws = request_laws(p_stats, q_stats, place, q_place, num_tiles, c, draft_c, is_rejected)
        key, counter, _ = final_address(fields, end, n, ADDRESS, MODE[8])
        tiles = (b * K + end if MODE[1] else b) * num_tiles
        if IS_EARLY and not MODE[1]:
            wait_for_previous(HAS_PDL)
        if is_rejected | ((state == DRAWN) & (token < 0)):
            token, drawn_margin = replacement(
                (p_row, q_row),
                laws,
                (residual[0] + tiles, residual[1] + tiles),
                p_stats[1] + place * num_tiles,
                (rho, num_tiles, vocab_size, masked_id, is_rejected),
                key,
                counter,
                SHAPE[1],
                MODE[1],
                MODE[0],
            )
            margin = tl.where(is_block, drawn_margin, tl.minimum(margin, drawn_margin))
    let_next_start(HAS_PDL)
    emit(known, out, (n, b), (token, margin, state, is_block), walk, K, SHAPE[2])
    # every warp has read them by now; the next call begins with zeros
    tl.debug_barrier()
    tl.store(found[6] + b, 0)
    tl.store(tests[3] + b, 0)


@triton.jit
def known_rows(found, drafts, first, n, b, K: tl.constexpr, ROWS: tl.constexpr):
    """Drafts, tokens, margins and broken drafts of a request's rows; anything past its end.

    Asked for before the end is known: one trip to memory.
    """
    row = tl.arange(0, ROWS)
    is_row = row <= K
    at = b * (K + 1) + row
    draft_ids = tl.load(drafts[0] + first[0] + row, mask=row < n, other=-1).to(tl.int64)
    tokens = tl.load(found[1] + at, mask=is_row, other=-1, cache_modifier=".cg")
    margins = tl.load(found[3] + at, mask=is_row, other=0.0, cache_modifier=".cg")
    broken = tl.load(found[2] + at, mask=is_row, other=0, cache_modifier=".cg")
    return draft_ids, tokens, margins, broken


@triton.jit
def emit(known, out, index, last, walk, K: tl.constexpr, ROWS: tl.constexpr):
    """Writes what a request emits."""
    R: tl.constexpr = K + 1
    n, b = index
    token, margin, state, is_block = last
    draft_ids, _, leads, broken = known
    end, _, _, stop, passed_margin, failed_margin = walk
    row = tl.arange(0, ROWS)
    is_row = row < R
    at = b * R + row
    error = tl.maximum(state - ERROR, 0)
    last_id = tl.where(error == 0, token, -1).to(tl.int64)
    token_ids = tl.where(row < end, draft_ids, tl.where(row == end, last_id, -1))
    leads = tl.where(row < end, tl.where(is_block, passed_margin, leads), 0.0)
    margin = tl.minimum(margin, failed_margin)
    leads = tl.where(row == end, tl.where(error == 0, margin, 0.0), leads)
    tl.store(out[0] + at, token_ids, mask=is_row)
    tl.store(out[1] + at, leads, mask=is_row)
    is_ok = (error == 0).to(tl.int64)
    tl.store(out[2] + b, end)
    tl.store(out[3] + b, end + is_ok)
    tl.store(out[4] + b, last_stream(end < n, n > 0) * is_ok)
    tl.store(out[5] + b, error.to(tl.int64))
    # rule `block` reads every row that can stand, rule `token` those of the walk
    num_broken = tl.sum(tl.where(row <= stop, broken, 0), 0)
    tl.store(out[6] + b, num_broken.to(tl.int64))
