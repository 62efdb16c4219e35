"""What the frozen target says about a batch of windows, computed as it is needed.

Axes: B windows, W ids of a window, L slots, H width of the target, G key/value heads, D head size,
C draft ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairdraft.models import CausalLM
from fairdraft.models.cache import kept_layers


class Teacher:
    """States and laws of the target over windows, without a gradient.

    Args:
        target: The target.
        target_ids: Ids that heads can draft, int64 [C].
        memory_layers: Layers whose keys and values are wanted, ascending from 0.
    """

    def __init__(
        self, target: CausalLM, target_ids: Tensor, memory_layers: Sequence[int] = ()
    ) -> None:
        self._memory_layers = memory_layers
        self._network: Any = target.model.eval().requires_grad_(False)
        self._target_ids = target_ids.to(target.device)
        self._is_whole = len(target_ids) == target.padded_vocab_size
        self._vocab_size = target.vocab_size

    @torch.no_grad()
    def __call__(
        self, window: Tensor, layers: Sequence[int], length: int
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Runs the target over windows.

        Args:
            window: int64 [B, W].
            layers: States wanted, as transformers numbers them.
            length: L.

        Returns:
            The states at the first L positions, one [B, L, H] a layer, followed by keys and values
            there [B, G, L, D] of each memory layer, and the law after each of the positions 1 to
            W - 1 over the draft ids [B, W - 1, C], float32; what is missing to 1 is the mass of the
            other ids.
        """
        use_cache = bool(self._memory_layers)
        found = self._network(input_ids=window, use_cache=use_cache, output_hidden_states=True)
        states = tuple(found.hidden_states[layer][:, :length] for layer in layers)
        for layer in self._memory_layers:
            kept = kept_layers(found)[layer]
            states += (kept.keys[:, :, :length], kept.values[:, :, :length])
        logits = found.logits[:, 1:, : self._vocab_size].float()
        if self._is_whole:
            return states, logits.softmax(-1)
        norm = logits.logsumexp(-1, keepdim=True)
        return states, (logits[..., self._target_ids] - norm).exp()
