"""First kernel of `ops.verify_chain`: reads rows, and decides each by itself.

Programs are ordered row 0 of every request, row 1 of every request, and so on, and a program whose
request already ended at an earlier row reads nothing. The last program of a row decides it: it
tests the row's draft, or draws the token that a draft has to match. `emit.py` puts a request
together, and draws what is left to draw; `few.py` has what runs instead where rows are few.
Axes: B requests, K drafts, R = K + 1 rows, V vocabulary, T tiles.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.ops.rows import RowError
from fairdraft.ops.triton.arithmetic import TILE, exp2_weight, row_total
from fairdraft.ops.triton.law import probability
from fairdraft.ops.triton.path import clear_tests, store_path
from fairdraft.ops.triton.race import call_error, greedy, race, row_error
from fairdraft.ops.triton.reading import (
    is_last,
    let_next_start,
    load_stats,
    load_tiles,
    store_stats,
    wait_for_previous,
    without,
)
from fairdraft.ops.triton.request import (
    ACCEPTED,
    DRAWN,
    ERROR,
    REJECTED,
    accept_number,
    draft_test,
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
_DRAFT_ERROR = tl.constexpr(int(RowError.DRAFT))


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
def chain_kernel(
    target,  # logits, strides of a request and of a row
    draft,  # logits, strides of a request and of a draft
    temperatures,  # of target and draft, [B] or [1]
    drafts,  # token_ids [B, K], num_drafts, point_mass [B], forbidden [B, K], offsets, slots [B]
    at,  # key, anchor, sample: int64 [B] or [1]
    p_stats,  # tile_max, tile_sum [B, R, T], row_max, row_sum [B, R]
    q_stats,  # tile_max, tile_sum [B, K, T], row_max, row_sum [B, K]
    found,  # state, token, broken int32, margin, p_x, q_x float64 [B, R]; ended int32 [B]
    tests,  # of `block`: state int32, margin float64, units int64 [B, R]; passed int32 [B]
    path,  # of rule `block`: stop, state int32 [B], rho float64 [B, R]
    done_ptr,  # int32 [B, R], zeros before and after
    requests_done_ptr,  # int32 [B], zeros before and after
    sizes,  # B, V, T
    num_rows,  # N of flat rows
    num_slots,  # S of the drafts' laws
    K: tl.constexpr,
    # fast, block, draft, draft statistics, forbidden, offsets, flat q, slots, common noise
    MODE: tl.constexpr,
    STRIDES: tl.constexpr,  # key, anchor, sample, temperature, draft temperature, point_mass
    ADDRESS: tl.constexpr,
    SHAPE: tl.constexpr,  # tiles a program, most tiles, most rows, tiles in turn
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
    # little is asked for here, and at once: the last program of a row asks for the rest
    limits = (num_rows, num_slots, num_requests)
    first, n, is_possible = request_span(drafts, limits, b, K, SHAPE[2], MODE)
    has_ended = ends_before(found[6], b, r, SHAPE[2])
    c, draft_c, is_matched = scales(temperatures, drafts, b, STRIDES, MODE[2])
    masked_id = masked_token(drafts, first, r, n, vocab_size, MODE[4])[2]
    p_row, q_row, q_place = row_places(target, draft, first, b, r)
    if r > n:
        return
    is_ratio = (r < n) & (is_matched == 0)
    place = b * R + r
    p_tiles = (p_stats[0] + place * num_tiles, p_stats[1] + place * num_tiles)
    q_tiles = (q_stats[0] + q_place * num_tiles, q_stats[1] + q_place * num_tiles)
    if MODE[1]:
        clear_tests(tests, b, (r == 0) & (chunk == 0), K, SHAPE[2])
    if has_ended == 0:
        x = load_tiles(p_row, vocab_size, chunk, TILES)
        if MODE[4]:
            # a forbidden draft has p = 0
            x = without(x, chunk, masked_id, TILES)
        if MODE[2] and not MODE[3]:
            y = load_tiles(q_row, tl.where(is_ratio, vocab_size, 0), chunk, TILES)
        store_stats(x, chunk, num_tiles, tl.where(c > 0.0, c, 1.0), p_tiles, MODE[0], TILES)
        if MODE[2] and not MODE[3]:
            if is_ratio:
                q_scale = tl.where(draft_c > 0.0, draft_c, 1.0)
                store_stats(y, chunk, num_tiles, q_scale, q_tiles, MODE[0], TILES)
    if is_last(done_ptr + place, num_chunks):
        # where an earlier row ends the walk meanwhile, nobody reads what is decided here
        if has_ended == 0:
            rows = (p_row, q_row, p_tiles, q_tiles)
            places = (p_stats, q_stats, q_place, place)
            index = (b, r, n, first, is_possible, vocab_size, num_tiles)
            fields = request_fields(at, b, STRIDES)
            asked = row_inputs(
                rows, places, (temperatures, drafts), fields, index, MODE, STRIDES, ADDRESS
            )
            u = accept_number(fields, r, ADDRESS)
            decide(rows, places, asked, u, found, index, MODE, SHAPE)
        if MODE[1]:
            # the last row of a request puts its path together
            is_tested = scales(temperatures, drafts, b, STRIDES, MODE[2])[2] == 0
            if is_last(requests_done_ptr + b, n + 1) & is_tested:
                fields = request_fields(at, b, STRIDES)
                store_path(found, path, tests, fields, b, n, K, ADDRESS, SHAPE[2])


@triton.jit
def row_inputs(
    rows,
    places,
    inputs,
    fields,
    index,
    MODE: tl.constexpr,
    STRIDES: tl.constexpr,
    ADDRESS: tl.constexpr,
):
    """What decides a row besides statistics: it was there before the call."""
    temperatures, drafts = inputs
    b, r, n, first, is_possible, vocab_size, _ = index
    c, draft_c, is_matched = scales(temperatures, drafts, b, STRIDES, MODE[2])
    draft = masked_token(drafts, first, r, n, vocab_size, MODE[4])
    is_ratio = (r < n) & (is_matched == 0)
    x_d = draft[0]
    is_id = (x_d >= 0) & (x_d < vocab_size)
    place = tl.where(is_id, x_d, 0)
    p_logit = tl.load(rows[0] + place, mask=is_ratio, other=0.0)
    q_logit = tl.load(rows[1] + place, mask=is_ratio, other=0.0)
    given = given_draft_row(places[1], places[2], is_ratio & MODE[3])
    key, counter, is_good = final_address(fields, r, n, ADDRESS, MODE[8])
    is_good = (is_good, (c == c) & (draft_c == draft_c) & is_possible)
    scale = (c, draft_c, is_matched, is_ratio)
    test = (is_id, place, p_logit, q_logit, given)
    return scale, draft, test, (key, counter, is_good)


@triton.jit
def decide(
    rows,
    places,
    asked,
    u,
    found,
    index,
    MODE: tl.constexpr,
    SHAPE: tl.constexpr,
):
    """Decides one row whose statistics are complete."""
    p_row, _, p_tiles, q_tiles = rows
    p_stats, q_stats, q_place, place = places
    scale, draft, test, address = asked
    b, r, n, _, _, vocab_size, num_tiles = index
    c, draft_c, is_matched, is_ratio = scale
    x_d, is_forbidden, masked_id = draft
    is_id, at, p_logit, q_logit, given = test
    key, counter, is_good = address
    tile = at // TILE
    p_top = tl.load(p_tiles[0] + tile, cache_modifier=".cg")
    q_top = tl.load(q_tiles[0] + tile, mask=is_ratio, other=0.0, cache_modifier=".cg")
    top, total = load_stats(p_tiles[0], p_tiles[1], num_tiles, SHAPE[1])
    q_max, q_sum = given
    error, row_max = row_error(top, total)
    error = call_error(error, is_good[0], is_good[1])
    weights = total * exp2_weight(top - row_max, c)
    row_sum = row_total(tl.where((error == 0) & (c > 0.0), weights, 0.0))
    tl.store(p_stats[2] + place, row_max)
    tl.store(p_stats[3] + place, row_sum)
    state = tl.where(error == 0, DRAWN, ERROR + error)
    # what `emit` draws adds its own margin
    token, margin = tl.full([], -1, tl.int32), tl.full([], _INF, tl.float64)
    broken = tl.full([], 0, tl.int32)
    if error == 0:
        if is_ratio:
            q_error = (q_sum <= 0).to(tl.int32)
            if not MODE[3]:
                q_error, q_max, q_sum = new_draft_row(
                    q_tiles, q_stats, q_place, draft_c, num_tiles, SHAPE
                )
            if q_error != 0:
                state = tl.full([], ERROR + _DRAFT_ERROR, tl.int32)
            else:
                p_x = probability(p_logit, p_top, c, row_max, row_sum)
                q_x = probability(q_logit, q_top, draft_c, q_max, q_sum)
                p_x = tl.where(is_forbidden, 0.0, p_x)
                q_x = tl.where(is_id, q_x, 0.0)
                broken = (q_x == 0.0).to(tl.int32)
                is_accepted, margin = draft_test(p_x, q_x, u)
                state = tl.where(is_accepted, ACCEPTED, REJECTED)
                if MODE[1]:
                    state = tl.where((p_x > 0.0) & (q_x > 0.0), ACCEPTED, REJECTED)
                tl.store(found[4] + place, p_x)
                tl.store(found[5] + place, q_x)
        elif is_matched:
            if c == 0.0:
                token, margin = greedy(p_row, vocab_size, masked_id, top)
            else:
                token, margin = race(
                    p_row, vocab_size, masked_id, c, weights, key, counter, SHAPE[1]
                )
            is_match = (r < n) & (token == x_d) & (is_forbidden == 0)
            state = tl.where(is_match, ACCEPTED, DRAWN)
    tl.store(found[1] + place, token)
    tl.store(found[2] + place, broken)
    tl.store(found[3] + place, margin)
    tl.store(found[0] + place, state)
    if state > ACCEPTED:
        note_end(found[6], b, r, SHAPE[2])


@triton.jit
def draft_row(q_tiles, q_stats, q_place, c, num_tiles, MODE: tl.constexpr, SHAPE: tl.constexpr):
    """Error, maximum and total of a draft's row, from the statistics of its sampling or ours."""
    if MODE[3]:
        q_max, q_sum = given_draft_row(q_stats, q_place, True)
        error = (q_sum <= 0).to(tl.int32)
    else:
        error, q_max, q_sum = new_draft_row(q_tiles, q_stats, q_place, c, num_tiles, SHAPE)
    return error, q_max, q_sum


@triton.jit
def given_draft_row(q_stats, q_place, is_given):
    """Maximum and total of a draft's row, from the statistics of its sampling."""
    q_max = tl.load(q_stats[2] + q_place, mask=is_given, other=0.0)
    return q_max, tl.load(q_stats[3] + q_place, mask=is_given, other=0)


@triton.jit
def new_draft_row(q_tiles, q_stats, q_place, c, num_tiles, SHAPE: tl.constexpr):
    """Error, maximum and total of a draft's row, from the statistics of its tiles."""
    top, total = load_stats(q_tiles[0], q_tiles[1], num_tiles, SHAPE[1])
    error, q_max = row_error(top, total)
    weights = tl.where(error == 0, total * exp2_weight(top - q_max, c), 0.0)
    q_sum = row_total(weights)
    tl.store(q_stats[2] + q_place, q_max)
    tl.store(q_stats[3] + q_place, q_sum)
    return error, q_max, q_sum
