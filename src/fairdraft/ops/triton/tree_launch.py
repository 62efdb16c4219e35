"""Launches of the kernels of `ops.verify_tree`.

Axes: B requests, N nodes, D depth, V vocabulary, T tiles.
"""

# launch options are no parameters of a kernel, and plain values are its constants
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairdraft.noise import device as noise_device
from fairdraft.ops.arithmetic import TILE, power_of_two
from fairdraft.ops.dispatch import own_device
from fairdraft.ops.triton.chain_memory import DeviceChain, residual_memory
from fairdraft.ops.triton.launch import Arithmetic, max_tiles
from fairdraft.ops.triton.target import sharing_warps
from fairdraft.ops.triton.tree import tree_kernel
from fairdraft.ops.triton.tree_emit import tree_emit_kernel
from fairdraft.ops.triton.verify import chain_shape, constants_of, drafts_of
from fairdraft.ops.triton.workspace import Workspace, stats_buffers

#: float32 tiles of what is left of p that a program holds at once; of float64 it is one
_FAST_TILES = 4


class DeviceTree(NamedTuple):
    """Checked device tensors of a call.

    Attributes:
        nodes: What a chain of N drafts is given, in its places.
        parents: int64 or int32, [B, N] or [N].
        depth: D.
        num_steps: Passes of the longest walk: a row of p for each node on the path, and one for
            each rejected child.
    """

    nodes: DeviceChain
    parents: Tensor
    depth: int
    num_steps: int


def launch_tree(
    tree: DeviceTree,
    out: tuple[Tensor, ...],
    *,
    arithmetic: Arithmetic,
    workspace: Workspace,
    address: Any = None,
) -> None:
    """Fills token_ids, margin, path [B, D + 1], num_accepted, num_emitted, last_stream, error,
    broken [B].

    `address` is as in `launch_sample`.
    """
    with own_device(tree.parents.device):
        workspace.begin()
        _launch_all(tree, out, arithmetic, workspace, address or noise_device.pack_counter)
        workspace.end()


def _launch_all(
    tree: DeviceTree,
    out: tuple[Tensor, ...],
    arithmetic: Arithmetic,
    workspace: Workspace,
    address: Any,
) -> None:
    nodes = tree.nodes
    count, size, vocab_size = nodes.sizes
    num_tiles = -(-vocab_size // TILE)
    inputs = (
        nodes.target,
        nodes.draft or nodes.target,
        tuple(t for t, _ in nodes.temperatures),
        (*drafts_of(nodes, workspace)[:4], tree.parents),
        nodes.at[0],
        *_memory(workspace, nodes, num_tiles),
    )
    sizes = (count, vocab_size, num_tiles, tree.depth + 1)
    common = constants_of(nodes, False, arithmetic, address)
    common["N"] = common.pop("K")
    common["STRIDES"] = (*common["STRIDES"], size if tree.parents.dim() == 2 else 0)
    tiles, warps = chain_shape(count, num_tiles)
    at_once = min(tiles, _FAST_TILES) if arithmetic == "fast" else 1
    reach = (max_tiles(num_tiles), power_of_two(max(size, 1)))
    for step in range(tree.num_steps):
        tree_kernel[(count * -(-num_tiles // tiles),)](
            *inputs,
            out,
            workspace.zeros("tree_done", (count,), torch.int32),
            sizes,
            step,
            SHAPE=(tiles, *reach, at_once),
            **common | {"num_warps": sharing_warps(tree.parents.device, warps)},
        )
    tree_emit_kernel[(count,)](
        *inputs,
        out,
        sizes,
        SHAPE=(1, *reach, power_of_two(tree.depth + 1)),
        **common | {"num_warps": 4},
    )


def _memory(workspace: Workspace, nodes: DeviceChain, num_tiles: int) -> tuple[Any, ...]:
    """Statistics of the node that each walk stands on and of every draft, walks, and residuals."""
    count, size, _ = nodes.sizes
    ints = ("state", "node", "depth", "last", "token", "broken")
    walk = [workspace.empty(f"walk_{name}", (count,), torch.int32) for name in ints]
    walk += [
        workspace.empty(f"walk_{name}", (count,), torch.float64) for name in ("lead", "margin")
    ]
    return (
        stats_buffers(workspace, "p", count, num_tiles),
        nodes.draft_stats or stats_buffers(workspace, "q", max(count * size, 1), num_tiles),
        (*walk, workspace.zeros("tree_units", (count,), torch.int64)),
        workspace.empty("tree_masses", (max(count * size, 1),), torch.float64),
        residual_memory(workspace, count, num_tiles),
    )
