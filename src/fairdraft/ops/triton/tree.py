"""Step kernel of `ops.verify_tree`: one pass over rows for every request, whatever it needs next.

A walk alternates between two kinds of pass, and is told by its state which is next. The first reads
the row of p of the node that it stands on, and tests the eldest child. After a rejection comes the
second: the row of p and those of q of the children rejected so far give the mass that is left,
which tests the next child, or the tiles of what replaces them all. So a child that stands costs the
walk the row of p below it and a few points; q is read where a child was rejected, or without
statistics where it is tested. The last program of a request decides, and another step's programs
read what it wrote: nobody reads it in the same kernel. Axes: B requests, N nodes, D depth, V
vocabulary, T tiles.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.ops.triton.law import residual_tiles, residual_units
from fairdraft.ops.triton.reading import (
    is_last,
    let_next_start,
    load_tiles,
    store_stats,
    wait_for_previous,
)
from fairdraft.ops.triton.request import ACCEPTED, scales
from fairdraft.ops.triton.siblings import (
    draft_row_of,
    load_node_tiles,
    next_child,
    node_law,
    request_tree,
    rest_of,
)
from fairdraft.ops.triton.tree_decide import decide

_INF = tl.constexpr(float("inf"))


@triton.jit(do_not_specialize=["step"])
def tree_kernel(
    target,  # logits, strides of a request and of a row
    draft,  # logits, strides of a request and of a node
    temperatures,  # of target and draft, [B] or [1]
    drafts,  # token_ids [B, N], num_drafts, point_mass [B], forbidden [B, N], parents [B, N] or [N]
    at,  # key, anchor, sample: int64 [B] or [1]
    p_stats,  # of the node that the walk stands on: tile_max, tile_sum [B, T], row_max, row_sum [B]
    q_stats,  # tile_max, tile_sum [B, N, T], row_max, row_sum [B, N]
    walk,  # state, node, depth, last, token, broken int32, lead, margin float64, units int64 [B]
    masses_ptr,  # float64 [B, N], what was left of p after a child was rejected
    residual,  # exponent int32 [B, T], tile_sum float32 [B, T]
    out,  # token_ids, margin, path, first_child [B, D + 1], and what `tree_emit.py` fills in
    done_ptr,  # int32 [B], zeros before and after
    sizes,  # B, V, T, D + 1
    step,
    N: tl.constexpr,
    # fast, False, draft, draft statistics, forbidden
    MODE: tl.constexpr,
    STRIDES: tl.constexpr,  # key, anchor, sample, temperatures of both, point_mass, parents
    ADDRESS: tl.constexpr,
    SHAPE: tl.constexpr,  # tiles a program, most tiles, most nodes, tiles of a residual at once
    HAS_PDL: tl.constexpr,
):
    TILES: tl.constexpr = SHAPE[0]
    vocab_size, num_tiles, width = sizes[1], sizes[2], sizes[3]
    num_chunks = (num_tiles + TILES - 1) // TILES
    b = (tl.program_id(0) // num_chunks).to(tl.int64)
    chunk = tl.program_id(0) % num_chunks
    wait_for_previous(HAS_PDL)
    let_next_start(HAS_PDL)
    state, node, depth, last, broken, lead = walk_of(walk, b, step)
    if state != ACCEPTED:
        return
    c, draft_c, is_matched = scales(temperatures, drafts, b, STRIDES, MODE[2])
    tree, is_possible = request_tree(drafts, b, vocab_size, N, SHAPE[2], STRIDES[6], MODE[4])
    following = next_child(tree, node, last)
    p_row = target[0] + b * target[1] + node.to(tl.int64) * target[2]
    scale = (c, draft_c, is_matched, is_possible)
    index = (b, node, last, vocab_size, num_tiles, N)
    if last == 0:
        row_pass(p_row, draft, p_stats, q_stats, scale, tree, following, index, chunk, MODE, SHAPE)
    elif MODE[2]:
        rest_pass(
            (p_row, draft, masses_ptr),
            (p_stats, q_stats),
            scale,
            tree,
            following,
            index,
            chunk,
            residual,
            walk[8],
            MODE,
            SHAPE,
        )
    if is_last(done_ptr + b, num_chunks):
        decide(
            (p_row, draft, masses_ptr),
            (p_stats, q_stats),
            scale,
            (tree, following, depth, broken, lead, width),
            index,
            (at, walk, out),
            MODE,
            STRIDES,
            ADDRESS,
            SHAPE,
        )


@triton.jit
def walk_of(walk, b, step):
    """Where a walk is: state, node, depth, child rejected last, broken drafts, least margin."""
    is_first = step == 0
    # all of this was written by the kernel before, none of it by this one's other programs
    return (
        tl.where(is_first, ACCEPTED, tl.load(walk[0] + b)),
        tl.where(is_first, 0, tl.load(walk[1] + b)),
        tl.where(is_first, 0, tl.load(walk[2] + b)),
        tl.where(is_first, 0, tl.load(walk[3] + b)),
        tl.where(is_first, 0, tl.load(walk[5] + b)),
        tl.where(is_first, _INF, tl.load(walk[6] + b)),
    )


@triton.jit
def tested_law(draft, q_stats, scale, following, index):
    """Row, size, c and tiles of the law of the child that this step tests; no size if none."""
    b, _, _, vocab_size, num_tiles, N = index
    _, draft_c, is_matched, _ = scale
    c = tl.maximum(following, 1)
    place = b * N + c - 1
    return (
        draft_row_of(draft, b, c),
        tl.where((following > 0) & (is_matched == 0), vocab_size, 0),
        tl.where(draft_c > 0.0, draft_c, 1.0),
        (q_stats[0] + place * num_tiles, q_stats[1] + place * num_tiles),
    )


@triton.jit
def row_pass(
    p_row,
    draft,
    p_stats,
    q_stats,
    scale,
    tree,
    following,
    index,
    chunk,
    MODE: tl.constexpr,
    SHAPE: tl.constexpr,
):
    """Statistics of the row of p of a node, and of the row of q of its eldest child if needed."""
    TILES: tl.constexpr = SHAPE[0]
    b, node, _, vocab_size, num_tiles, _ = index
    c = scale[0]
    p_tiles = (p_stats[0] + b * num_tiles, p_stats[1] + b * num_tiles)
    x = load_node_tiles(p_row, vocab_size, chunk, tree, node, MODE[4], TILES)
    if MODE[2] and not MODE[3]:
        q_row, q_size, q_scale, q_tiles = tested_law(draft, q_stats, scale, following, index)
        # asked for before anything is computed
        y = load_tiles(q_row, q_size, chunk, TILES)
        if q_size > 0:
            store_stats(y, chunk, num_tiles, q_scale, q_tiles, MODE[0], TILES)
    store_stats(x, chunk, num_tiles, tl.where(c > 0.0, c, 1.0), p_tiles, MODE[0], TILES)


@triton.jit
def rest_pass(
    rows,
    stats,
    scale,
    tree,
    following,
    index,
    chunk,
    residual,
    units_ptr,
    MODE: tl.constexpr,
    SHAPE: tl.constexpr,
):
    """What rejected children leave of p, its mass, and statistics of the next child if needed."""
    AT_ONCE: tl.constexpr = SHAPE[3]
    p_row, draft, masses_ptr = rows
    p_stats, q_stats = stats
    b, _, _, vocab_size, num_tiles, _ = index
    laws = (node_law(p_stats, b, num_tiles, scale[0]), q_stats, scale[1])
    units = tl.full([], 0, tl.int64)
    for i in range(SHAPE[0] // AT_ONCE):
        part = chunk * (SHAPE[0] // AT_ONCE) + i
        rest, is_gone = rest_of(
            p_row, draft, laws, masses_ptr, tree, index, part, AT_ONCE, MODE[0], MODE[4]
        )
        units += store_rest(rest, residual, b, part, num_tiles, MODE[0], AT_ONCE)
        if MODE[2] and not MODE[3]:
            q_row, q_size, q_scale, q_tiles = tested_law(draft, q_stats, scale, following, index)
            if q_size > 0:
                y = tl.where(is_gone, -_INF, load_tiles(q_row, q_size, part, AT_ONCE))
                store_stats(y, part, num_tiles, q_scale, q_tiles, MODE[0], AT_ONCE)
    tl.atomic_add(units_ptr + b, units, sem="relaxed")


@triton.jit
def store_rest(rest, residual, b, part, num_tiles, IS_FAST: tl.constexpr, TILES: tl.constexpr):
    """Stores the tiles of what is left of p; returns their mass in units of 2^-52."""
    exponent, tile_sum = residual_tiles(rest)
    tile = part * TILES + tl.arange(0, TILES)
    tl.store(residual[0] + b * num_tiles + tile, exponent, mask=tile < num_tiles)
    tl.store(residual[1] + b * num_tiles + tile, tile_sum, mask=tile < num_tiles)
    return residual_units(rest, exponent, tile_sum, IS_FAST)
