"""Rule `block` inside Triton kernels: a path's rho, and the mass that tests a prefix.

The mass kernel goes from the longest prefix down and reads nothing once a longer one stands. Masses
are sums of integers, so they are exact and free of order. Axes: B requests, K drafts, R = K + 1
rows, V vocabulary, T tiles.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.ops.triton.chain import (
    ACCEPTED,
    ERROR,
    PENDING,
    REJECTED,
    accept_number,
    masked_token,
    request_span,
    row_places,
    scales,
)
from fairdraft.ops.triton.law import mass_units, request_laws, residual_of
from fairdraft.ops.triton.reading import is_last, let_next_start, wait_for_previous

#: what became of a prefix's test
PASSED, FAILED = tl.constexpr(1), tl.constexpr(2)
_INF = tl.constexpr(float("inf"))
_ULP_OF_ONE = tl.constexpr(2.0**-52)


@triton.jit
def next_rho(rho, p_x, q_x):
    """Twin of `rules.path_ratio`."""
    is_positive = (p_x > 0.0) & (q_x > 0.0)
    ratio = tl.where(rho * p_x >= q_x, 1.0, rho * p_x / tl.where(is_positive, q_x, 1.0))
    return tl.where(is_positive, ratio, 0.0)


@triton.jit
def read_path(found, b, n, K: tl.constexpr):
    """The longest prefix to test, the state of the row after it, and its rho."""
    R: tl.constexpr = K + 1
    rho = tl.full([], 1.0, tl.float64)
    stop = n
    for i in tl.static_range(K):
        at = b * R + i
        is_open = i < stop
        state = tl.load(found[0] + at, mask=is_open, other=0, cache_modifier=".cg")
        is_read = is_open & (state == ACCEPTED)
        p_x = tl.load(found[4] + at, mask=is_read, other=0.0, cache_modifier=".cg")
        q_x = tl.load(found[5] + at, mask=is_read, other=0.0, cache_modifier=".cg")
        following = next_rho(rho, p_x, q_x)
        ends = is_open & ((state != ACCEPTED) | (following == 0.0))
        stop = tl.where(ends, i, stop)
        rho = tl.where(is_open & (ends == 0), following, rho)
    state = tl.load(found[0] + b * R + stop, cache_modifier=".cg")
    return stop, state, rho


@triton.jit
def rho_at(found, b, r, K: tl.constexpr):
    """rho of the prefix of r drafts, all of which can stand."""
    rho = tl.full([], 1.0, tl.float64)
    for i in tl.static_range(K):
        at = b * (K + 1) + i
        p_x = tl.load(found[4] + at, mask=i < r, other=0.0, cache_modifier=".cg")
        q_x = tl.load(found[5] + at, mask=i < r, other=0.0, cache_modifier=".cg")
        rho = tl.where(i < r, next_rho(rho, p_x, q_x), rho)
    return rho


@triton.jit
def prefix_test(favorable, total, u):
    """Twin of `rules.stands`, and the test's margin either way."""
    is_passed = (favorable >= total) | (u * total < favorable)
    passed = favorable / tl.where(total > 0.0, u * total, 1.0) - 1.0
    passed = tl.where(total > 0.0, passed, _INF)
    failed = u * total / tl.where(favorable > 0.0, favorable, 1.0) - 1.0
    return is_passed, tl.where(is_passed, passed, tl.where(favorable > 0.0, failed, _INF))


@triton.jit
def longest_passed(tests, b, r, R: tl.constexpr, ROWS: tl.constexpr):
    """The longest prefix of more than r drafts whose test is known to have passed, or -1."""
    row = tl.arange(0, ROWS)
    state = tl.load(
        tests[0] + b * R + row, mask=(row > r) & (row < R), other=0, cache_modifier=".cv"
    )
    return tl.max(tl.where(state == PASSED, row, -1), 0)


