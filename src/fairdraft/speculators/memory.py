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
        num_slots: Slots of decided tokens of each row [B]: one less than there are tokens.
    """

    def __init__(self, cache: RaggedCache, num_slots: np.ndarray) -> None:
        self._cache = cache
        self._num_slots = num_slots
        self._mask: Tensor | None = None

    def attend(self, layer: int, query: Tensor) -> Tensor:
        """Attends to a layer's slots of decided tokens, all of them.

        Args:
            layer: Of the target, from 0.
            query: [B, N, Q, D], N a multiple of G; rotated where the target's keys are.

        Returns:
            [B, Q, N, D]; anything for a row without a slot.
        """
        longest = max(int(self._num_slots.max()), 1)
        keys, values = self._cache.read(layer, len(self._num_slots), longest)
        if self._mask is None:
            last = torch.from_numpy(np.maximum(self._num_slots - 1, 0)).to(keys.device)
            self._mask = additive_mask(last[:, None], keys.shape[2], _FULL, keys.dtype)
        return attend(query, keys, values, self._mask, None)
