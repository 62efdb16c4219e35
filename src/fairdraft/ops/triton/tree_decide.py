"""What a step of `ops.verify_tree` comes to, once its pass is complete: one program a request.

Axes: B requests, N nodes, D depth, V vocabulary, T tiles.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.noise.device import TILE_LEVEL, exponentials
from fairdraft.ops.rows import RowError
from fairdraft.ops.triton.arithmetic import TILE, exp2_weight, row_total
from fairdraft.ops.triton.chain import draft_row
from fairdraft.ops.triton.law import probability
from fairdraft.ops.triton.race import call_error, greedy_loaded, race_loaded, row_error
from fairdraft.ops.triton.race import first as first_of
from fairdraft.ops.triton.reading import load_stats
from fairdraft.ops.triton.request import (
    ACCEPTED,
    DRAWN,
    ERROR,
    REJECTED,
    draft_test,
    last_stream,
    node_number,
    request_fields,
    token_address,
)
from fairdraft.ops.triton.siblings import (
    child_with,
    draft_row_of,
    is_elder,
    is_excluded,
    load_node_tiles,
    next_child,
    node_law,
    rest_at,
    token_of,
)

_DRAFT_ERROR = tl.constexpr(int(RowError.DRAFT))
_INF = tl.constexpr(float("inf"))
_ULP_OF_ONE = tl.constexpr(2.0**-52)


@triton.jit
def decide(
    rows,
    stats,
    scale,
    at_walk,
    index,
    memory,
    MODE: tl.constexpr,
    STRIDES: tl.constexpr,
    ADDRESS: tl.constexpr,
    SHAPE: tl.constexpr,
):
    """Decides one step of a walk whose pass is complete: down, to the next child, or the end."""
    p_row, draft, masses_ptr = rows
    p_stats, q_stats = stats
    c, draft_c, is_matched, is_possible = scale
    tree, following, depth, broken, lead, width = at_walk
    b, node, last, _, num_tiles, N = index
    at, walk, out = memory
    # the child that stands, or 0, and its token, or the one that was drawn
    child, token = tl.full([], 0, tl.int32), tl.full([], -1, tl.int32)
    margin, p_x = tl.full([], 0.0, tl.float64), tl.full([], 0.0, tl.float64)
    if last == 0:
        is_possible &= (following == 0) | (depth + 1 < width)
        address = (at, depth, is_possible)
        state, child, token, margin, p_x = decide_row(
            p_row, p_stats, scale, tree, following, address, index, MODE, STRIDES, ADDRESS, SHAPE
        )
    else:
        mass = tl.atomic_xchg(walk[8] + b, 0).to(tl.float64) * _ULP_OF_ONE
        tl.store(masses_ptr + b * N + last - 1, mass)
        has_next = (following > 0) & (mass > 0.0)
        state = tl.where(has_next, ACCEPTED, REJECTED)
        if has_next:
            laws = (node_law(p_stats, b, num_tiles, c), q_stats, draft_c)
            x = candidate_of(tree, following, index)[1]
            p_x = rest_at(p_row, draft, laws, masses_ptr, tree, index, x) / mass
    if MODE[2]:
        if (state == ACCEPTED) & (is_matched == 0):
            error, child, is_broken, test_margin = test_child(
                draft,
                q_stats,
                draft_c,
                tree,
                following,
                p_x,
                (at, depth),
                index,
                MODE,
                STRIDES,
                ADDRESS,
                SHAPE,
            )
            state = tl.where(error == 0, state, ERROR + error)
            token = candidate_of(tree, following, index)[0].to(tl.int32)
            last, broken = following, broken + is_broken
            lead = tl.minimum(lead, test_margin)
            margin = lead
    # nobody else asks for it once the walk went on
    eldest = next_child(tree, node, 0)
    here = (node, depth, last, broken, lead, width, eldest)
    go_on((state, child, token, margin), here, b, walk, out)


@triton.jit
def candidate_of(tree, c, index):
    """The id of node c, an id that may be read for it, and whether they are the same."""
    x = token_of(tree, c)
    is_id = (x >= 0) & (x < index[3])
    return x, tl.where(is_id, x, 0), is_id


@triton.jit
def decide_row(
    p_row,
    p_stats,
    scale,
    tree,
    following,
    address,
    index,
    MODE: tl.constexpr,
    STRIDES: tl.constexpr,
    ADDRESS: tl.constexpr,
    SHAPE: tl.constexpr,
):
    """Completes the law of a node: state, child, token and margin, and p of the eldest child.

    Without children, or by sample-and-match, the row's own token is drawn.
    """
    c, draft_c, is_matched, _ = scale
    at, depth, is_possible = address
    b, node, _, vocab_size, num_tiles, _ = index
    child, token = tl.full([], 0, tl.int32), tl.full([], -1, tl.int32)
    margin, p_x = tl.full([], 0.0, tl.float64), tl.full([], 0.0, tl.float64)
    tiles = (p_stats[0] + b * num_tiles, p_stats[1] + b * num_tiles)
    top, total = load_stats(tiles[0], tiles[1], num_tiles, SHAPE[1])
    error, row_max = row_error(top, total)
    stream = last_stream(following > 0, (following > 0) | (node > 0))
    fields = request_fields(at, b, STRIDES)
    key, counter, is_good = token_address(fields, depth, node, stream, ADDRESS)
    error = call_error(error, is_good, (c == c) & (draft_c == draft_c) & is_possible)
    weights = total * exp2_weight(top - row_max, c)
    row_sum = row_total(tl.where((error == 0) & (c > 0.0), weights, 0.0))
    tl.store(p_stats[2] + b, row_max)
    tl.store(p_stats[3] + b, row_sum)
    state = tl.where(error == 0, ACCEPTED, ERROR + error)
    if error == 0:
        if is_matched | (following == 0):
            tile = tl.argmax(top, 0)
            tile_margin = tl.full([], _INF, tl.float64)
            if c > 0.0:
                times = exponentials(key, counter, 0, TILE_LEVEL, SHAPE[1])
                tile, tile_margin = first_of(times, weights)
            x = load_node_tiles(p_row, vocab_size, tile, tree, node, MODE[4], 1)
            if c > 0.0:
                token, margin = race_loaded(x, c, tile, key, counter)
                margin = tl.minimum(margin, tile_margin)
            else:
                token, margin = greedy_loaded(x, tile, top)
            child = child_with(tree, node, token)
            state = tl.where(child > 0, ACCEPTED, DRAWN)
        else:
            x_d, place, is_id = candidate_of(tree, following, index)
            p_top = tl.load(tiles[0] + place // TILE, cache_modifier=".cg")
            p_x = probability(tl.load(p_row + place), p_top, c, row_max, row_sum)
    return state, child, token, margin, p_x


@triton.jit
def test_child(
    draft,
    q_stats,
    draft_c,
    tree,
    c,
    p_x,
    address,
    index,
    MODE: tl.constexpr,
    STRIDES: tl.constexpr,
    ADDRESS: tl.constexpr,
    SHAPE: tl.constexpr,
):
    """Tests child c with what its elders left of p at it: error, c or 0, whether q = 0, margin."""
    at, depth = address
    b, node, _, _, num_tiles, N = index
    place = b * N + c - 1
    q_tiles = (q_stats[0] + place * num_tiles, q_stats[1] + place * num_tiles)
    q_error, q_max, q_sum = draft_row(q_tiles, q_stats, place, draft_c, num_tiles, MODE, SHAPE)
    x_d, x, is_id = candidate_of(tree, c, index)
    top = tl.load(q_tiles[0] + x // TILE, cache_modifier=".cg")
    q_x = probability(tl.load(draft_row_of(draft, b, c) + x), top, draft_c, q_max, q_sum)
    q_x = tl.where(is_id & (is_elder(tree, node, c, x_d) == 0), q_x, 0.0)
    p_x = tl.where(is_excluded(tree, node, x_d), 0.0, p_x)
    u = node_number(request_fields(at, b, STRIDES), depth, c, ADDRESS)
    is_accepted, margin = draft_test(p_x, q_x, u)
    is_bad = q_error != 0
    is_broken = ((q_x == 0.0) & (is_bad == 0)).to(tl.int32)
    child = tl.where(is_accepted & (is_bad == 0), c, 0)
    return tl.where(is_bad, _DRAFT_ERROR, 0), child, is_broken, margin


@triton.jit
def go_on(found, at_walk, b, walk, out):
    """Writes where the walk is, and what it emits on its way down."""
    state, child, token, margin = found
    node, depth, last, broken, lead, width, eldest = at_walk
    is_down = child > 0
    column = b * width + depth
    tl.store(out[0] + column, token.to(tl.int64), mask=is_down)
    tl.store(out[1] + column, margin, mask=is_down)
    tl.store(out[2] + column + 1, child.to(tl.int64), mask=is_down)
    tl.store(out[3] + column, eldest.to(tl.int64), mask=is_down)
    tl.store(walk[0] + b, state)
    tl.store(walk[1] + b, tl.where(is_down, child, node))
    tl.store(walk[2] + b, depth + is_down.to(tl.int32))
    tl.store(walk[3] + b, tl.where(is_down, 0, last))
    tl.store(walk[4] + b, token)
    tl.store(walk[5] + b, broken)
    tl.store(walk[6] + b, tl.where(is_down, _INF, lead))
    tl.store(walk[7] + b, margin)
