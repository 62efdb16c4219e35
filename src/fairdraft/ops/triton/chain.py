"""First kernel of `ops.verify_chain`: reads rows, and decides each by itself.

Programs are ordered row 0 of every request, row 1 of every request, and so on, and a program whose
request already ended at an earlier row reads nothing. The last program of a row decides it: it
tests the row's draft, or draws the row's own token. `resolve.py` puts a request together.
Axes: B requests, K drafts, R = K + 1 rows, V vocabulary, T tiles.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.noise import Stream
from fairdraft.noise.device import accept_uniform, is_in_range
from fairdraft.ops.rows import RowError
from fairdraft.ops.triton.arithmetic import TILE, exp2_weight, row_total, temperature_scale
from fairdraft.ops.triton.law import probability
from fairdraft.ops.triton.race import greedy, race, row_error
from fairdraft.ops.triton.reading import (
    is_last,
    let_next_start,
    load_field,
    load_stats,
    load_tiles,
    store_stats,
    wait_for_previous,
)

# what a row came to; ERROR plus a RowError is an error of the row
PENDING, ACCEPTED, DRAWN, REJECTED, ERROR = (tl.constexpr(i) for i in range(5))
_TARGET, _ACCEPT = tl.constexpr(int(Stream.TARGET)), tl.constexpr(int(Stream.ACCEPT))
_RESIDUAL, _BONUS = tl.constexpr(int(Stream.RESIDUAL)), tl.constexpr(int(Stream.BONUS))
_DRAFT_ERROR = tl.constexpr(int(RowError.DRAFT))
_PARAMETER_ERROR = tl.constexpr(int(RowError.PARAMETER))
_ADDRESS_ERROR = tl.constexpr(int(RowError.ADDRESS))
_INF = tl.constexpr(float("inf"))


@triton.jit
def request_span(drafts, b, K: tl.constexpr, IS_FLAT: tl.constexpr):
    """Index of a request's first draft among all, and how many it has."""
    if IS_FLAT:
        end = tl.load(drafts[1] + b).to(tl.int64)
        start = tl.load(drafts[1] + b - 1, mask=b > 0, other=0).to(tl.int64)
        return start, end - start
    return b * K, tl.load(drafts[1] + b).to(tl.int64)


@triton.jit
def row_places(target, draft, first, b, r, K: tl.constexpr, IS_FLAT: tl.constexpr):
    """Pointers to row r of the target and to the draft's row, and the latter's index."""
    if IS_FLAT:
        p_row = target[0] + (first + b + r) * target[2]
        q_row = draft[0] + (first + r) * draft[2]
        q_place = first + r
    else:
        p_row = target[0] + b * target[1] + r * target[2]
        q_row = draft[0] + b * draft[1] + r * draft[2]
        q_place = b * K + r
    return p_row, q_row, q_place


@triton.jit
def masked_token(drafts, first, r, n, vocab_size, HAS_FORBIDDEN: tl.constexpr):
    """Draft r + 1, whether it is forbidden, and the id that is masked in its row (-1: none)."""
    x = tl.load(drafts[0] + first + r, mask=r < n, other=-1).to(tl.int64)
    is_forbidden = (x < 0) | (x >= vocab_size)
    masked_id = tl.full([], -1, tl.int64)
    if HAS_FORBIDDEN:
        is_forbidden |= tl.load(drafts[3] + first + r, mask=r < n, other=0) != 0
        masked_id = tl.where(is_forbidden, x, -1)
    return x, is_forbidden, masked_id


@triton.jit
def final_address(at, b, r, n, STRIDES: tl.constexpr, ADDRESS: tl.constexpr):
    """Key and counter of the token after row r, and whether the fields are in range."""
    key, anchor = load_field(at, STRIDES, 0, b), load_field(at, STRIDES, 1, b)
    sample = load_field(at, STRIDES, 2, b)
    stream = tl.where(r < n, _RESIDUAL, tl.where(n > 0, _BONUS, _TARGET)).to(tl.int64)
    shown = tl.where(n > 0, anchor, 0)
    counter = ADDRESS(anchor + r, shown, stream, r, sample)
    return key, counter, is_in_range(anchor + r, anchor, r, sample)


@triton.jit
def accept_number(at, b, r, STRIDES: tl.constexpr, ADDRESS: tl.constexpr):
    """The uniform that tests draft r + 1."""
    key, anchor = load_field(at, STRIDES, 0, b), load_field(at, STRIDES, 1, b)
    sample = load_field(at, STRIDES, 2, b)
    stream = tl.full([], _ACCEPT, tl.int64)
    return accept_uniform(key, ADDRESS(anchor + r, anchor, stream, r + 1, sample))


