"""Multi-token prediction over the target's own keys and values.

With n decided tokens every step of a round stands at position n - 2, the last that the target has a
state for, and attends to the target's slots 0 to n - 2; see `heads.shared_kv`. Meets (a): each
draft is sampled by the shared sampler from the logits that are handed on as q; they depend on
decided tokens, the target's states, keys and values at them, and earlier drafts. Meets (b): how
many drafts a row gets follows from its limits, and from each draft's law before it is drawn. Draft
i is the token at position n + i - 1: there its noise sits, though no step's position moves.

Axes: B rows, H width of the head.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairdraft.speculators.features import Features
from fairdraft.speculators.head import HeadSpeculator
from fairdraft.speculators.heads import RecallingHead
from fairdraft.speculators.on_device import DeviceFeatures, DeviceState
from fairdraft.speculators.proposal import DraftState, Guesses


class SharedKvSpeculator(HeadSpeculator):
    """Drafts with a head that has no keys and values of its own.

    Invariant: of a row with n decided tokens, the target's last state at position n - 2 is kept.
    """

    name = "shared_kv_mtp"
    head: RecallingHead

    def describe(self, max_model_len: int) -> str:
        """As `HeadSpeculator.describe`."""
        layers = " and ".join(map(str, self.head.head.config.memory_layers))
        return f"over the target's keys of layer {layers}, {super().describe(max_model_len)}"

    def propose(self, state: DraftState) -> Guesses:
        """Drafts `max_draft_tokens` for each row.

        A row with a single decided token gets none: the target has no state before it.

        Noise:
            One DRAFT race for each draft (TARGET under common noise), none when greedy.
        """
        anchor, memory = state.num_decided, state.memory
        assert memory is not None, "a round of an engine gives the target's memory"
        counts = self._num_drafts(anchor, state.max_draft_tokens)
        tokens = state.token_ids[np.arange(state.num_rows), anchor - 1]
        angles = self.head.angles(torch.from_numpy(np.maximum(anchor - 2, 0)))
        outputs = self._kept[0].at(anchor - 2)

        def next_logits(step: int, before: np.ndarray, rows: np.ndarray) -> Tensor:
            nonlocal outputs
            hidden = outputs if step == 1 else self.head.carry(outputs)
            # rows without a draft here hold the placeholder
            read = tokens if step == 1 else np.where(before < 0, 0, before)
            outputs = self.head.forward(torch.from_numpy(read), hidden, angles, memory)
            return self._law(self.head.logits(self._chosen(outputs, rows)))

        return self._chain.draw(state, counts, next_logits)

    def draft_on_device(self, state: DeviceState) -> None:
        """As `DeviceSpeculator.draft_on_device`."""
        last = state.num_decided - 2
        angles = self.head.angles(last.clamp(min=0))
        hidden, drafts = self._kept[0].at_on_device(last), state.last_two[:, 1]
        for step in range(1, state.depth + 1):
            outputs = self.head.forward(drafts, hidden, angles, state.memory)
            drafts = state.draw(self._law(self.head.logits(outputs)), step)
            hidden = self.head.carry(outputs)

    def observe_on_device(self, features: DeviceFeatures) -> None:
        """As `DeviceReader.observe_on_device`."""
        self._kept[0].put_on_device(self._fused_on_device(features), features.start)

    def _num_drafts(self, num_decided: np.ndarray, max_draft_tokens: np.ndarray) -> np.ndarray:
        return np.where(num_decided < 2, 0, max_draft_tokens)

    def observe(self, features: Features) -> None:
        """Keeps the target's last states at newly decided tokens."""
        states = self.head.fuse(features.states)
        self._kept[0].put(states, features.start, features.num_tokens, features.first_row)
