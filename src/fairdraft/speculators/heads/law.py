"""From a head's logits over the ids that it drafts to a law over the target's.

Axes: N rows, V vocabulary of the target, C draft ids.
"""

from __future__ import annotations

import torch
from torch import Tensor


class DraftLaw:
    """Spreads logits over the target's ids; ids that the head cannot draft have q = 0.

    Args:
        target_ids: Target id of each draft id, int64 [C].
        vocab_size: V; draft ids past it are dropped before anything is sampled.

    Attributes:
        num_ids: Ids of the target that can be drafted.
    """

    def __init__(self, target_ids: Tensor, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._known = torch.nonzero(target_ids < vocab_size)[:, 0]
        self._ids = target_ids[self._known]
        self.num_ids = len(self._ids)
        self._is_whole = self.num_ids == len(target_ids) == vocab_size

    def __call__(self, logits: Tensor) -> Tensor:
        """Logits [N, C] to float32 logits [N, V]."""
        logits = logits.float()
        if self._is_whole:
            return logits
        law = logits.new_full((len(logits), self._vocab_size), -torch.inf)
        known = logits if self.num_ids == logits.shape[1] else logits[:, self._known]
        return law.index_copy_(1, self._ids, known)
