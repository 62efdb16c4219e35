"""What passes between `verify_tree` and its implementations: checked arrays, and the tree's shape.

Axes: B rows, N nodes besides the root, D the deepest node's depth, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fairdraft import noise
from fairdraft.noise import Stream
from fairdraft.ops import rows
from fairdraft.ops.chain_addresses import request_fields
from fairdraft.ops.chain_inputs import SparseLogits, check_counts, check_forbidden
from fairdraft.ops.chain_rows import draft_rows, token_ids_of
from fairdraft.ops.flat_rows import FlatRows
from fairdraft.ops.rows import PLACEHOLDER_TOKEN_ID


class Shape(NamedTuple):
    """Trees of present nodes; node 0 is the root, and nodes are numbered as they were created."""

    parents: np.ndarray  # int64 [B, N], of node c in column c - 1
    depths: np.ndarray  # int64 [B, N + 1]
    is_present: np.ndarray  # bool [B, N + 1]
    first_child: np.ndarray  # int64 [B, N + 1], 0 for none
    next_sibling: np.ndarray  # int64 [B, N + 1], 0 for none

    @property
    def depth(self) -> int:
        """D."""
        return int((self.depths * self.is_present).max(initial=0))

    def children(self, b: int, r: int) -> list[int]:
        """Present children of a node, in the order drawn."""
        found, c = [], int(self.first_child[b, r])
        while c:
            found.append(c)
            c = int(self.next_sibling[b, c])
        return found


class TreeInputs(NamedTuple):
    """Checked NumPy inputs of the implementations; scales are log2(e) / T, 0 for greedy."""

    target: np.ndarray  # float32 [B, N + 1, V], forbidden drafts at -inf
    draft: np.ndarray | FlatRows  # float32 [B, N, V], empty if every draft is a point mass
    token_ids: np.ndarray  # int64 [B, N]
    shape: Shape
    target_scale: np.ndarray  # float32 [B]
    draft_scale: np.ndarray  # float32 [B]
    is_matched: np.ndarray  # bool [B], rows decided by sample-and-match
    is_forbidden: np.ndarray  # bool [B, N]
    accept_at: noise.Address  # [B * N]
    final_at: noise.Address  # [B * (N + 1)]


class TreeOutputs(NamedTuple):
    """What an implementation fills in; see `TreeVerdict`."""

    token_ids: np.ndarray  # int64 [B, D + 1]
    path: np.ndarray  # int64 [B, D + 1]
    num_accepted: np.ndarray
    margin: np.ndarray
    error: np.ndarray
    num_broken: np.ndarray
    is_tested: np.ndarray  # bool [B, N], tests that consumed an ACCEPT number


def tree_shape(parents: Any, token_ids: np.ndarray, num_nodes: np.ndarray) -> Shape:
    """Checks parents [B, N] or [N], and finds which nodes are there.

    Raises:
        ValueError: If a present node's parent is not a node created before it.
    """
    count, size = token_ids.shape
    given, is_counted = counted_parents(parents, token_ids.shape, num_nodes)
    is_present = np.ones((count, size + 1), bool)
    depths = np.zeros((count, size + 1), np.int64)
    row = np.arange(count)
    for c in range(1, size + 1):
        parent = given[:, c - 1]
        depths[:, c] = depths[row, parent] + 1
        is_there = is_counted[:, c - 1] & (token_ids[:, c - 1] != PLACEHOLDER_TOKEN_ID)
        is_present[:, c] = is_there & is_present[row, parent]
    first_child = np.zeros((count, size + 1), np.int64)
    next_sibling = np.zeros((count, size + 1), np.int64)
    for c in range(size, 0, -1):
        there = np.flatnonzero(is_present[:, c])
        parent = given[there, c - 1]
        next_sibling[there, c] = first_child[there, parent]
        first_child[there, parent] = c
    return Shape(given, depths, is_present, first_child, next_sibling)


def counted_parents(
    parents: Any, shape: tuple[int, ...], num_nodes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Parents [B, N] of the counted nodes, 0 of the others, and which are counted.

    Raises:
        ValueError: If a counted node's parent is not a node created before it.
    """
    given = checked_shape(parents, shape)
    nodes = np.arange(1, shape[1] + 1)
    is_counted = nodes <= num_nodes[:, None]
    given = np.where(is_counted, given, 0).astype(np.int64)
    is_bad = (given < 0) | (given >= nodes)
    if is_bad.any():
        b, column = np.argwhere(is_bad)[0]
        raise ValueError(
            f"parents[{b}, {column}] = {given[b, column]}: the parent of node {column + 1} must be "
            f"a node created before it, 0..{column}; number nodes in order of creation"
        )
    return given, is_counted


