"""The target's keys and values at decided tokens, as a speculator may attend to them.

Axes: B rows, N query heads, G key/value heads, Q queries, L slots, D head size.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairdraft.models import RaggedCache
from fairdraft.models.attention import attend
from fairdraft.models.masks import AttentionKind, additive_mask

_FULL = AttentionKind("full")


class TargetMemory:
    """What the target remembers of each row when a round begins; to be read then, never kept.

    Only the slots of decided tokens are reached, which are part of H_i; slots past them may hold
    drafts that were rejected. Rows are those of the batch at this moment, wherever they moved from,
    and a preempted row has its slots again before it drafts. So whoever reads has nothing to move,
    drop or roll back.

    Args:
        cache: The target's.
        num_slots: Slots of decided tokens of each row [B]: one less than there are tokens. Int64,
            on the host or on the cache's device.
        read_length: Slots to read, all those of decided tokens among them; for `num_slots` on a
            device, where nobody looks for the largest.
    """

    def __init__(
        self,
        cache: RaggedCache,
        num_slots: np.ndarray | Tensor,
        *,
        read_length: int | None = None,
    ) -> None:
        self._cache = cache
        if isinstance(num_slots, np.ndarray):
            read_length = max(int(num_slots.max()), 1)
            num_slots = torch.from_numpy(num_slots)
        assert read_length is not None, "num_slots on a device come with a read_length"
        self._num_slots, self._read_length = num_slots, read_length
        self._mask: Tensor | None = None

    def attend(self, layer: int, query: Tensor) -> Tensor:
        """Attends to a layer's slots of decided tokens, all of them.

        Args:
            layer: Of the target, from 0.
            query: [B, N, Q, D], N a multiple of G; rotated where the target's keys are.

        Returns:
            [B, Q, N, D]; anything for a row without a slot.
        """
        keys, values = self._cache.read(layer, len(self._num_slots), self._read_length)
        if self._mask is None:
            last = (self._num_slots - 1).clamp(min=0).to(keys.device)
            self._mask = additive_mask(last[:, None], keys.shape[2], _FULL, keys.dtype)
        return attend(query, keys, values, self._mask, None)
