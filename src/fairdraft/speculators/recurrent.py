"""Drafting with one layer that goes on from its own output.

Slot j of the head reads the target's state at position j and the token at j + 1, and gives the law
of the token at j + 2. Past the decided tokens a slot reads what the slot before it gave. Meets (a):
each draft is sampled by the shared sampler from the logits that are handed on as q; they depend on
decided tokens, the target's states at them, and earlier drafts. Meets (b): how many drafts a row
gets follows from its limits, and from each draft's law before it is drawn. Draft i is the token at
position num_decided + i - 1: there its noise sits, whatever slot of the head computed it.

Axes: B rows, Q tokens of a block, H width of the head.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairdraft.speculators.features import Features
from fairdraft.speculators.head import HeadSpeculator
from fairdraft.speculators.heads import CachedHead
from fairdraft.speculators.on_device import DeviceFeatures, DeviceState
from fairdraft.speculators.proposal import DraftState, Guesses


class RecurrentSpeculator(HeadSpeculator):
    """Drafts with a head of one layer.

    Invariant: of a row with n decided tokens, slots 0 to n - 2 of the head hold keys and values
    made of the target's states, and the head's last outputs are kept. A round that is redone finds
    them unchanged, since a slot of a decided token is never written to otherwise.
    """

    head: CachedHead

    def propose(self, state: DraftState) -> Guesses:
        """Drafts `max_draft_tokens` for each row, fewer where the head's own context ends.

        A row with a single decided token gets none: the target has no state before it.

        Noise:
            One DRAFT race for each draft (TARGET under common noise), none when greedy.
        """
        anchor = state.num_decided
        counts = self._num_drafts(anchor, state.max_draft_tokens)
        hidden = self._kept[0].at(anchor - 2)

        def next_logits(step: int, before: np.ndarray, rows: np.ndarray) -> Tensor:
            nonlocal hidden
            if step > 1:
                hidden = self._run_drafts(before, hidden, anchor + step - 3, rows)
            return self._law(self.head.logits(self._chosen(hidden, rows)))

        return self._chain.draw(state, counts, next_logits)

    def draft_on_device(self, state: DeviceState) -> None:
        """As `DeviceSpeculator.draft_on_device`."""
        anchor = state.num_decided
        hidden = self._kept[0].at_on_device(anchor - 2)
        for step in range(1, state.depth + 1):
            drafts = state.draw(self._law(self.head.logits(hidden)), step)
            if step < state.depth:
                hidden = self.head.forward_on_device(
                    drafts[:, None],
                    hidden[:, None],
                    anchor + (step - 2),
                    read_length=state.read_length,
                )[:, 0]

    def observe_on_device(self, features: DeviceFeatures) -> None:
        """As `DeviceReader.observe_on_device`."""
        outputs = self.head.forward_on_device(
            features.next_token_ids.clamp(min=0),
            self._fused_on_device(features),
            features.start,
            read_length=features.read_length,
        )
        self._kept[0].put_on_device(outputs, features.start)

    def observe(self, features: Features) -> None:
        """Runs the slots of newly decided tokens."""
        num_slots = self.head.num_slots
        start = np.minimum(features.start, num_slots)
        counts = np.minimum(features.num_tokens, num_slots - start)
        if not counts.any():
            return
        width = int(counts.max())
        is_real = np.arange(width) < counts[:, None]
        tokens = torch.from_numpy(np.where(is_real, features.next_token_ids[:, :width], 0))
        fused = self._fused(features, counts, width)
        outputs = self.head.forward(tokens, fused, start, counts, features.first_row)
        self._kept[0].put(outputs, start, counts, features.first_row)

    def _num_drafts(self, num_decided: np.ndarray, max_draft_tokens: np.ndarray) -> np.ndarray:
        # draft i is the output of slot num_decided + i - 3
        room = self.head.num_slots - num_decided + 2
        counts = np.maximum(np.minimum(max_draft_tokens, room), 0)
        counts[num_decided < 2] = 0
        return counts

    def _run_drafts(
        self, drafts: np.ndarray, hidden: Tensor, slot: np.ndarray, rows: np.ndarray
    ) -> Tensor:
        """Runs the slot of one draft of each row; returns the outputs [B, H]."""
        counts = np.zeros(len(slot), np.int64)
        counts[rows] = 1
        start = np.clip(slot, 0, self.head.num_slots)
        start[rows] = slot[rows]
        # rows without a draft here hold the placeholder
        tokens = torch.from_numpy(np.where(drafts < 0, 0, drafts))[:, None]
        return self.head.forward(tokens, hidden[:, None], start, counts)[:, 0]