@triton.jit
def scales(temperatures, drafts, b, STRIDES: tl.constexpr, HAS_DRAFT: tl.constexpr):
    """c of target and draft, and whether the request is decided by sample-and-match."""
    c = temperature_scale(tl.load(temperatures[0] + b * STRIDES[3]))
    draft_c = c
    is_matched = c == 0.0
    if HAS_DRAFT:
        draft_c = temperature_scale(tl.load(temperatures[1] + b * STRIDES[4]))
        is_point_mass = tl.load(drafts[2] + b * STRIDES[5]) != 0
        is_matched = is_matched | is_point_mass | (draft_c == 0.0)
    else:
        is_matched = b >= 0
    return c, draft_c, is_matched


@triton.jit
def ends_before(states_ptr, b, r, R: tl.constexpr, MAX_ROWS: tl.constexpr):
    """Whether an earlier row of the request is already known to end the walk."""
    row = tl.arange(0, MAX_ROWS)
    state = tl.load(states_ptr + b * R + row, mask=row < r, other=0, cache_modifier=".cv")
    return tl.max(state, 0) > 1


@triton.jit
def draft_test(p_x, q_x, u):
    """Twin of `rules.is_accepted`, and the test's margin."""
    is_positive = (p_x > 0.0) & (q_x > 0.0)
    is_accepted = is_positive & ((p_x >= q_x) | (u * q_x < p_x))
    safe = tl.where(is_positive, u * q_x, 1.0)
    passed = p_x / safe - 1.0
    failed = tl.where(p_x > 0.0, u * q_x / tl.where(p_x > 0.0, p_x, 1.0) - 1.0, _INF)
    return is_accepted, tl.where(is_accepted, passed, failed)


