"""A head over a ragged batch, with keys and values of its own.

Axes: B rows, Q slots, H width of the head, V target ids.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairdraft.models import RaggedCache
from fairdraft.models.attention import attend
from fairdraft.models.blocks import BlockPlaces, TreeBlock
from fairdraft.models.masks import AttentionKind
from fairdraft.models.packing import can_pack
from fairdraft.speculators.heads.fused import fused
from fairdraft.speculators.heads.head import Head

_KINDS = {"full_attention": AttentionKind("full")}


class CachedHead:
    """Runs blocks of slots, each row at its own position; rollback is a smaller start.

    Args:
        head: Joined to its target, in evaluation mode; its weights must not change after.
        num_slots: Slots that a row may use: the head's context.

    Attributes:
        head: The network.
        num_slots: As given.
    """

    def __init__(self, head: Head, num_slots: int) -> None:
        self.head = head
        self.num_slots = num_slots
        weight = head.first_weight
        self.device, self.dtype = weight.device, weight.dtype
        self._network = fused(head) if can_pack(head) else head
        self.cache = RaggedCache(num_slots)
        self._places = BlockPlaces(num_slots, _KINDS, self.dtype, self.device)
        self._angles = (torch.empty(0), torch.empty(0))

    def forward(
        self,
        token_ids: Tensor,
        hidden: Tensor,
        start: np.ndarray,
        num_tokens: np.ndarray | None = None,
        first_row: int = 0,
        module: int = 0,
        tree: TreeBlock | None = None,
    ) -> Tensor:
        """Runs one block of slots a row and keeps their keys and values.

        Args:
            token_ids: int64 [B, Q]; padding may hold any id of the embedding.
            hidden: [B, Q, H].
            start: First slot of each row [B], 0 to `num_slots`.
            num_tokens: Slots of each row [B], 0 to Q; None for Q. None may end past `num_slots`.
            first_row: Row of the cache that the first row of the block is.
            module: Module whose slots they are.
            tree: Where the slots are nodes of a tree, below slots that stand for decided tokens.

        Returns:
            [B, Q, H]; padding holds anything.
        """
        width = token_ids.shape[1]
        counts = np.full(len(start), width) if num_tokens is None else num_tokens
        assert (start >= 0).all() and (start + counts <= self.num_slots).all()
        positions, mask = self._places.begin(start.tolist(), width, first_row, self.cache, tree)

        def attend_cached(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self.cache.update(key, value, module)
            return attend(query, keys, values, mask, None)

        assert self.head.embed_tokens is not None
        embedded = self.head.embed_tokens(token_ids.to(self.device))
        angles = self._rotations(positions)
        return self._network.step(embedded, hidden, angles, attend_cached, module)

    def fuse(self, states: tuple[Tensor, ...]) -> Tensor:
        """Makes one vector a position of the target's states, as `Head.fuse`."""
        return self._network.fuse(states)

    def logits(self, hidden: Tensor, module: int = 0) -> Tensor:
        """Logits over the draft ids from outputs, as `Head.logits`."""
        return self._network.logits(hidden, module)

    def _rotations(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        needed = self.cache.get_seq_length()
        if needed > len(self._angles[0]):
            size = min(max(needed, 2 * len(self._angles[0]), 256), self.num_slots)
            cos, sin = self.head.angles(torch.arange(size, device=self.device)[None])
            self._angles = cos[0, 0], sin[0, 0]
        cos, sin = self._angles
        return cos[positions][:, None], sin[positions][:, None]
