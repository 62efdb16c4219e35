"""Where the tokens of one block go: positions, slots of the cache, and what each may see.

Axes: B rows, Q tokens a row, L cache slots that the forward reads, N nodes of a tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraft.models.cache import RaggedCache
from fairdraft.models.masks import AlignedMasks, AttentionKind, additive_mask, tree_mask

__all__ = ["BlockPlaces", "TreeBlock", "keep_path"]


@dataclass(frozen=True)
class TreeBlock:
    """A block whose tokens are nodes of one tree that hangs below each row's decided tokens.

    Node c sits in slot num_decided + c - 1 at position num_decided + depth - 1; node 0, the root,
    is the last decided token. A node sees decided tokens, the nodes above it, and itself.

    Attributes:
        num_decided: Decided tokens of each row [B], int64; their slots are their positions.
        depths: Of each node [N + 1], int64.
        is_seen: bool [N + 1, N + 1], whether node r sees node c.
        first: Node of the block's first token; the others follow in order.
    """

    num_decided: np.ndarray
    depths: np.ndarray
    is_seen: np.ndarray
    first: int


class BlockPlaces:
    """Places blocks for one model: a legal position and slot for each token, and masks.

    Args:
        max_length: Context limit.
        kinds: Reach of each layer type; one entry means one mask for all.
        dtype, device: Of the masks.
    """

    def __init__(
        self,
        max_length: int,
        kinds: dict[str, AttentionKind],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._max_length = max_length
        self._kinds = kinds
        self.is_full = [kind.name for kind in kinds.values()] == ["full"]
        self._dtype, self._device = dtype, device
        self._positions = torch.arange(max_length, device=device)[None]
        self._aligned = AlignedMasks(max_length, dtype, device)
        #: up to so many tokens of one row the network needs neither positions nor a mask
        self.num_bare_tokens = 0

    def begin(
        self,
        starts: list[int],
        width: int,
        first_row: int,
        cache: RaggedCache,
        tree: TreeBlock | None = None,
    ) -> tuple[Tensor, Any]:
        """Begins a forward of `width` tokens from slot `starts[b]` of each row.

        Args:
            starts: Slot of each row's first token [B].
            width: Q.
            first_row: The cache row of the batch's first row.
            cache: Begun for the block.
            tree: Where the tokens are nodes of a tree.

        Returns:
            Positions [B, Q] or [1, Q], and an additive mask [B, 1, Q, L] or [1, 1, Q, L]; where
            there are several layer types, one for each.
        """
        first, last, limit = min(starts), max(starts), self._max_length
        if tree is None and first == last and first + width <= limit:
            positions = self._positions.narrow(1, first, width)
            slots = positions if len(starts) == 1 else positions.expand(len(starts), -1)
            length = cache.begin(slots, first_row, first + width, first)
            return positions, self._masks_from(positions, first, length)
        slots = torch.tensor(starts)[:, None] + torch.arange(width)
        positions = slots
        if tree is not None:
            depths = torch.from_numpy(tree.depths[tree.first : tree.first + width])
            positions = torch.from_numpy(tree.num_decided)[:, None] - 1 + depths
        if last + width > limit:
            # padding past the context: legal positions, and a slot that nobody reads
            slots = slots.clamp(max=cache.scratch_slot)
            positions = positions.clamp(max=limit - 1)
        positions, slots = positions.to(self._device), slots.to(self._device)
        length = cache.begin(slots, first_row, min(last + width, limit))
        masks = {}
        for layer_type, kind in self._kinds.items():
            if tree is None:
                masks[layer_type] = additive_mask(positions, length, kind, self._dtype)
            else:
                parts = (tree.num_decided, tree.depths, tree.is_seen[tree.first :][:width])
                masks[layer_type] = tree_mask(positions, length, kind, self._dtype, *parts)
        return positions, _one_or_all(masks)

    def begin_short(
        self,
        starts: list[int],
        width: int,
        first_row: int,
        cache: RaggedCache,
        tree: TreeBlock | None = None,
    ) -> tuple[Tensor | None, Any]:
        """`begin`, but neither positions nor a mask where the network needs none."""
        is_bare = tree is None and len(starts) == 1 and width <= self.num_bare_tokens
        # padding past the context has no slot of its own
        if not is_bare or starts[0] + width > self._max_length:
            return self.begin(starts, width, first_row, cache, tree)
        # only the number of rows is read of the slots, which count up from the first
        cache.begin(self._positions, first_row, starts[0] + width, starts[0])
        return None, None

    def _masks_from(self, positions: Tensor, first: int, length: int) -> Any:
        """Masks of rows that all begin at one position."""
        if self.is_full:
            return self._aligned.get(first, positions.shape[1], length)
        aligned = None
        masks = {}
        for layer_type, kind in self._kinds.items():
            if kind.name != "full":
                masks[layer_type] = additive_mask(positions, length, kind, self._dtype)
                continue
            if aligned is None:
                aligned = self._aligned.get(first, positions.shape[1], length)
            masks[layer_type] = aligned
        return _one_or_all(masks)


def keep_path(
    cache: RaggedCache, num_decided: np.ndarray, path: np.ndarray, num_kept: np.ndarray
) -> None:
    """Moves the keys and values of a path's nodes to the slots of their positions.

    Args:
        cache: In which node c of row b is in slot num_decided[b] + c - 1.
        num_decided: int64 [B], as in `TreeBlock`.
        path: Nodes from the root on [B, D + 1].
        num_kept: Nodes below the root to keep [B].
    """
    depth = np.arange(1, path.shape[1])
    row, column = np.nonzero((depth <= num_kept[:, None]) & (path[:, 1:] != depth))
    last = num_decided[row] - 1
    slots = (last + path[row, column + 1], last + column + 1)
    cache.move_slots(torch.from_numpy(row), *map(torch.from_numpy, slots))


def _one_or_all(masks: dict[str, Tensor]) -> Any:
    return masks if len(masks) > 1 else next(iter(masks.values()))
