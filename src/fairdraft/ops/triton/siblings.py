"""Nodes of a tree inside Triton kernels: whose children they are, and what they leave of p.

A tree is blocks over nodes 1..N: numbers, parents, ids, whether each is there, whether it is
forbidden. It needs no links: the walk stands on a present node, and a child of that is present if
it is there. Axes: B requests, N nodes, V vocabulary, T tiles.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.ops.triton.arithmetic import TILE
from fairdraft.ops.triton.law import probability, tile_probabilities
from fairdraft.ops.triton.reading import load_tiles

_INF = tl.constexpr(float("inf"))
#: above every node
_NONE = tl.constexpr(1 << 20)


@triton.jit
def request_tree(
    drafts,
    b,
    vocab_size,
    N: tl.constexpr,
    NODES: tl.constexpr,
    PARENT_STRIDE,
    HAS_FORBIDDEN: tl.constexpr,
):
    """The tree of a request, and whether its numbers are possible; if not, it has no nodes."""
    number = tl.arange(0, NODES) + 1
    column = tl.arange(0, NODES)
    given = tl.load(drafts[1] + b).to(tl.int64)
    is_possible = (given >= 0) & (given <= N)
    is_counted = number <= tl.where(is_possible, given, 0)
    ids = tl.load(drafts[0] + b * N + column, mask=is_counted, other=-1).to(tl.int64)
    parents = tl.load(drafts[4] + b * PARENT_STRIDE + column, mask=is_counted, other=0)
    parents = parents.to(tl.int64)
    is_bad = is_counted & ((parents < 0) | (parents >= number))
    is_possible &= tl.max(is_bad.to(tl.int32), 0) == 0
    is_there = is_counted & (ids != -1) & is_possible
    is_forbidden = (ids < 0) | (ids >= vocab_size)
    if HAS_FORBIDDEN:
        marks = tl.load(drafts[3] + b * N + column, mask=is_counted, other=0)
        is_forbidden |= marks != 0
    return (number, parents, ids, is_there, is_there & is_forbidden), is_possible


@triton.jit
def first_after(number, is_wanted, after):
    """The first wanted node after another one, or 0."""
    found = tl.min(tl.where(is_wanted & (number > after), number, _NONE), 0)
    return tl.where(found == _NONE, 0, found)


@triton.jit
def next_child(tree, node, after):
    """The child of a node that was drawn next after another one, or 0; 0 is before the first."""
    number, parents, _, is_there, _ = tree
    return first_after(number, is_there & (parents == node), after)


@triton.jit
def child_with(tree, node, token):
    """The first child of a node that is this token, or 0."""
    number, parents, ids, is_there, _ = tree
    return first_after(number, is_there & (parents == node) & (ids == token), 0)


@triton.jit
def token_of(tree, c):
    """The id of node c."""
    return tl.sum(tl.where(tree[0] == c, tree[2], 0), 0)


@triton.jit
def is_excluded(tree, node, token):
    """Whether a forbidden child of a node takes this token from its row."""
    is_one = tree[4] & (tree[1] == node) & (tree[2] == token)
    return tl.max(is_one.to(tl.int32), 0) > 0


@triton.jit
def is_elder(tree, node, c, token):
    """Whether a child of a node that was drawn before child c is this token."""
    number, parents, ids, is_there, _ = tree
    is_one = is_there & (parents == node) & (number < c) & (ids == token)
    return tl.max(is_one.to(tl.int32), 0) > 0


@triton.jit
def load_node_tiles(
    row_ptr, vocab_size, part, tree, node, HAS_FORBIDDEN: tl.constexpr, TILES: tl.constexpr
):
    """Tiles of a node's row as float32 [TILES * TILE]; its forbidden children have p = 0."""
    x = load_tiles(row_ptr, vocab_size, part, TILES)
    if HAS_FORBIDDEN:
        at = part * TILES * TILE + tl.arange(0, TILES * TILE)
        is_forbidden = tree[4] & (tree[1] == node)
        c = first_after(tree[0], is_forbidden, 0)
        while c > 0:
            x = tl.where(at == token_of(tree, c), -_INF, x)
            c = first_after(tree[0], is_forbidden, c)
    return x


