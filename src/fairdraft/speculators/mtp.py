"""Multi-token prediction: modules of the target that draft from its last state.

A head of one module goes on from its own output, as `recurrent` says. Of a head of several, module
k drafts token k: its slot j reads what module k - 1 gave at slot j, the target's state for the
first, and the token at j + k. With n decided tokens its slots up to n - k - 1 read decided tokens
alone; slots n - k to n - 2 read the drafts 1 to k - 1, and the last of them gives the law of draft
k. They are run again, from true states, once their tokens are decided.

Meets (a): each draft is sampled by the shared sampler from the logits that are handed on as q; they
depend on decided tokens, the target's states at them, and earlier drafts. Meets (b): how many
drafts a row gets follows from its limits, and from each draft's law before it is drawn. Draft k is
the token at position n + k - 1: there its noise sits, though every module stops at slot n - 2.
Source: DeepSeek-AI 2024 (DeepSeek-V3).

Axes: B rows, Q tokens of a block, K drafted, H width of the head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraft.speculators.features import Features
from fairdraft.speculators.head import HeadSpeculator
from fairdraft.speculators.heads import CachedHead
from fairdraft.speculators.on_device import DeviceFeatures, DeviceState
from fairdraft.speculators.proposal import DraftState, Guesses
from fairdraft.speculators.recurrent import RecurrentSpeculator


class MtpSpeculator(RecurrentSpeculator):
    """Drafts with a single module, applied again to its own output."""

    name = "mtp"

    def describe(self, max_model_len: int) -> str:
        """As `HeadSpeculator.describe`."""
        return f"one module used again, {super().describe(max_model_len)}"


class MtpModulesSpeculator(HeadSpeculator):
    """Drafts with one module a draft.

    Invariant: of a row with n decided tokens, slots 0 to n - k - 1 of module k hold keys and
    values of decided tokens, and its last outputs there are kept. Slots past them may hold a
    draft's; every round writes those again before it reads them.
    """

    name = "mtp"
    head: CachedHead

    @property
    def num_modules(self) -> int:
        """K: a module that drafts nothing is not run."""
        return self.num_speculative_tokens

    def describe(self, max_model_len: int) -> str:
        """As `HeadSpeculator.describe`."""
        held = self.head.head.num_modules
        return f"{self.num_modules} of {held} modules, {super().describe(max_model_len)}"

    def propose(self, state: DraftState) -> Guesses:
        """Drafts `max_draft_tokens` for each row; none past the head's own context.

        A row with a single decided token gets none: the target has no state before it.

        Noise:
            One DRAFT race for each draft (TARGET under common noise), none when greedy.
        """
        anchor = state.num_decided
        counts = self._num_drafts(anchor, state.max_draft_tokens)
        kept = self._kept[0].at(anchor - 2)
        outputs = kept.new_empty(len(kept), 0, kept.shape[1])
        drafts: list[np.ndarray] = []

        def next_logits(step: int, before: np.ndarray, rows: np.ndarray) -> Tensor:
            nonlocal outputs
            if step == 1:
                hidden = kept
            else:
                drafts.append(before)
                num_tokens = np.zeros(len(anchor), np.int64)
                num_tokens[rows] = step - 1
                # the drafts stand where a block from the last decided token on would have its own
                tokens = np.stack(drafts, 1)
                outputs, start, num_run = self._run(
                    step, np.where(tokens < 0, 0, tokens), outputs, anchor - 1, num_tokens
                )
                last = torch.from_numpy(np.maximum(num_run - 1, 0)).to(outputs.device)
                hidden = outputs[torch.arange(len(last), device=last.device), last]
            return self._law(self.head.logits(self._chosen(hidden, rows), step - 1))

        return self._chain.draw(state, counts, next_logits)

    def _num_drafts(self, num_decided: np.ndarray, max_draft_tokens: np.ndarray) -> np.ndarray:
        # every draft is the output of slot num_decided - 2
        has_slot = (num_decided >= 2) & (num_decided - 2 < self.head.num_slots)
        return np.where(has_slot, max_draft_tokens, 0)

    def observe(self, features: Features) -> None:
        """Runs the slots of every module whose tokens are decided now."""
        counts, first_row = features.num_tokens, features.first_row
        if not counts.any():
            return
        width = int(counts.max())
        is_real = np.arange(width) < counts[:, None]
        tokens = np.where(is_real, features.next_token_ids[:, :width], 0)
        outputs = self._fused(features, counts, width)
        given = []
        for module in range(1, self.num_modules + 1):
            given.append(self._run(module, tokens, outputs, features.start, counts, first_row))
            outputs = given[-1][0]
        # only now: a long block overwrites the outputs that the next module goes on from
        for kept, (outputs, start, num_run) in zip(self._kept, given, strict=True):
            kept.put(outputs, start, num_run, first_row)

    def draft_on_device(self, state: DeviceState) -> None:
        """As `DeviceSpeculator.draft_on_device`."""
        anchor = state.num_decided
        hidden = self._kept[0].at_on_device(anchor - 2)
        outputs, drafts = hidden[:, None][:, :0], list[Tensor]()
        for step in range(1, state.depth + 1):
            if step > 1:
                tokens, start = torch.stack(drafts, 1), anchor - 1
                outputs = self._run_on_device(step, tokens, outputs, start, state.read_length)
                hidden = outputs[:, -1]
            law = self._law(self.head.logits(hidden, step - 1))
            drafts.append(state.draw(law, step))

    def observe_on_device(self, features: DeviceFeatures) -> None:
        """As `DeviceReader.observe_on_device`."""
        start, length = features.start, features.read_length
        tokens, outputs = features.next_token_ids.clamp(min=0), self._fused_on_device(features)
        given = []
        for module in range(1, self.num_modules + 1):
            outputs = self._run_on_device(module, tokens, outputs, start, length)
            given.append(outputs)
        for module, (kept, outputs) in enumerate(zip(self._kept, given, strict=True)):
            kept.put_on_device(outputs, start - module)

    def _run_on_device(
        self, module: int, tokens: Tensor, before: Tensor, start: Tensor, read_length: int
    ) -> Tensor:
        """`_run` of whole blocks [B, Q, H]; slots before the text stay in their columns."""
        first = start - (module - 1)
        if module > 1:
            kept = self._kept[module - 2].at_on_device(first)[:, None]
            # one slot further back
            before = torch.cat([kept, before], 1)[:, : tokens.shape[1]]
        return self.head.forward_on_device(
            tokens, before, first, read_length=read_length, module=module - 1
        )

    def _run(
        self,
        module: int,
        tokens: np.ndarray,
        before: Tensor,
        start: np.ndarray,
        counts: np.ndarray,
        first_row: int = 0,
    ) -> tuple[Tensor, np.ndarray, np.ndarray]:
        """Runs the slots of a module that read given tokens.

        Args:
            module: k, 1 for the first.
            tokens: At positions `start` + 1 on [B, Q], int64.
            before: Of the first module the target's states at `start` on [B, Q, H]; of a later one
                what the module before gave for these tokens [B, Q or Q - 1, H].
            start: [B].
            counts: Tokens of each row [B].
            first_row: Row of the batch that the first row is.

        Returns:
            What the module gave [B, Q, H], and of each row the first slot and their number [B].
        """
        width = tokens.shape[1]
        first = start - module + 1
        skipped = np.maximum(-first, 0)
        slots = np.clip(first, 0, self.head.num_slots)
        num_run = np.clip(counts - skipped, 0, self.head.num_slots - slots)
        if module > 1:
            # one slot further back, unless the text begins there
            kept = self._kept[module - 2].at(first, first_row)[:, None]
            shifted = torch.cat([kept, before], 1)[:, :width]
            if skipped.any():
                aligned = torch.cat([before, kept], 1)[:, :width]
                is_cut = torch.from_numpy(skipped > 0).to(kept.device)
                shifted = torch.where(is_cut[:, None, None], aligned, shifted)
            before = shifted
        if skipped.any():
            columns = np.minimum(skipped[:, None] + np.arange(width), width - 1)
            tokens = np.take_along_axis(tokens, columns, 1)
        outputs = self.head.forward(
            torch.from_numpy(tokens), before, slots, num_run, first_row, module - 1
        )
        return outputs, slots, num_run


def new_mtp(
    head: CachedHead,
    num_speculative_tokens: int,
    vocab_size: int,
    *,
    greedy: bool = False,
    confidence_threshold: float = 0.0,
) -> MtpSpeculator | MtpModulesSpeculator:
    """The speculator that a head calls for.

    Args:
        head: With an `MtpHead`.
        num_speculative_tokens: K.
        vocab_size: V.
        greedy, confidence_threshold: As in `HeadSpeculator`.

    Raises:
        ValueError: If several modules are asked for more drafts than there are modules.
    """
    options: Any = {"greedy": greedy, "confidence_threshold": confidence_threshold}
    num_modules = head.head.num_modules
    if num_modules == 1:
        return MtpSpeculator(head, num_speculative_tokens, vocab_size, **options)
    if num_speculative_tokens > num_modules:
        raise ValueError(
            f"num_speculative_tokens={num_speculative_tokens}: the head has {num_modules} "
            f"modules, which draft one token each; ask for at most {num_modules}"
        )
    return MtpModulesSpeculator(head, num_speculative_tokens, vocab_size, **options)
