"""First kernels of `ops.verify_chain` where rows are few: each does one thing, and waits for it.

What `chain.py` does between fences, and saves rows by, takes longer than a launch under
programmatic dependent launch where rows are few: whatever does not come from the kernel before is
asked for while that one still runs.
Axes: B requests, K drafts, R = K + 1 rows, V vocabulary, T tiles.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.ops.triton.chain import decide, row_inputs
from fairdraft.ops.triton.path import clear_tests, store_path
from fairdraft.ops.triton.reading import (
    let_next_start,
    load_tiles,
    store_stats,
    wait_for_previous,
    without,
)
from fairdraft.ops.triton.request import (
    accept_number,
    masked_token,
    request_fields,
    request_span,
    row_places,
    scales,
)


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
def read_kernel(
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
    num_chunks = (num_tiles + TILES - 1) // TILES
    chunk = tl.program_id(0) % num_chunks
    b = ((tl.program_id(0) // num_chunks) % num_requests).to(tl.int64)
    r = (tl.program_id(0) // num_chunks // num_requests).to(tl.int64)
    wait_for_previous(HAS_PDL)
    let_next_start(HAS_PDL)
    limits = (num_rows, num_slots, num_requests)
    first, n, _ = request_span(drafts, limits, b, K, SHAPE[2], MODE)
    c, draft_c, is_matched = scales(temperatures, drafts, b, STRIDES, MODE[2])
    masked_id = masked_token(drafts, first, r, n, vocab_size, MODE[4])[2]
    p_row, q_row, q_place = row_places(target, draft, first, b, r)
    # with the rest, whether or not it turns out to be wanted; rows of flat calls may not exist
    readable = tl.where(r <= n, vocab_size, 0) if MODE[5] else vocab_size
    x = load_tiles(p_row, readable, chunk, TILES)
    if r > n:
        return
    if MODE[4]:
        # a forbidden draft has p = 0
        x = without(x, chunk, masked_id, TILES)
    place = b * R + r
    p_tiles = (p_stats[0] + place * num_tiles, p_stats[1] + place * num_tiles)
    store_stats(x, chunk, num_tiles, tl.where(c > 0.0, c, 1.0), p_tiles, MODE[0], TILES)
    if MODE[2] and not MODE[3]:
        if (r < n) & (is_matched == 0):
            q_tiles = (q_stats[0] + q_place * num_tiles, q_stats[1] + q_place * num_tiles)
            y = load_tiles(q_row, vocab_size, chunk, TILES)
            q_scale = tl.where(draft_c > 0.0, draft_c, 1.0)
            store_stats(y, chunk, num_tiles, q_scale, q_tiles, MODE[0], TILES)


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
def decide_kernel(
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
    num_requests, vocab_size, num_tiles = sizes
    b = (tl.program_id(0) % num_requests).to(tl.int64)
    r = (tl.program_id(0) // num_requests).to(tl.int64)
    let_next_start(HAS_PDL)
    limits = (num_rows, num_slots, num_requests)
    first, n, is_possible = request_span(drafts, limits, b, K, SHAPE[2], MODE)
    p_row, q_row, q_place = row_places(target, draft, first, b, r)
    place = b * (K + 1) + r
    p_tiles = (p_stats[0] + place * num_tiles, p_stats[1] + place * num_tiles)
    q_tiles = (q_stats[0] + q_place * num_tiles, q_stats[1] + q_place * num_tiles)
    rows = (p_row, q_row, p_tiles, q_tiles)
    places = (p_stats, q_stats, q_place, place)
    index = (b, r, n, first, is_possible, vocab_size, num_tiles)
    fields = request_fields(at, b, STRIDES)
    inputs = (temperatures, drafts)
    asked = row_inputs(rows, places, inputs, fields, index, MODE, STRIDES, ADDRESS)
    u = accept_number(fields, r, ADDRESS)
    wait_for_previous(HAS_PDL)
    if r <= n:
        decide(rows, places, asked, u, found, index, MODE, SHAPE)


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
def path_kernel(
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
    """The path of a request of rule `block`, and the test of a whole one."""
    b = tl.program_id(0).to(tl.int64)
    let_next_start(HAS_PDL)
    n = request_span(drafts, (num_rows, num_slots, sizes[0]), b, K, SHAPE[2], MODE)[1]
    wait_for_previous(HAS_PDL)
    clear_tests(tests, b, True, K, SHAPE[2])
    # tests are stored by other threads than cleared them
    tl.debug_barrier()
    store_path(found, path, tests, request_fields(at, b, STRIDES), b, n, K, ADDRESS, SHAPE[2])
