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
def store_path(
    found, path, tests, fields, b, n, K: tl.constexpr, ADDRESS: tl.constexpr, ROWS: tl.constexpr
):
    """Stores rho of every prefix that can stand, the longest one, and the test of a whole path.

    `path` is stop and state int32 [B] and rho float64 [B, R]: the longest prefix to test, and what
    the row after it came to.
    """
    row = tl.arange(0, ROWS)
    at, is_draft = b * (K + 1) + row, row < n
    # all at once: one trip to memory
    state = tl.load(found[0] + at, mask=row <= n, other=0, cache_modifier=".cg")
    p_x = tl.load(found[4] + at, mask=is_draft, other=0.0, cache_modifier=".cg")
    q_x = tl.load(found[5] + at, mask=is_draft, other=0.0, cache_modifier=".cg")
    rhos, stop = path_of(state, p_x, q_x, n, K, ROWS)
    last_state = tl.sum(tl.where(row == stop, state, 0), 0)
    tl.store(path[0] + b, stop.to(tl.int32))
    tl.store(path[1] + b, last_state)
    tl.store(path[2] + at, rhos, mask=row <= n)
    if (stop == n) & (n > 0) & (last_state < ERROR):
        one = tl.full([], 1.0, tl.float64)
        u = accept_number(fields, n - 1, ADDRESS)
        is_passed, margin = prefix_test(tl.sum(tl.where(row == n, rhos, 0.0), 0), one, u)
        store_test(tests, b * (K + 1) + n, b, n, is_passed, margin)


@triton.jit
def path_of(state, p_x, q_x, n, K: tl.constexpr, ROWS: tl.constexpr):
    """Rho of every prefix that can stand, from what rows came to and P of drafts, all [ROWS].

    Also returns how many drafts the longest has.
    """
    row = tl.arange(0, ROWS)
    rho, stop = tl.full([], 1.0, tl.float64), n
    rhos = tl.where(row == 0, 1.0, tl.zeros([ROWS], tl.float64))
    for i in tl.static_range(K):
        is_open = i < stop
        is_read = is_open & (tl.sum(tl.where(row == i, state, 0), 0) == ACCEPTED)
        p = tl.sum(tl.where((row == i) & is_read, p_x, 0.0), 0)
        q = tl.sum(tl.where((row == i) & is_read, q_x, 0.0), 0)
        following = next_rho(rho, p, q)
        ends = is_open & ((is_read == 0) | (following == 0.0))
        stop = tl.where(ends, i, stop)
        rho = tl.where(is_open & (ends == 0), following, rho)
        rhos = tl.where(row == i + 1, rho, rhos)
    return rhos, stop


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
