"""`ops.verify_tree` on device tensors: checks, buffers and the launch.

Axes: B requests, N nodes, D depth, V vocabulary.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairdraft.ops.flat_rows import Layout
from fairdraft.ops.rows import as_vector
from fairdraft.ops.sample import TileStats
from fairdraft.ops.tree_inputs import checked_shape, counted_parents
from fairdraft.ops.triton.launch import Arithmetic
from fairdraft.ops.triton.tree_launch import DeviceTree, launch_tree
from fairdraft.ops.triton.verification import device_chain, empty_verdict, written
from fairdraft.ops.triton.workspace import Workspace
from fairdraft.ops.verdict import TreeVerdict


class Reach(NamedTuple):
    """How far walks can go: the deepest node, and the most passes over rows."""

    depth: int
    num_steps: int


def verify_tree_on_device(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    parents: Any,
    num_draft_tokens: Any,
    *,
    draft_logits: Any,
    at: tuple[Any, Any, Any],
    temperatures: tuple[Any, Any],
    marks: tuple[Any, Any],
    max_depth: int | None,
    arithmetic: Arithmetic,
    draft_stats: TileStats | None,
    workspace: Workspace | None,
    validate: bool,
) -> TreeVerdict:
    """See `ops.verify_tree`; nothing here waits for the device."""
    device = target_logits.device
    nodes = device_chain(
        target_logits,
        draft_token_ids,
        num_draft_tokens,
        draft_logits=draft_logits,
        at=at,
        temperatures=temperatures,
        marks=marks,
        layout=Layout(),
        draft_stats=draft_stats,
        validate=validate,
    )
    count, size, _ = nodes.sizes
    on_device, reach = _parents(parents, (count, size), num_draft_tokens, device, validate)
    depth = reach.depth if max_depth is None else max_depth
    verdict = empty_verdict(count, depth + 1, device)
    path, first_child = (torch.empty_like(verdict.token_ids) for _ in range(2))
    if count:
        token_ids, margin, *rest = written(verdict)
        launch_tree(
            DeviceTree(nodes, on_device, depth, reach.num_steps),
            (token_ids, margin, path, first_child, *rest),
            arithmetic=arithmetic,
            workspace=workspace or Workspace(device),
        )
    return TreeVerdict(**vars(verdict), path=path, first_child=first_child)


def reach_of(parents: np.ndarray) -> Reach:
    """The reach of walks down trees [B, N]; a node whose parent is impossible hangs on the root.

    A walk to a node passes over the row of each node above it and rejects its elders and theirs.
    """
    count, size = parents.shape
    nodes = np.arange(1, size + 1)
    parents = np.where((parents < 0) | (parents >= nodes), 0, parents)
    depths, passes, num_children = (np.zeros((count, size + 1), np.int64) for _ in range(3))
    row = np.arange(count)
    for c in range(1, size + 1):
        parent = parents[:, c - 1]
        num_children[row, parent] += 1
        depths[:, c] = depths[row, parent] + 1
        passes[:, c] = passes[row, parent] + num_children[row, parent]
    return Reach(int(depths.max(initial=0)), int(passes.max(initial=0)) + 1)


def _parents(
    parents: Any, shape: tuple[int, int], num_nodes: Any, device: torch.device, validate: bool
) -> tuple[Tensor, Reach]:
    """Parents on the device, and how far walks can go as far as the host can see."""
    size = shape[1]
    if isinstance(parents, Tensor) and not parents.is_cpu:
        if validate:
            _check_device(parents, shape, device)
        # a node has at most all others above and before it
        return parents, Reach(size, size + 1)
    given = checked_shape(parents, shape)
    if validate and not (isinstance(num_nodes, Tensor) and not num_nodes.is_cpu):
        counted_parents(given, shape, as_vector("num_draft_tokens", num_nodes, shape[0], np.int64))
    if given.ndim == 1:
        return _constant(tuple(given.tolist()), device)
    return torch.from_numpy(given.astype(np.int64)).to(device), reach_of(given)


@lru_cache(maxsize=1024)
def _constant(parents: tuple[int, ...], device: torch.device) -> tuple[Tensor, Reach]:
    """One tree for all rows, kept on the device: a call in a graph must not copy from the host."""
    given = np.array(parents, np.int64)
    return torch.from_numpy(given).to(device), reach_of(given[None])


def _check_device(parents: Tensor, shape: tuple[int, int], device: torch.device) -> None:
    if (
        parents.dtype in (torch.int64, torch.int32)
        and tuple(parents.shape) in (shape, shape[1:])
        and parents.device == device
        and parents.is_contiguous()
    ):
        return
    raise ValueError(
        f"parents is {parents.dtype} {tuple(parents.shape)} on {parents.device} with strides "
        f"{parents.stride()}; give contiguous int64 {shape} or {shape[1:]} on {device}, or on the "
        "host, where its depth is known"
    )
