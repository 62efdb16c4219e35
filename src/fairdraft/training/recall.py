"""Losses of a head that attends to its target's keys and values, which stay as they are.

Step i continues every slot by i drafts at once, as a round does: the slot stays where it is, its
queries see the target's keys and values up to there, and it reads what step i - 1 gave.

Axes: B windows, W ids of a window, L slots, T steps, G key/value heads, D head size, C draft ids.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from fairdraft.speculators.heads import SharedKvHead
from fairdraft.training.losses import BatchLosses, Losses
from fairdraft.training.settings import Settings
from fairdraft.training.ttt import draft_losses


def recall_losses(
    head: SharedKvHead,
    window: Tensor,
    state: Tensor,
    memory: Mapping[int, tuple[Tensor, Tensor]],
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
        state: The target's last, at the window's first L positions [B, L, H].
        memory: Layer of the target to its keys and values there, each [B, G, L, D].
        probs: As in `ttt_losses`.
        angles: The head's, of the positions 0 to L - 1.
        num_drafts: T.
        decay: Weight of step i is decay^i.
        tv_weight: Weight of 1 - sum_x min(p, q).
        counted: As in `ttt_losses`.
    """
    length = state.shape[1]

    def recall(layer: int, query: Tensor) -> Tensor:
        keys, values = (kept.to(query.dtype) for kept in memory[layer])
        attended = functional.scaled_dot_product_attention(
            query, keys, values, is_causal=True, enable_gqa=True
        )
        return attended.transpose(1, 2)

    hidden, outputs = head.fuse((state,)), []
    for step in range(num_drafts):
        tokens = window[:, 1 + step : 1 + step + length]
        outputs.append(head.recall(tokens, hidden, angles, recall))
        hidden = head.carry(outputs[-1])
    return draft_losses(head, outputs, probs, decay=decay, tv_weight=tv_weight, counted=counted)


class RecallLosses(BatchLosses[SharedKvHead]):
    """Losses of a head over its target's keys over batches; arguments as in `BatchLosses`."""

    def __init__(self, head: SharedKvHead, settings: Settings, *, compiled: bool) -> None:
        super().__init__(head, settings, recall_losses, settings.length, compiled=compiled)

    def __call__(
        self,
        window: Tensor,
        states: tuple[Tensor, ...],
        probs: Tensor,
        generator: torch.Generator,
        counted: Tensor | None = None,
    ) -> Losses:
        """As `recall_losses`; keys and values follow the state, and nothing is drawn."""
        state, *kept = states
        layers = sorted(set(self._head.config.memory_layers))
        memory = dict(zip(layers, zip(kept[::2], kept[1::2], strict=True), strict=True))
        num_drafts = self._settings.num_drafts
        return self._of(window, state, memory, probs, num_drafts=num_drafts, counted=counted)
