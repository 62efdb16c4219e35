"""DSpark: a DFlash head whose laws also read the token before each draft.

The block's pass runs once a round, as in `dflash`. Then draft i is drawn from base_i plus a bias by
draft i - 1 (by the last decided token for the first), one after the other.

Meets (a): q_i is what was sampled, bias and cut included, and depends on decided tokens, the
target's states at them, and draft i - 1. Meets (b): a draft is left out by its row's limits, or by
a guess that reads the block's output and the draft before, never the draft itself. Source:
DeepSeek-AI 2026.

Axes: B rows, K drafted, H width of the head, N rows that draft at a step, R rank of the bias, C
draft ids.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairdraft.speculators.dflash import BlockLaws, DflashSpeculator
from fairdraft.speculators.heads import CachedBlocks, DsparkHead


class DsparkSpeculator(DflashSpeculator):
    """Drafts with a DSpark head; the invariant is `DflashSpeculator`'s."""

    name = "dspark"

    def __init__(
        self,
        head: CachedBlocks,
        num_speculative_tokens: int,
        vocab_size: int,
        *,
        draft_top_k: int | None = None,
        **options: Any,
    ) -> None:
        """Arguments as in `DflashSpeculator`.

        Args:
            head: With a `DsparkHead`.
            num_speculative_tokens, vocab_size, options: As there. A confidence threshold is held
                against the head's guess of acceptance, if it has one.
            draft_top_k: Ids that stay in each law: those with the best logits before the bias.
                None for all.
        """
        super().__init__(head, num_speculative_tokens, vocab_size, **options)
        assert isinstance(head.head, DsparkHead)
        self._network = head.head
        # rows of padding are no ids
        num_ids = self._law.num_ids
        self._top_k = None if draft_top_k is None or draft_top_k >= num_ids else draft_top_k

    def _laws(self, hidden: Tensor) -> BlockLaws:
        base = self.head.logits(hidden)

        def logits(step: int, before: Tensor, rows: Tensor | slice) -> Tensor:
            return self._law(self._biased(base[rows, step - 1], self._network.before(before)))

        def confidence(step: int, before: Tensor, rows: Tensor | slice) -> Tensor:
            read = self._network.before(before)
            odds = self._network.acceptance_logits(hidden[rows, step - 1], read)
            return odds.double().sigmoid()

        has_guess = self._network.confidence_head is not None
        return BlockLaws(logits, confidence if has_guess else None)

    def _biased(self, base: Tensor, before: Tensor) -> Tensor:
        """Logits of a step [N, C] from those of the block, and W1 of the tokens before [N, R]."""
        logits = base.float() + self._network.bias(before).float()
        if self._top_k is None:
            return logits
        kept = self._best_ids(base, self._top_k)
        return torch.full_like(logits, -torch.inf).scatter_(-1, kept, logits.gather(-1, kept))
