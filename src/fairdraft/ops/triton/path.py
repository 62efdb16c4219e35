"""Rule `block` inside Triton kernels: a path's rho and the tests of its prefixes.

Axes: B requests, K drafts, R = K + 1 rows.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.ops.triton.request import ACCEPTED, ERROR, accept_number, last_known

#: what became of a prefix's test
PASSED, FAILED = tl.constexpr(1), tl.constexpr(2)
_INF = tl.constexpr(float("inf"))


@triton.jit
def next_rho(rho, p_x, q_x):
    """Twin of `rules.path_ratio`."""
    is_positive = (p_x > 0.0) & (q_x > 0.0)
    ratio = tl.where(rho * p_x >= q_x, 1.0, rho * p_x / tl.where(is_positive, q_x, 1.0))
    return tl.where(is_positive, ratio, 0.0)


@triton.jit
def clear_tests(tests, b, is_first, K: tl.constexpr, ROWS: tl.constexpr):
    """Notes that no prefix of a request is tested yet, in its first program."""
    row = tl.arange(0, ROWS)
    tl.store(tests[0] + b * (K + 1) + row, 0, mask=row < tl.where(is_first, K + 1, 0))


@triton.jit
def store_path(found, path, tests, fields, b, n, K: tl.constexpr, ADDRESS: tl.constexpr):
    """Stores rho of every prefix that can stand, the longest one, and the test of a whole path.

    `path` is stop and state int32 [B] and rho float64 [B, R]: the longest prefix to test, and what
    the row after it came to.
    """
    R: tl.constexpr = K + 1
    rho = tl.full([], 1.0, tl.float64)
    stop = n
    tl.store(path[2] + b * R, rho)
    for i in tl.static_range(K):
        at_row = b * R + i
        is_open = i < stop
        state = tl.load(found[0] + at_row, mask=is_open, other=0, cache_modifier=".cg")
        is_read = is_open & (state == ACCEPTED)
        p_x = tl.load(found[4] + at_row, mask=is_read, other=0.0, cache_modifier=".cg")
        q_x = tl.load(found[5] + at_row, mask=is_read, other=0.0, cache_modifier=".cg")
        following = next_rho(rho, p_x, q_x)
        ends = is_open & ((state != ACCEPTED) | (following == 0.0))
        stop = tl.where(ends, i, stop)
        rho = tl.where(is_open & (ends == 0), following, rho)
        tl.store(path[2] + at_row + 1, rho)
    last_state = tl.load(found[0] + b * R + stop, cache_modifier=".cg")
    tl.store(path[0] + b, stop.to(tl.int32))
    tl.store(path[1] + b, last_state)
    row = b * R + n
    if (stop == n) & (n > 0) & (last_state < ERROR):
        one = tl.full([], 1.0, tl.float64)
        u = accept_number(fields, n - 1, ADDRESS)
        is_passed, margin = prefix_test(rho, one, u)
        store_test(tests, row, b, n, is_passed, margin)


@triton.jit
def store_test(tests, place, b, r, is_passed, margin):
    """Stores the test of a prefix of r drafts, and lets shorter ones know."""
    tl.store(tests[1] + place, margin)
    tl.store(tests[0] + place, tl.where(is_passed, PASSED, FAILED))
    tl.atomic_max(tests[3] + b, tl.where(is_passed, r, 0).to(tl.int32), sem="relaxed")


@triton.jit
def prefix_test(favorable, total, u):
    """Twin of `rules.stands`, and the test's margin either way."""
    is_passed = (favorable >= total) | (u * total < favorable)
    passed = favorable / tl.where(total > 0.0, u * total, 1.0) - 1.0
    passed = tl.where(total > 0.0, passed, _INF)
    failed = u * total / tl.where(favorable > 0.0, favorable, 1.0) - 1.0
    return is_passed, tl.where(is_passed, passed, tl.where(favorable > 0.0, failed, _INF))


@triton.jit
def is_outlived(tests, b, r):
    """Whether the test of a prefix of more than r drafts is known to have passed."""
    return last_known(tests[3] + b) > r
