"""Last kernel of `ops.verify_tree`: what each request emits, by one program a request.

Axes: B requests, N nodes, D depth, V vocabulary, T tiles.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.noise.device import TILE_LEVEL, exponentials
from fairdraft.ops.triton.arithmetic import exp2_weight
from fairdraft.ops.triton.emit import residual_tile, residual_token
from fairdraft.ops.triton.race import first as first_of
from fairdraft.ops.triton.race import race_loaded
from fairdraft.ops.triton.reading import let_next_start, load_stats, wait_for_previous
from fairdraft.ops.triton.request import (
    ERROR,
    REJECTED,
    last_stream,
    request_fields,
    scales,
    token_address,
)
from fairdraft.ops.triton.siblings import (
    load_node_tiles,
    next_child,
    node_law,
    request_tree,
    rest_of,
)


@triton.jit
def tree_emit_kernel(
    target,  # as in `tree_kernel`
    draft,
    temperatures,
    drafts,
    at,
    p_stats,
    q_stats,
    walk,
    masses_ptr,
    residual,
    # token_ids, margin, path, first_child [B, D + 1]; accepted, emitted, last_stream, error, broken
    out,
    sizes,
    N: tl.constexpr,
    MODE: tl.constexpr,
    STRIDES: tl.constexpr,
    ADDRESS: tl.constexpr,
    SHAPE: tl.constexpr,  # nothing, most tiles, most nodes, most columns
    HAS_PDL: tl.constexpr,
):
    vocab_size, num_tiles, width = sizes[1], sizes[2], sizes[3]
    b = tl.program_id(0).to(tl.int64)
    wait_for_previous(HAS_PDL)
    let_next_start(HAS_PDL)
    state, node, end = tl.load(walk[0] + b), tl.load(walk[1] + b), tl.load(walk[2] + b)
    last, token, broken = tl.load(walk[3] + b), tl.load(walk[4] + b), tl.load(walk[5] + b)
    margin = tl.load(walk[7] + b)
    tree = request_tree(drafts, b, vocab_size, N, SHAPE[2], STRIDES[6], MODE[4])[0]
    eldest = next_child(tree, node, 0)
    has_child = eldest > 0
    stream = last_stream(has_child, has_child | (node > 0))
    if MODE[2]:
        if state == REJECTED:
            c, draft_c, is_matched = scales(temperatures, drafts, b, STRIDES, True)
            laws = (node_law(p_stats, b, num_tiles, c), q_stats, draft_c)
            p_row = target[0] + b * target[1] + node.to(tl.int64) * target[2]
            token, drawn_margin = tree_replacement(
                p_row,
                draft,
                laws,
                (residual[0] + b * num_tiles, residual[1] + b * num_tiles),
                p_stats[1] + b * num_tiles,
                masses_ptr,
                tree,
                (b, node, last, vocab_size, num_tiles, N),
                token_address(request_fields(at, b, STRIDES), end, node, stream, ADDRESS),
                MODE,
                SHAPE[1],
            )
            margin = tl.minimum(tl.load(walk[6] + b), drawn_margin)
    error = tl.maximum(state - ERROR, 0)
    is_ok = error == 0
    column = tl.arange(0, SHAPE[3])
    # what stood is written already
    is_end, is_past = column == end, (column > end) & (column < width)
    row = b * width + column
    last_id = tl.where(is_ok & is_end, token, -1).to(tl.int64)
    tl.store(out[0] + row, last_id, mask=is_end | is_past)
    tl.store(out[1] + row, tl.where(is_ok & is_end, margin, 0.0), mask=is_end | is_past)
    tl.store(out[2] + row, tl.full([SHAPE[3]], -1, tl.int64), mask=is_past)
    tl.store(out[2] + b * width, tl.full([], 0, tl.int64))
    tl.store(out[3] + row, tl.where(is_end, eldest, 0).to(tl.int64), mask=is_end | is_past)
    tl.store(out[4] + b, end.to(tl.int64))
    tl.store(out[5] + b, (end + is_ok.to(tl.int32)).to(tl.int64))
    tl.store(out[6] + b, tl.where(is_ok, stream, 0))
    tl.store(out[7] + b, error.to(tl.int64))
    tl.store(out[8] + b, broken.to(tl.int64))


@triton.jit
def tree_replacement(
    p_row,
    draft,
    laws,
    residual,
    p_tile_sum,
    masses_ptr,
    tree,
    index,
    address,
    MODE: tl.constexpr,
    MAX_TILES: tl.constexpr,
):
    """Draws from what the children left of p, or from p where nothing is: token and margin."""
    node, vocab_size, num_tiles = index[1], index[3], index[4]
    key, counter = address[0], address[1]
    won, tile_margin, exponent, is_there = residual_tile(
        residual, num_tiles, key, counter, MAX_TILES
    )
    if is_there:
        rest = rest_of(p_row, draft, laws, masses_ptr, tree, index, won, 1, MODE[0], MODE[4])[0]
        token, margin = residual_token(rest, exponent, won, tile_margin, key, counter)
    else:
        p_tile_max, c, row_max = laws[0][0], laws[0][1], laws[0][2]
        top, total = load_stats(p_tile_max, p_tile_sum, num_tiles, MAX_TILES)
        times = exponentials(key, counter, 0, TILE_LEVEL, MAX_TILES)
        tile, tile_margin = first_of(times, total * exp2_weight(top - row_max, c))
        x = load_node_tiles(p_row, vocab_size, tile, tree, node, MODE[4], 1)
        token, margin = race_loaded(x, c, tile, key, counter)
        margin = tl.minimum(margin, tile_margin)
    return token, margin