def checked_shape(parents: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Parents on the host as an array of integers [N] or [B, N].

    Raises:
        ValueError: If they are anything else.
    """
    given = np.asarray(parents)
    # no list of none has a type
    is_integer = given.dtype.kind in "iu" or not given.size
    if given.shape not in (tuple(shape[1:]), tuple(shape)) or not is_integer:
        raise ValueError(
            f"parents has shape {given.shape} and dtype {given.dtype}; draft_token_ids of shape "
            f"{tuple(shape)} need integers of that shape, or {tuple(shape[1:])} for one tree for "
            "all rows"
        )
    return given


def tree_inputs(
    target_logits: Tensor,
    draft_token_ids: Any,
    parents: Any,
    num_draft_tokens: Any,
    draft_logits: Tensor | SparseLogits | None,
    at: tuple[Any, Any, Any],
    temperatures: tuple[Any, Any],
    marks: tuple[Any, Any],
) -> TreeInputs:
    """Checks what `verify_tree` is given; see there."""
    target = rows.as_rows("target_logits", target_logits, dims=3)
    count, num_rows, vocab_size = target.shape
    shape = (count, num_rows - 1, vocab_size)
    token_ids = token_ids_of(draft_token_ids, shape[:2], None)
    num_nodes = rows.as_vector("num_draft_tokens", num_draft_tokens, count, np.int64)
    check_counts(num_nodes, shape[1])
    tree = tree_shape(parents, token_ids, num_nodes)
    target_scale = draft_scale = rows.temperature_scales("temperature", temperatures[0], count)
    if temperatures[1] is not None:
        draft_scale = rows.temperature_scales("draft_temperature", temperatures[1], count)
    point_mass, forbidden = marks
    is_matched = np.full(count, draft_logits is None)
    if point_mass is not None:
        is_matched |= rows.as_vector("point_mass", point_mass, count, np.bool_)
    # a greedy drafter is a point mass, whatever it was greedy about
    is_matched |= (draft_scale == 0) | (target_scale == 0)
    is_forbidden = (token_ids < 0) | (token_ids >= vocab_size)
    if forbidden is not None:
        check_forbidden(forbidden, token_ids.shape)
        is_forbidden |= np.asarray(forbidden, np.bool_)
    return TreeInputs(
        _masked(target, token_ids, tree, is_forbidden),
        draft_rows(draft_logits, shape, token_ids.size, None, None),
        token_ids,
        tree,
        target_scale,
        draft_scale,
        is_matched,
        is_forbidden,
        *_addresses(at, tree),
    )


def _masked(
    target: np.ndarray, token_ids: np.ndarray, tree: Shape, is_forbidden: np.ndarray
) -> np.ndarray:
    """Rows in which forbidden drafts have p = 0: a copy only where there are any."""
    is_masked = is_forbidden & tree.is_present[:, 1:]
    is_masked &= (token_ids >= 0) & (token_ids < target.shape[2])
    if not is_masked.any():
        return target
    b, column = np.nonzero(is_masked)
    target = target.copy()
    target[b, tree.parents[b, column], token_ids[b, column]] = -np.inf
    return target


def _addresses(at: tuple[Any, Any, Any], tree: Shape) -> tuple[noise.Address, noise.Address]:
    """The tests of the N nodes and the tokens after the N + 1 rows; `at` is key, anchor, sample."""
    count, size = tree.parents.shape
    keys, anchors, sample = request_fields(at, count)
    nodes = np.arange(size + 1)
    is_plain = tree.first_child[:, :1] == 0
    streams = np.where(tree.first_child > 0, int(Stream.RESIDUAL), int(Stream.BONUS))
    final_at = noise.address(
        np.where(is_plain, int(Stream.TARGET), streams),
        key=keys,
        position=anchors + tree.depths,
        anchor=np.where(is_plain, 0, anchors),
        node=np.where(is_plain, 0, nodes),
        sample=sample,
    )
    accept_at = noise.address(
        np.full((count, size), int(Stream.ACCEPT)),
        key=keys,
        position=anchors + tree.depths[:, 1:] - 1,
        anchor=anchors,
        node=nodes[1:],
        sample=sample,
    )
    return accept_at, final_at
