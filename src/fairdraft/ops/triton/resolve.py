"""Kernel of rule `token` that computes the residual of each request that ends in a rejection.

Axes: B requests, K drafts, R = K + 1 rows, V vocabulary, T tiles.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.ops.triton.block import request_end
from fairdraft.ops.triton.law import request_laws, store_residual
from fairdraft.ops.triton.reading import let_next_start, wait_for_previous
from fairdraft.ops.triton.request import (
    REJECTED,
    masked_token,
    request_span,
    row_places,
    scales,
)


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
def resolve_kernel(
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
    residual,  # exponent int32 [B, T], tile_sum float32 [B, T]
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
    TILES: tl.constexpr = SHAPE[0]
    vocab_size, num_tiles = sizes[1], sizes[2]
    num_chunks = (num_tiles + TILES * SHAPE[3] - 1) // (TILES * SHAPE[3])
    b = (tl.program_id(0) // num_chunks).to(tl.int64)
    chunk = tl.program_id(0) % num_chunks
    limits = (num_rows, num_slots, sizes[0])
    first, n, _ = request_span(drafts, limits, b, K, SHAPE[2], MODE)
    c, draft_c, _ = scales(temperatures, drafts, b, STRIDES, MODE[2])
    wait_for_previous(HAS_PDL)
    # `emit` reads what rows came to as soon as it starts
    let_next_start(HAS_PDL)
    walk = request_end(found, path, tests, b, n, False, K, SHAPE[2])
    end = walk[0]
    if walk[1] != REJECTED:
        return
    p_row, q_row, q_place = row_places(target, draft, first, b, end)
    masked_id = masked_token(drafts, first, end, n, vocab_size, MODE[4])[2]
    place = b * (K + 1) + end
    laws = request_laws(p_stats, q_stats, place, q_place, num_tiles, c, draft_c, True)
    exponents, sums = residual[0] + b * num_tiles, residual[1] + b * num_tiles
    for i in range(SHAPE[3]):
        part = chunk * SHAPE[3] + i
        store_residual(
            (p_row, q_row),
            laws,
            walk[2],
            part,
            (num_tiles, vocab_size, masked_id),
            (exponents, sums),
            TILES,
            False,
            MODE[0],
        )
