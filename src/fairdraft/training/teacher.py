"""What the frozen target says about a batch of windows, computed as it is needed.

Axes: B windows, W ids of a window, L slots, H width of the target, C draft ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairdraft.models import CausalLM


class Teacher:
    """States and laws of the target over windows, without a gradient.

    Args:
        target: The target.
        target_ids: Ids that heads can draft, int64 [C].
    """

    def __init__(self, target: CausalLM, target_ids: Tensor) -> None:
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
            The states at the first L positions, one [B, L, H] a layer, and the law after each of
            the positions 1 to W - 1 over the draft ids [B, W - 1, C], float32; what is missing to
            1 is the mass of the other ids.
        """
        found = self._network(input_ids=window, use_cache=False, output_hidden_states=True)
        states = tuple(found.hidden_states[layer][:, :length] for layer in layers)
        logits = found.logits[:, 1:, : self._vocab_size].float()
        if self._is_whole:
            return states, logits.softmax(-1)
        norm = logits.logsumexp(-1, keepdim=True)
        return states, (logits[..., self._target_ids] - norm).exp()
