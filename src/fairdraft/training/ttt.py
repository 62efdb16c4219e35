"""Training-time test: the head runs on its own output, as it will while drafting.

Step i continues every slot by i drafts at once. Of a head of one layer its query sees the slots of
step 0 up to its own, made of the target's states, and of each later step only the slot it came
through: exactly what the cache holds when a round has drafted i tokens (Li et al. 2025, EAGLE-3,
section 3). Of a head of several modules step i is module i, whose query sees that module's slots up
to its own (DeepSeek-AI 2024, DeepSeek-V3, section 2.2).

Axes: B windows, W ids of a window, L slots, T steps, H width, C draft ids, V target ids.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fairdraft.speculators.heads import Head, SlotHead
from fairdraft.training.losses import BatchLosses, Losses, distances, mean_of
from fairdraft.training.settings import Settings


class StepAttention:
    """Attention of successive steps over the slots of step 0 and the diagonal of later ones.

    Args:
        scale: Of the scores.
    """

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Takes one step: query [B, heads, L, D], key and value [B, groups, L, D]."""
        share, length = query.shape[1] // key.shape[1], query.shape[2]
        self._keys.append(key.repeat_interleave(share, 1))
        self._values.append(value.repeat_interleave(share, 1))
        first, later = self._keys[0], self._keys[1:]
        scores = [(query @ first.transpose(2, 3)).float()]
        future = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
        scores[0] = scores[0].masked_fill(future, -math.inf)
        scores += [(query * keys).sum(-1, keepdim=True).float() for keys in later]
        weights = (torch.cat(scores, -1) * self._scale).softmax(-1).to(query.dtype)
        attended = weights[..., :length] @ self._values[0]
        for index, values in enumerate(self._values[1:]):
            attended = attended + weights[..., length + index, None] * values
        return attended.transpose(1, 2)


def ttt_losses(
    head: SlotHead,
    window: Tensor,
    states: tuple[Tensor, ...],
    probs: Tensor,
    angles: tuple[Tensor, Tensor],
    *,
    num_drafts: int,
    decay: float,
    tv_weight: float,
    counted: Tensor | None = None,
) -> Losses:
    """Losses of a batch of windows, as `draft_losses` says.

    Args:
        head: In training mode, sharing the target's matrices.
        window: Ids, int64 [B, W] with W = L + T.
        states: The target's, at the window's first L positions, one [B, L, H] a feature layer.
        probs: The target's law after each of the positions 1 to W - 1, restricted to the draft
            vocabulary and not renormalized [B, W - 1, C].
        angles: The head's, of the positions 0 to W - 1.
        num_drafts: T.
        decay: Weight of step i is decay^i.
        tv_weight: Weight of 1 - sum_x min(p, q).
        counted: Which of those laws count, bool [B, W - 1]; None for all.
    """
    outputs = step_outputs(head, window, states, angles, num_drafts)
    return draft_losses(head, outputs, probs, decay=decay, tv_weight=tv_weight, counted=counted)


def draft_losses(
    head: Head,
    outputs: Sequence[Tensor],
    probs: Tensor,
    *,
    decay: float,
    tv_weight: float,
    counted: Tensor | None,
) -> Losses:
    """Losses of what the slots of each step give.

    The cross-entropy counts each slot by the mass of p that the draft vocabulary holds; with the
    whole vocabulary it is the published one.

    Args:
        head: Makes logits of them.
        outputs: T times [B, L, H].
        probs, decay, tv_weight, counted: As in `ttt_losses`.
    """
    length = outputs[0].shape[1]
    entropies, overlaps = [], []
    total = outputs[0].new_zeros((), dtype=torch.float32)
    for step, hidden in enumerate(outputs):
        module = step if head.num_modules > 1 else 0
        log_q = head.logits(hidden, module).float().log_softmax(-1)
        found = distances(probs[:, step : step + length], log_q)
        here = None if counted is None else counted[:, step : step + length]
        entropy, overlap = (mean_of(distance, here) for distance in found)
        total = total + decay**step * (entropy + tv_weight * (1 - overlap))
        entropies.append(entropy.detach())
        overlaps.append(overlap.detach())
    return Losses(total, torch.stack(entropies), torch.stack(overlaps))


def step_outputs(
    head: SlotHead,
    window: Tensor,
    states: tuple[Tensor, ...],
    angles: tuple[Tensor, Tensor],
    num_drafts: int,
) -> list[Tensor]:
    """What the slots of each step give, T times [B, L, H]; the arguments are `ttt_losses`'s."""
    length = window.shape[1] - num_drafts
    hidden = head.fuse(states)
    attend = StepAttention(head.config.head_dim**-0.5)
    cos, sin = angles
    outputs = []
    for step in range(num_drafts):
        tokens = window[:, 1 + step : 1 + step + length]
        if head.num_modules > 1:
            # a module's slots stay where they are, and it sees none of another's
            module, here = step, slice(length)
            attend = StepAttention(head.config.head_dim**-0.5)
        else:
            module, here = 0, slice(step, step + length)
        hidden = head(tokens, hidden, (cos[:, :, here], sin[:, :, here]), attend, module)
        outputs.append(hidden)
    return outputs


class SlotLosses(BatchLosses[SlotHead]):
    """Losses of a head of slots over batches; arguments as in `BatchLosses`."""

    def __init__(self, head: SlotHead, settings: Settings, *, compiled: bool) -> None:
        super().__init__(head, settings, ttt_losses, settings.width, compiled=compiled)

    def __call__(
        self,
        window: Tensor,
        states: tuple[Tensor, ...],
        probs: Tensor,
        generator: torch.Generator,
        counted: Tensor | None = None,
    ) -> Losses:
        """As `ttt_losses`, which draws nothing."""
        num_drafts = self._settings.num_drafts
        return self._of(window, states, probs, num_drafts=num_drafts, counted=counted)