@triton.jit
def chain_kernel(
    target,  # logits, strides of a request and of a row
    draft,  # logits, strides of a request and of a draft
    temperatures,  # of target and draft, [B] or [1]
    drafts,  # token_ids [B, K], num_drafts [B] (flat: ends), point_mass [B], forbidden [B, K]
    at,  # key, anchor, sample: int64 [B] or [1]
    p_stats,  # tile_max, tile_sum [B, R, T], row_max, row_sum [B, R]
    q_stats,  # tile_max, tile_sum [B, K, T], row_max, row_sum [B, K]
    found,  # state, token, broken int32 [B, R], margin, p_x, q_x float64 [B, R]
    tests_ptr,  # of rule `block`, int32 [B, R]; made 0
    done_ptr,  # int32 [B, R], zeros before and after
    sizes,  # B, V, T
    K: tl.constexpr,
    MODE: tl.constexpr,  # flat, fast, block, draft, draft statistics, forbidden
    STRIDES: tl.constexpr,  # key, anchor, sample, temperature, draft temperature, point_mass
    ADDRESS: tl.constexpr,
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
    first, n = request_span(drafts, b, K, MODE[0])
    if r > n:
        return
    c, draft_c, is_matched = scales(temperatures, drafts, b, STRIDES, MODE[3])
    is_ratio = (r < n) & (is_matched == 0)
    place = b * R + r
    p_row, q_row, q_place = row_places(target, draft, first, b, r, K, MODE[0])
    p_tiles = (p_stats[0] + place * num_tiles, p_stats[1] + place * num_tiles)
    q_tiles = (q_stats[0] + q_place * num_tiles, q_stats[1] + q_place * num_tiles)
    x_d, is_forbidden, masked_id = masked_token(drafts, first, r, n, vocab_size, MODE[5])
    if MODE[2]:
        if (r == 0) & (chunk == 0):
            row = tl.arange(0, SHAPE[2])
            tl.store(tests_ptr + b * R + row, 0, mask=row < R)
    if ends_before(found[0], b, r, R, SHAPE[2]) == 0:
        x = load_tiles(p_row, vocab_size, chunk, TILES)
        if MODE[5]:
            # a forbidden draft has p = 0
            ids = chunk * TILES * TILE + tl.arange(0, TILES * TILE)
            x = tl.where(ids == masked_id, -_INF, x)
        store_stats(x, chunk, num_tiles, tl.where(c > 0.0, c, 1.0), p_tiles, MODE[1], TILES)
        if MODE[3] and not MODE[4]:
            if is_ratio:
                y = load_tiles(q_row, vocab_size, chunk, TILES)
                q_scale = tl.where(draft_c > 0.0, draft_c, 1.0)
                store_stats(y, chunk, num_tiles, q_scale, q_tiles, MODE[1], TILES)
    if is_last(done_ptr + place, num_chunks):
        if ends_before(found[0], b, r, R, SHAPE[2]) == 0:
            decide(
                (p_row, q_row, p_tiles, q_tiles),
                (p_stats, q_stats, q_place, place),
                (c, draft_c, is_ratio, x_d, is_forbidden, masked_id),
                at,
                found,
                (b, r, n, vocab_size, num_tiles),
                MODE,
                STRIDES,
                ADDRESS,
                SHAPE,
            )


@triton.jit
def decide(
    rows,
    places,
    request,
    at,
    found,
    index,
    MODE: tl.constexpr,
    STRIDES: tl.constexpr,
    ADDRESS: tl.constexpr,
    SHAPE: tl.constexpr,
):
    """Decides one row whose statistics are complete."""
    p_row, q_row, p_tiles, q_tiles = rows
    p_stats, q_stats, q_place, place = places
    c, draft_c, is_ratio, x_d, is_forbidden, masked_id = request
    b, r, n, vocab_size, num_tiles = index
    top, total = load_stats(p_tiles[0], p_tiles[1], num_tiles, SHAPE[1])
    error, row_max = row_error(top, total)
    key, counter, is_good = final_address(at, b, r, n, STRIDES, ADDRESS)
    error = tl.where(is_good, error, _ADDRESS_ERROR)
    error = tl.where((c == c) & (draft_c == draft_c), error, _PARAMETER_ERROR)
    weights = total * exp2_weight(top - row_max, c)
    row_sum = row_total(tl.where((error == 0) & (c > 0.0), weights, 0.0))
    tl.store(p_stats[2] + place, row_max)
    tl.store(p_stats[3] + place, row_sum)
    state = tl.where(error == 0, DRAWN, ERROR + error)
    token, margin = tl.full([], -1, tl.int32), tl.full([], 0.0, tl.float64)
    broken = tl.full([], 0, tl.int32)
    if error == 0:
        if is_ratio:
            q_error, q_max, q_sum = draft_row(q_tiles, q_stats, q_place, draft_c, num_tiles, MODE, SHAPE)
            if q_error != 0:
                state = tl.full([], ERROR + _DRAFT_ERROR, tl.int32)
            else:
                is_id = (x_d >= 0) & (x_d < vocab_size)
                x_s = tl.where(is_id, x_d, 0)
                p_x = probability(p_row, p_tiles[0], x_s, c, row_max, row_sum)
                q_x = probability(q_row, q_tiles[0], x_s, draft_c, q_max, q_sum)
                p_x = tl.where(is_forbidden, 0.0, p_x)
                q_x = tl.where(is_id, q_x, 0.0)
                broken = (q_x == 0.0).to(tl.int32)
                u = accept_number(at, b, r, STRIDES, ADDRESS)
                is_accepted, margin = draft_test(p_x, q_x, u)
                state = tl.where(is_accepted, ACCEPTED, REJECTED)
                if MODE[2]:
                    state = tl.where((p_x > 0.0) & (q_x > 0.0), ACCEPTED, REJECTED)
                tl.store(found[4] + place, p_x)
                tl.store(found[5] + place, q_x)
        else:
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
    # others may read the state as soon as it is there, and read nothing else
    tl.store(found[0] + place, state)


@triton.jit
def draft_row(
    q_tiles, q_stats, q_place, c, num_tiles, MODE: tl.constexpr, SHAPE: tl.constexpr
):
    """Error, maximum and total of a draft's row, from the statistics of its sampling or ours."""
    if MODE[4]:
        q_max, q_sum = tl.load(q_stats[2] + q_place), tl.load(q_stats[3] + q_place)
        error = (q_sum <= 0).to(tl.int32)
    else:
        top, total = load_stats(q_tiles[0], q_tiles[1], num_tiles, SHAPE[1])
        error, q_max = row_error(top, total)
        weights = tl.where(error == 0, total * exp2_weight(top - q_max, c), 0.0)
        q_sum = row_total(weights)
        tl.store(q_stats[2] + q_place, q_max)
        tl.store(q_stats[3] + q_place, q_sum)
    return error, q_max, q_sum