@triton.jit
def mass_kernel(
    target,  # as in `chain_kernel`
    draft,
    temperatures,
    drafts,
    at,
    p_stats,
    q_stats,
    found,
    tests,  # state int32 [B, R], margin float64 [B, R], units int64 [B, R]; the units are zeros
    done_ptr,  # int32 [B, R], zeros before and after
    sizes,  # B, V, T
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
    num_chunks = (num_tiles + TILES - 1) // TILES
    chunk = tl.program_id(0) % num_chunks
    b = ((tl.program_id(0) // num_chunks) % num_requests).to(tl.int64)
    r = K - (tl.program_id(0) // num_chunks // num_requests).to(tl.int64)
    wait_for_previous(HAS_PDL)
    let_next_start(HAS_PDL)
    first, n = request_span(drafts, b, K, MODE[0])
    c, draft_c, is_matched = scales(temperatures, drafts, b, STRIDES, MODE[3])
    if is_matched:
        return
    stop, state, rho = read_path(found, b, n, K)
    if (r > stop) | (state >= ERROR):
        return
    place = b * R + r
    if r == n:
        # the whole path has no residual, so its first program tests it
        if chunk == 0:
            one = tl.full([], 1.0, tl.float64)
            whole, lead = prefix_test(rho, one, accept_number(at, b, r - 1, STRIDES, ADDRESS))
            tl.store(tests[1] + place, lead)
            tl.store(tests[0] + place, tl.where(whole, PASSED, FAILED))
        return
    if longest_passed(tests, b, r, R, SHAPE[2]) < 0:
        p_row, q_row, q_place = row_places(target, draft, first, b, r, K, MODE[0])
        _, _, masked_id = masked_token(drafts, first, r, n, vocab_size, MODE[5])
        laws = request_laws(p_stats, q_stats, place, q_place, num_tiles, c, draft_c)
        rho = rho_at(found, b, r, K)
        values = residual_of(
            (p_row, q_row), laws, rho, chunk, num_tiles, vocab_size, masked_id, TILES
        )
        tl.atomic_add(tests[2] + place, tl.sum(tl.sum(mass_units(values), 1), 0), sem="relaxed")
    if is_last(done_ptr + place, num_chunks):
        units = tl.atomic_xchg(tests[2] + place, 0)
        if longest_passed(tests, b, r, R, SHAPE[2]) < 0:
            mass = units.to(tl.float64) * _ULP_OF_ONE
            total = mass + (1.0 - rho_at(found, b, r, K))
            u = accept_number(at, b, r - 1, STRIDES, ADDRESS)
            is_passed, margin = prefix_test(mass, total, u)
            tl.store(tests[1] + place, margin)
            tl.store(tests[0] + place, tl.where(is_passed, PASSED, FAILED))


@triton.jit
def block_end(found, tests, b, n, K: tl.constexpr, ROWS: tl.constexpr):
    """Where the walk ends, the state to go on with, rho there, and the margins of tests."""
    R: tl.constexpr = K + 1
    stop, state, _ = read_path(found, b, n, K)
    row = tl.arange(0, ROWS)
    is_row = (row <= stop) & (row > 0)
    test = tl.load(tests[0] + b * R + row, mask=is_row, other=0, cache_modifier=".cg")
    margin = tl.load(tests[1] + b * R + row, mask=is_row, other=_INF, cache_modifier=".cg")
    end = tl.max(tl.where(test == PASSED, row, 0), 0).to(tl.int64)
    passed_margin = tl.min(tl.where(row == end, margin, _INF), 0)
    failed_margin = tl.min(tl.where((row > end) & (test == FAILED), margin, _INF), 0)
    is_error = state >= ERROR
    end = tl.where(is_error, 0, end)
    # a program that comes after the request was emitted sees its rows pending
    is_open = (state != PENDING) & (is_error == 0) & (end < n)
    state = tl.where(is_open, REJECTED, state)
    return end, state, rho_at(found, b, end, K), passed_margin, failed_margin
