"""DFlash2: a block in one pass, and a walk over a few candidates at each draft.

The pass of a round gives outputs for all drafts, and by them the C best ids of each: the
candidates. Draft i is drawn from the candidates of its place, whose scores depend on draft i - 1
(the last decided token for the first); see `heads.dflash2`.

Meets (a): candidates and unary scores follow from decided tokens and the target's states at them,
scores from these and the draft before, and what the shared sampler drew from is handed on as q, on
the candidates alone. Meets (b): how many drafts a row gets follows from its limits, and from each
draft's law before it is drawn. Draft i is the token at position n + i - 1 of a request with n
decided tokens: there its noise sits, and each candidate's by its token id, not by its rank.

Axes: B rows, K drafted, N rows that draft at a step, C candidates, V vocabulary of the target, H
width of the head, R rank of the scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairdraft.speculators.dflash import BlockLaws, DflashSpeculator
from fairdraft.speculators.heads import CachedBlocks, Dflash2Head


@dataclass
class _Candidates:
    """Candidates of a round.

    Attributes:
        token_ids: Target ids [B, K, C].
        draft_ids: The same by the head's numbers [B, K, C].
        unary: Logits of the output head, float32 [B, K, C].
        projected: See `CandidateSelector.project` [B, K, R].
    """

    token_ids: Tensor
    draft_ids: Tensor
    unary: Tensor
    projected: Tensor


class Dflash2Speculator(DflashSpeculator):
    """Drafts with a DFlash2 head."""

    name = "dflash2"

    def __init__(
        self, head: CachedBlocks, num_speculative_tokens: int, vocab_size: int, **options: Any
    ) -> None:
        """Arguments as in `DflashSpeculator`.

        Args:
            head: With a `Dflash2Head`.
            num_speculative_tokens, vocab_size, options: As there.
        """
        super().__init__(head, num_speculative_tokens, vocab_size, **options)
        assert isinstance(head.head, Dflash2Head)
        self._network = head.head

    def describe(self, max_model_len: int) -> str:
        """As `HeadSpeculator.describe`."""
        return f"{self.num_candidates} candidates a draft, {super().describe(max_model_len)}"

    @property
    def num_candidates(self) -> int:
        """C: as trained, or all that can be drafted."""
        return min(self._network.config.selector_top_k, self._law.num_ids)

    def _laws(self, hidden: Tensor) -> BlockLaws:
        found = self._candidates(hidden)
        selector = self._network.candidate_selector

        def logits(step: int, before: Tensor, rows: Tensor | slice) -> Tensor:
            place = (rows, step - 1)
            edges = selector.edges(found.projected[place], before, found.draft_ids[place])
            law = edges.new_full((len(edges), self.vocab_size), -torch.inf)
            return law.scatter_(1, found.token_ids[place], found.unary[place] + edges)

        return BlockLaws(logits, candidates=found.token_ids)

    def _candidates(self, hidden: Tensor) -> _Candidates:
        """Candidates at each draft, from outputs [B, K, H]."""
        logits = self.head.logits(hidden).float()
        draft_ids = self._best_ids(logits, self.num_candidates)
        return _Candidates(
            token_ids=self._network.target_ids[draft_ids],
            draft_ids=draft_ids,
            unary=logits.gather(-1, draft_ids),
            projected=self._network.candidate_selector.project(hidden),
        )