@triton.jit
def draft_row_of(draft, b, c):
    """Pointer to the row that node c was drawn from."""
    return draft[0] + b * draft[1] + (c - 1).to(tl.int64) * draft[2]


@triton.jit
def node_law(p_stats, b, num_tiles, c):
    """p of the node that the walk stands on: tile maxima, c, the row's maximum and total."""
    return p_stats[0] + b * num_tiles, c, tl.load(p_stats[2] + b), tl.load(p_stats[3] + b)


@triton.jit
def rest_of(
    p_row,
    draft,
    laws,
    masses_ptr,
    tree,
    index,
    part,
    TILES: tl.constexpr,
    IS_FAST: tl.constexpr,
    HAS_FORBIDDEN: tl.constexpr,
):
    """What the children up to `last` leave of p: tiles [TILES, TILE], and where these children are.

    Recursive rejection: r <- max(r / S - q, 0) from child to child, S the mass of r and q without
    the elders; the outcome is not divided. float64, or float32 if `fast`. The rows of p and of each
    of these children are read.
    """
    p_law, q_stats, draft_c = laws
    b, node, last, vocab_size, num_tiles, N = index
    tile = part * TILES + tl.arange(0, TILES)
    at = part * TILES * TILE + tl.arange(0, TILES * TILE)
    is_tile = tile < num_tiles
    x = load_node_tiles(p_row, vocab_size, part, tree, node, HAS_FORBIDDEN, TILES)
    top = tl.load(p_law[0] + tile, mask=is_tile, other=-_INF)
    x = tl.reshape(x, (TILES, TILE))
    rest = tile_probabilities(x, top, p_law[1], p_law[2], p_law[3], IS_FAST)
    is_gone = at < 0
    c = next_child(tree, node, 0)
    while (c > 0) & (c <= last):
        place = b * N + c - 1
        y = load_tiles(draft_row_of(draft, b, c), vocab_size, part, TILES)
        top = tl.load(q_stats[0] + place * num_tiles + tile, mask=is_tile, other=-_INF)
        y = tl.reshape(tl.where(is_gone, -_INF, y), (TILES, TILE))
        q_max, q_sum = tl.load(q_stats[2] + place), tl.load(q_stats[3] + place)
        rest = tl.maximum(rest - tile_probabilities(y, top, draft_c, q_max, q_sum, IS_FAST), 0.0)
        if c < last:
            rest = rest / tl.load(masses_ptr + place).to(rest.dtype)
        is_gone = is_gone | (at == token_of(tree, c))
        c = next_child(tree, node, c)
    return rest, is_gone


@triton.jit
def rest_at(p_row, draft, laws, masses_ptr, tree, index, token):
    """The same for one token of the vocabulary, in float64: point reads alone."""
    p_law, q_stats, draft_c = laws
    b, node, last, vocab_size, num_tiles, N = index
    tile = token // TILE
    logit = tl.load(p_row + token)
    rest = probability(logit, tl.load(p_law[0] + tile), p_law[1], p_law[2], p_law[3])
    rest = tl.where(is_excluded(tree, node, token), 0.0, rest)
    is_gone = tile < 0
    c = next_child(tree, node, 0)
    while (c > 0) & (c <= last):
        place = b * N + c - 1
        logit = tl.load(draft_row_of(draft, b, c) + token)
        top = tl.load(q_stats[0] + place * num_tiles + tile)
        q_max, q_sum = tl.load(q_stats[2] + place), tl.load(q_stats[3] + place)
        q_x = probability(logit, top, draft_c, q_max, q_sum)
        rest = tl.maximum(rest - tl.where(is_gone, 0.0, q_x), 0.0)
        if c < last:
            rest = rest / tl.load(masses_ptr + place)
        is_gone = is_gone | (token == token_of(tree, c))
        c = next_child(tree, node, c)
    return rest
