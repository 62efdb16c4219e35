"""What the verification kernels are given, and the scratch that they share.

Axes: B requests, K drafts, R = K + 1 rows, V vocabulary, T tiles; N rows, D drafts of flat calls.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fairdraft.ops.triton.workspace import Workspace, stats_buffers


class DeviceChain(NamedTuple):
    """Checked device tensors of a call; what is absent has a stand-in that is never read."""

    target: tuple[Tensor, int, int]  # logits, strides of a request's first row and of a row
    draft: tuple[Tensor, int, int] | None
    temperatures: tuple[tuple[Tensor, int], tuple[Tensor, int]]
    token_ids: Tensor  # [B, K] or [D]
    num_drafts: Tensor | None  # [B], of a padded call
    point_mass: Tensor | None  # bool [B]
    forbidden: Tensor | None  # bool, as token_ids
    at: tuple[tuple[Tensor, ...], tuple[int, ...]]  # key, anchor, sample
    draft_stats: tuple[Tensor, Tensor, Tensor, Tensor] | None
    sizes: tuple[int, int, int]  # B, K, V
    offsets: Tensor | None = None  # of a flat call
    offsets_kind: int = 0  # see `offsets_kind`
    num_rows: int = 0  # N
    is_flat_draft: bool = False
    slots: Tensor | None = None  # [B]
    num_slots: int = 0
    is_common: bool = False  # rule `common_noise`


def offsets_kind(counts_rows: bool, is_shifted: bool) -> int:
    """What kernels read offsets as; 0 is a padded call."""
    return (1 if counts_rows else 2) + 2 * is_shifted


def chain_memory(
    workspace: Workspace, chain: DeviceChain, num_tiles: int
) -> tuple[tuple[Tensor, ...], ...]:
    """Statistics of target and draft, what rows came to, and of rule `block` tests and paths."""
    count, depth, _ = chain.sizes
    rows = count * (depth + 1)
    draft_stats = chain.draft_stats
    if draft_stats is None:
        num_drafts = max(chain.token_ids.numel() if chain.is_flat_draft else count * depth, 1)
        draft_stats = stats_buffers(workspace, "q", num_drafts, num_tiles)
    found = workspace.kept(("chain", rows, count), lambda: _found(workspace, rows, count))
    return (stats_buffers(workspace, "p", rows, num_tiles), draft_stats, *found)


def _found(workspace: Workspace, rows: int, count: int) -> tuple[tuple[Tensor, ...], ...]:
    """What is known of each row and where each request ends; tests and paths of rule `block`."""
    return (
        (
            workspace.empty("state", (rows,), torch.int32),
            workspace.empty("token", (rows,), torch.int32),
            workspace.empty("broken", (rows,), torch.int32),
            workspace.empty("margin", (rows,), torch.float64),
            workspace.empty("p_x", (rows,), torch.float64),
            workspace.empty("q_x", (rows,), torch.float64),
            workspace.zeros("ended", (count,), torch.int32),
        ),
        (
            workspace.empty("test_state", (rows,), torch.int32),
            workspace.empty("test_margin", (rows,), torch.float64),
            workspace.zeros("test_units", (rows,), torch.int64),
            workspace.zeros("passed", (count,), torch.int32),
        ),
        (
            workspace.empty("path_stop", (count,), torch.int32),
            workspace.empty("path_state", (count,), torch.int32),
            workspace.empty("rho", (rows,), torch.float64),
        ),
    )


def residual_memory(workspace: Workspace, rows: int, num_tiles: int) -> tuple[Tensor, Tensor]:
    """Exponent and sum of each tile of a residual [rows, T]."""
    return (
        workspace.empty("residual_exponent", (rows, num_tiles), torch.int32),
        workspace.empty("residual_sum", (rows, num_tiles), torch.float32),
    )
