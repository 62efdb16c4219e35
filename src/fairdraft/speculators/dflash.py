"""DFlash: a head that drafts a whole block in one pass.

With n decided tokens the head keeps keys and values of the target's states at positions 0 to n - 2.
A round runs one block: the last decided token at position n - 1 and a mask for each token of the
block it was trained on. The outputs give the laws of the tokens at n, n + 1 and so on.

Meets (a): each draft is sampled by the shared sampler from the logits that are handed on as q; they
depend on decided tokens and the target's states at them alone, so q factorises over the block. Each
block is as long as in training, so q_i depends on no K either. Meets (b): how many drafts a row
gets follows from its limits, and from each draft's law before it is drawn. Draft i is the token at
position n + i - 1: there its noise sits, though one pass gave all of them. Source: Chen, Liang and
Liu 2026.

Axes: B rows, K drafted, T drafts of a block, H width of the head, N rows that draft at a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fairdraft.speculators.features import Features
from fairdraft.speculators.head import HeadSpeculator
from fairdraft.speculators.heads import CachedBlocks, best_ids
from fairdraft.speculators.on_device import DeviceFeatures, DeviceState
from fairdraft.speculators.proposal import DraftState, Guesses, Proposal

#: step (1 for the first), tokens before it and rows of the block, int64 [N] each, to [N, ...]
AtStep = Callable[[int, Tensor, Tensor | slice], Tensor]


@dataclass
class BlockLaws:
    """What a block says of its drafts.

    Attributes:
        logits: Of a step over the target's ids [N, V].
        confidence: Guesses of acceptance, see `DraftChain` [N]; None for none.
        candidates: As in `DraftChain.draw`.
    """

    logits: AtStep
    confidence: AtStep | None = None
    candidates: Tensor | None = None


class DflashSpeculator(HeadSpeculator):
    """Drafts with a DFlash head.

    Invariant: of a row with n decided tokens, slots 0 to n - 2 of the head hold keys and values
    made of the target's states. Slots past them may hold a block's; every round writes those again
    before it reads them.
    """

    name = "dflash"
    head: CachedBlocks

    def __init__(
        self,
        head: CachedBlocks,
        num_speculative_tokens: int,
        vocab_size: int,
        *,
        greedy: bool = False,
        confidence_threshold: float = 0.0,
    ) -> None:
        """Arguments as in `HeadSpeculator`.

        Raises:
            ValueError: If more drafts are asked for than a block has.
        """
        num_drafts = head.head.config.num_drafts
        if num_speculative_tokens > num_drafts:
            raise ValueError(
                f"num_speculative_tokens={num_speculative_tokens}: the {self.name} head drafts "
                f"blocks of {num_drafts} tokens; ask for at most {num_drafts}"
            )
        super().__init__(
            head,
            num_speculative_tokens,
            vocab_size,
            greedy=greedy,
            confidence_threshold=confidence_threshold,
        )

    @property
    def num_modules(self) -> int:
        """0: nothing goes on from an output."""
        return 0

    def describe(self, max_model_len: int) -> str:
        """As `HeadSpeculator.describe`."""
        num_drafts = self.head.head.config.num_drafts
        return f"blocks of {num_drafts} drafts, {super().describe(max_model_len)}"

    def propose(self, state: DraftState) -> Guesses:
        """Drafts `max_draft_tokens` for each row; none past the head's own context.

        Noise:
            One DRAFT race for each draft (TARGET under common noise), none when greedy.
        """
        anchor = state.num_decided
        counts = self._num_drafts(anchor, state.max_draft_tokens)
        most = int(counts.max(initial=0))
        if not most:
            return Proposal.empty(state.num_rows)
        last = torch.from_numpy(state.token_ids[np.arange(len(anchor)), anchor - 1])
        start = np.minimum(anchor - 1, self.head.num_slots)
        hidden = self.head.block(last, start)[:, :most]
        return self._draw(state, counts, hidden, last)

    def _num_drafts(self, num_decided: np.ndarray, max_draft_tokens: np.ndarray) -> np.ndarray:
        # a block begins at slot num_decided - 1
        return np.where(num_decided - 1 <= self.head.num_slots, max_draft_tokens, 0)

    def draft_on_device(self, state: DeviceState) -> None:
        """As `DeviceSpeculator.draft_on_device`."""
        start = (state.num_decided - 1).clamp(max=self.head.num_slots)
        drafts = state.last_two[:, 1]
        hidden = self.head.block_on_device(drafts, start, read_length=state.read_length)
        laws = self._laws(hidden[:, : state.depth])
        for step in range(1, state.depth + 1):
            drafts = state.draw(laws.logits(step, drafts, slice(None)), step)

    def observe_on_device(self, features: DeviceFeatures) -> None:
        """As `DeviceReader.observe_on_device`."""
        fused = self._fused_on_device(features)
        self.head.extend_on_device(fused, features.start, read_length=features.read_length)

    def _draw(self, state: DraftState, counts: np.ndarray, hidden: Tensor, last: Tensor) -> Guesses:
        """Draws the drafts of a round.

        Args:
            state: The round.
            counts: Drafts of each row [B], int64.
            hidden: Outputs of the queries that draft [B, K, H].
            last: Last decided tokens, int64 [B].
        """
        laws, device = self._laws(hidden), hidden.device

        def at_step(read: AtStep, step: int, before: np.ndarray, rows: np.ndarray) -> Tensor:
            chosen = torch.from_numpy(rows)
            tokens = last[chosen] if step == 1 else torch.from_numpy(before)[chosen]
            is_whole = len(rows) == len(hidden)
            return read(step, tokens.to(device), slice(None) if is_whole else chosen.to(device))

        def next_logits(step: int, before: np.ndarray, rows: np.ndarray) -> Tensor:
            return at_step(laws.logits, step, before, rows)

        def confidence(step: int, before: np.ndarray, rows: np.ndarray) -> np.ndarray:
            assert laws.confidence is not None
            return at_step(laws.confidence, step, before, rows).cpu().numpy()

        guess = None if laws.confidence is None else confidence
        return self._chain.draw(state, counts, next_logits, guess, laws.candidates)

    def _laws(self, hidden: Tensor) -> BlockLaws:
        """What the outputs of a block's queries [B, K, H] say of its drafts."""
        logits = self.head.logits(hidden)
        return BlockLaws(lambda step, before, rows: self._law(logits[rows, step - 1]))

    def _best_ids(self, logits: Tensor, count: int) -> Tensor:
        """The head's numbers of the best ids that are the target's [..., count], best first."""
        is_known = self.head.head.target_ids < self.vocab_size
        return best_ids(logits.float().where(is_known, -torch.inf), count)

    def observe(self, features: Features) -> None:
        """Keeps keys and values of newly decided tokens."""
        num_slots = self.head.num_slots
        start = np.minimum(features.start, num_slots)
        counts = np.minimum(features.num_tokens, num_slots - start)
        if counts.any():
            fused = self._fused(features, counts, int(counts.max()))
            self.head.extend(fused, start, counts, features.first_row)
