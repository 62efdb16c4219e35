"""A DFlash head over a ragged batch: keys and values of the decided text, and blocks behind it.

Slot j of a row belongs to position j. A block's own keys and values lie in the slots behind the
text, where those of the tokens that stand there in the end replace them.

Axes: B rows, Q slots or queries, T drafts of a block, H width of the head.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairdraft.models.attention import attend
from fairdraft.models.masks import AlignedMasks, AttentionKind, additive_mask
from fairdraft.models.packing import can_pack, pack_linear_layers
from fairdraft.speculators.heads.cached import CachedNetwork
from fairdraft.speculators.heads.dflash import DflashHead
from fairdraft.speculators.heads.fused_blocks import FusedBlocks, is_written_out
from fairdraft.speculators.heads.layer import Attend

_FULL = AttentionKind("full")


class CachedBlocks(CachedNetwork):
    """Keeps the context of every row, and runs one block a row on it.

    Args:
        head: As in `CachedNetwork`.
        num_slots: Slots of context; a block may begin right behind the last one.
    """

    head: DflashHead
    _network: DflashHead | FusedBlocks

    def __init__(self, head: DflashHead, num_slots: int) -> None:
        network = FusedBlocks(head) if can_pack(head) and is_written_out(head) else head
        if network is head and can_pack(head):
            pack_linear_layers(head)
        super().__init__(head, network, num_slots, num_spare=head.config.block_size)
        self._masks = AlignedMasks(self.cache.max_length, self.dtype, self.device)

    def extend(
        self, fused: Tensor, start: np.ndarray, num_tokens: np.ndarray, first_row: int = 0
    ) -> None:
        """Keeps keys and values of newly decided tokens, of all layers.

        Args:
            fused: What `fuse` made of the target's states there [B, Q, H].
            start: First slot of each row [B].
            num_tokens: Slots of each row [B], 0 to Q; none may end past `num_slots`.
            first_row: Row of the cache that the first row is.
        """
        assert (start >= 0).all() and (start + num_tokens <= self.num_slots).all()
        self._keep(fused, self._begin(start, fused.shape[1], first_row))

    def extend_on_device(self, fused: Tensor, start: Tensor, *, read_length: int) -> None:
        """`extend` of whole blocks, padding too, without a look at any value.

        Args:
            fused: [B, Q, H].
            start: First slot of each row, int64 [B] on the device.
            read_length: Slots that a round reads, see `DeviceState`.
        """
        self._keep(fused, self._begin_on_device(start, fused.shape[1], read_length)[0])

    def _keep(self, fused: Tensor, positions: Tensor) -> None:
        made = self._network.context(fused, self._rotations(positions))
        for layer, (key, value) in enumerate(made):
            self.cache.update(key, value, layer)

    def block(self, last: Tensor, start: np.ndarray) -> Tensor:
        """Runs one block a row.

        Args:
            last: Last decided token of each row, int64 [B].
            start: Its position [B], 0 to `num_slots`; all slots before it are kept.

        Returns:
            Outputs of the queries that draft [B, T, H].
        """
        assert (start >= 0).all() and (start <= self.num_slots).all()
        width = self.head.config.block_size
        positions = self._begin(start, width, 0)
        length = self.cache.get_seq_length()
        ends = torch.from_numpy(start + width - 1)
        if (ends == ends[0]).all():
            mask = self._masks.get(int(ends[0]), 1, length)
        else:
            # every query sees what the last one of its block does
            mask = additive_mask(ends[:, None].to(self.device), length, _FULL, self.dtype)
        return self._run(last.to(self.device), positions, mask)

    def block_on_device(self, last: Tensor, start: Tensor, *, read_length: int) -> Tensor:
        """`block` without a look at any value; all arguments are on the device.

        Args:
            last, start: As in `block`, int64 [B].
            read_length: Slots that a round reads, see `DeviceState`.
        """
        width = self.head.config.block_size
        positions, length = self._begin_on_device(start, width, read_length)
        mask = additive_mask(positions[:, -1:], length, _FULL, self.dtype)
        return self._run(last, positions, mask)

    def _run(self, last: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        def attend_layer(layer: int) -> Attend:
            def attend_cached(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                keys, values = self.cache.update(key, value, layer)
                return attend(query, keys, values, mask, None)

            return attend_cached

        embedded = self._network.embed(last)
        outputs = self._network.block(embedded, self._rotations(positions), attend_layer)
        return self._network.drafting(outputs)

    def _begin(self, start: np.ndarray, width: int, first_row: int) -> Tensor:
        """Begins a forward; returns the positions of its slots [B, Q]."""
        limit = self.cache.max_length
        slots = torch.from_numpy(start[:, None] + np.arange(width)).to(self.device)
        # padding past the end goes to a slot that nobody reads
        self.cache.begin(
            slots.clamp(max=self.cache.scratch_slot),
            first_row,
            min(int(start.max()) + width, limit),
        )
        return slots.clamp(max=limit - 1)
