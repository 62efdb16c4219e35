"""Second kernel of rule `block`: max(rho p - q, 0) of a row, whose mass tests the prefix before it.

It goes from the longest prefix down and reads nothing once a longer one stands. What it leaves of
the tiles is what the replacement is drawn from. Masses are sums of integers, so they are exact and
free of order. Axes: B requests, K drafts, R = K + 1 rows, V vocabulary, T tiles.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.ops.triton.law import request_laws, store_residual
from fairdraft.ops.triton.path import FAILED, PASSED, is_outlived, prefix_test, store_test
from fairdraft.ops.triton.reading import is_last, let_next_start, wait_for_previous
from fairdraft.ops.triton.request import (
    ERROR,
    REJECTED,
    accept_number,
    masked_token,
    request_fields,
    request_span,
    row_places,
    scales,
)

_INF = tl.constexpr(float("inf"))
_ULP_OF_ONE = tl.constexpr(2.0**-52)


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
def mass_kernel(
    target,  # as in `chain_kernel`
    draft,
    temperatures,
    drafts,
    at,
    p_stats,
    q_stats,
    found,
    tests,
    path,  # stop, state int32 [B], rho float64 [B, R]
    residual,  # exponent int32 [B, K, T], tile_sum float32 [B, K, T]
    done_ptr,  # int32 [B, R], zeros before and after
    sizes,  # B, V, T
    num_rows,
    num_slots,
    K: tl.constexpr,
    MODE: tl.constexpr,
    STRIDES: tl.constexpr,
    ADDRESS: tl.constexpr,
    SHAPE: tl.constexpr,
    HAS_PDL: tl.constexpr,
):
    R: tl.constexpr = K + 1
    TILES: tl.constexpr = SHAPE[0]
    num_requests, vocab_size, num_tiles = sizes
    num_chunks = (num_tiles + TILES * SHAPE[3] - 1) // (TILES * SHAPE[3])
    chunk = tl.program_id(0) % num_chunks
    b = ((tl.program_id(0) // num_chunks) % num_requests).to(tl.int64)
    r = K - 1 - (tl.program_id(0) // num_chunks // num_requests).to(tl.int64)
    limits = (num_rows, num_slots, num_requests)
    first, n, _ = request_span(drafts, limits, b, K, SHAPE[2], MODE)
    c, draft_c, is_matched = scales(temperatures, drafts, b, STRIDES, MODE[2])
    wait_for_previous(HAS_PDL)
    # `emit` reads what rows came to as soon as it starts
    let_next_start(HAS_PDL)
    place = b * R + r
    stop, state = tl.load(path[0] + b), tl.load(path[1] + b)
    rho = tl.load(path[2] + place)
    is_needless = is_outlived(tests, b, r)
    # a whole path has no residual: its test is already made
    if is_matched | (r > stop) | (r >= n) | (state >= ERROR):
        return
    if is_needless == 0:
        p_row, q_row, q_place = row_places(target, draft, first, b, r)
        masked_id = masked_token(drafts, first, r, n, vocab_size, MODE[4])[2]
        laws = request_laws(p_stats, q_stats, place, q_place, num_tiles, c, draft_c, True)
        tiles_of_row = (b * K + r) * num_tiles
        exponents, sums = residual[0] + tiles_of_row, residual[1] + tiles_of_row
        units = tl.full([], 0, tl.int64)
        for i in range(SHAPE[3]):
            part = chunk * SHAPE[3] + i
            units += store_residual(
                (p_row, q_row),
                laws,
                rho,
                part,
                (num_tiles, vocab_size, masked_id),
                (exponents, sums),
                TILES,
                True,
                MODE[0],
            )
        tl.atomic_add(tests[2] + place, units, sem="relaxed")
    if is_last(done_ptr + place, num_chunks):
        all_units = tl.atomic_xchg(tests[2] + place, 0)
        # the empty prefix stands untested
        if (r > 0) & (is_outlived(tests, b, r) == 0):
            mass = all_units.to(tl.float64) * _ULP_OF_ONE
            u = accept_number(request_fields(at, b, STRIDES), r - 1, ADDRESS)
            is_passed, margin = prefix_test(mass, mass + (1.0 - rho), u)
            store_test(tests, place, b, r, is_passed, margin)


@triton.jit
def block_end(path, tests, b, n, K: tl.constexpr, ROWS: tl.constexpr):
    """Where the walk ends, the state to go on with, rho there, the stop, and tests' margins."""
    R: tl.constexpr = K + 1
    stop, state = tl.load(path[0] + b), tl.load(path[1] + b)
    row = tl.arange(0, ROWS)
    is_row = (row <= stop) & (row > 0)
    test = tl.load(tests[0] + b * R + row, mask=is_row, other=0)
    margin = tl.load(tests[1] + b * R + row, mask=is_row, other=_INF)
    end = tl.max(tl.where(test == PASSED, row, 0), 0).to(tl.int64)
    passed_margin = tl.min(tl.where(row == end, margin, _INF), 0)
    failed_margin = tl.min(tl.where((row > end) & (test == FAILED), margin, _INF), 0)
    is_error = state >= ERROR
    end = tl.where(is_error, 0, end)
    state = tl.where((is_error == 0) & (end < n), REJECTED, state)
    rho = tl.load(path[2] + b * R + end)
    return end, state, rho, stop.to(tl.int64), passed_margin, failed_margin


@triton.jit
def request_end(found, path, tests, b, n, is_block, K: tl.constexpr, ROWS: tl.constexpr):
    """Where a request's walk ends under either rule, as `block_end` says it."""
    R: tl.constexpr = K + 1
    row = tl.arange(0, ROWS)
    # both are asked for at once: one trip to memory
    states = tl.load(found[0] + b * R + row, mask=row < R, other=0, cache_modifier=".cg")
    end = (ROWS - tl.load(found[6] + b, cache_modifier=".cg")).to(tl.int64)
    state = tl.sum(tl.where(row == end, states, 0), 0)
    rho = tl.full([], 1.0, tl.float64)
    passed_margin, failed_margin = rho * _INF, rho * _INF
    stop = end
    if is_block:
        end, state, rho, stop, passed_margin, failed_margin = block_end(path, tests, b, n, K, ROWS)
    return end, state, rho, stop, passed_margin, failed_margin
