"""Additive attention masks for a batch whose rows sit at different positions.

Axes: B rows, Q queries of one forward, L cache slots that the forward reads, N nodes of a tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

__all__ = ["AlignedMasks", "AttentionKind", "additive_mask", "tree_mask"]


@dataclass(frozen=True)
class AttentionKind:
    """What a layer's queries may look at, besides being causal.

    Attributes:
        name: "full", "sliding" (the last `size` slots, its own included) or "chunked"
            (the slots of its own block of `size`).
        size: The window or block in slots; None for "full".
    """

    name: Literal["full", "sliding", "chunked"]
    size: int | None = None


def additive_mask(
    positions: Tensor, length: int, kind: AttentionKind, dtype: torch.dtype
) -> Tensor:
    """Masks every slot that the query at a position may not attend.

    Slot index and logical position are the same thing, so the mask needs only positions:
    slots past a query are stale or unwritten and carry the most negative finite number.

    Args:
        positions: int64 [B, Q]; every entry is below `length`, so no query is left without a
            slot and no softmax row is empty.
        length: Number of slots L that the attention reads.
        kind: The layer's reach.
        dtype: The model's dtype.

    Returns:
        [B, 1, Q, L] of `dtype`: 0 where the query attends, `finfo(dtype).min` elsewhere.
    """
    slots = torch.arange(length, device=positions.device)
    last = positions[:, None, :, None]
    return _additive((slots <= last) & _is_near(slots, last, kind), dtype)


def tree_mask(
    positions: Tensor,
    length: int,
    kind: AttentionKind,
    dtype: torch.dtype,
    num_decided: np.ndarray,
    depths: np.ndarray,
    is_seen: np.ndarray,
) -> Tensor:
    """Masks what a node of a tree may not attend; see `blocks.TreeBlock`.

    Args:
        positions: int64 [B, Q].
        length: Number of slots L that the attention reads.
        kind: The layer's reach, in positions.
        dtype: The model's dtype.
        num_decided: int64 [B]; slots below it hold decided tokens, node c is in the c-th slot of
            those that follow.
        depths: int64 [N + 1], of each node.
        is_seen: bool [Q, N + 1], the nodes that each query sees.

    Returns:
        [B, 1, Q, L] of `dtype`.
    """
    device = positions.device
    decided = torch.from_numpy(num_decided).to(device)[:, None]
    slots = torch.arange(length, device=device)
    node = slots - decided + 1
    is_node = (node > 0) & (node < len(depths))
    node = torch.where(is_node, node, 0)
    allowed = torch.from_numpy(is_seen).to(device)[:, node].movedim(0, 1) & is_node[:, None]
    allowed |= (slots < decided)[:, None]
    at = torch.where(is_node, decided - 1 + torch.from_numpy(depths).to(device)[node], slots)
    last = positions[:, None, :, None]
    return _additive(allowed[:, None] & _is_near(at[:, None, None], last, kind), dtype)


def _is_near(at: Tensor, last: Tensor, kind: AttentionKind) -> Tensor | bool:
    """Whether keys at positions `at` are within reach of queries at `last`."""
    if kind.size is None:
        return True
    if kind.name == "sliding":
        return at > last - kind.size
    return at >= last // kind.size * kind.size


def _additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    lowest = torch.finfo(dtype).min
    mask = torch.full(allowed.shape, lowest, dtype=dtype, device=allowed.device)
    return mask.masked_fill_(allowed, 0.0)


class AlignedMasks:
    """Masks of rows that all begin at one position, under full attention: windows of one table.

    Args:
        max_length: Context limit; positions stay below it.
        dtype: The model's dtype.
        device: Where the masks go.
    """

    # rows of the table, and the longest context whose table is worth its memory
    _ROWS = 16
    _MAX_LENGTH = 1 << 14

    def __init__(self, max_length: int, dtype: torch.dtype, device: torch.device) -> None:
        self._last = max_length - 1
        self._lowest = torch.finfo(dtype).min
        # fused attention on accelerators reads whole vectors, and a window may begin anywhere
        is_worth_it = device.type == "cpu" and max_length <= self._MAX_LENGTH
        self._num_rows = rows = self._ROWS if is_worth_it else 0
        table = torch.full((1, 1, rows, 2 * max_length), self._lowest, dtype=dtype, device=device)
        self._table = table.triu_(max_length) if rows else table
        self._strides = table.stride()

    def get(self, start: int, width: int, length: int) -> Tensor:
        """Masks `width` queries from position `start` on.

        Args:
            start: Position of every row's first query.
            width: Number of queries Q.
            length: Number of slots L that the attention reads.

        Returns:
            [1, 1, Q, L], what `additive_mask` makes of these positions; not to be written to.
        """
        if width <= self._num_rows:
            strides = self._strides
            return self._table.as_strided((1, 1, width, length), strides, self._last - start)
        shape = (1, 1, width, length)
        mask = self._table.new_full(shape, self._lowest)
        return mask.triu_(start + 1)
