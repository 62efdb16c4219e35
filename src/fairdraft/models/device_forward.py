"""A forward whose positions stay on the device, so that a CUDA graph can hold it.

Axes: B rows of the batch, Q queries, V the width of the model's output.
"""

from __future__ import annotations

from torch import Tensor

from fairdraft.models.cache import RaggedCache
from fairdraft.models.causal_lm import CausalLM
from fairdraft.models.masks import additive_mask

__all__ = ["forward_on_device"]


def forward_on_device(
    model: CausalLM,
    token_ids: Tensor,
    positions: Tensor,
    cache: RaggedCache,
    *,
    read_length: int,
    last_only: bool = False,
    hidden_states: bool = False,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Does what `CausalLM.forward` does, without a look at any value and without a check.

    Token i of row b has position positions[b, i], sees slots 0..positions[b, i] and overwrites
    that slot. A position past the context is computed in a slot that nobody reads, and its logits
    mean nothing.

    Args:
        model: The network.
        token_ids: int64 [B, Q] on the device; ids of the embedding.
        positions: int64 [B, Q] on the device, rising along Q.
        cache: Of this model; its rows 0..B-1 are used, and it must hold `read_length` slots.
        read_length: Slots that attention reads; above every position inside the context.
        last_only: Whether only the last query's logits are wanted.
        hidden_states: Whether the hidden states of every layer are.

    Returns:
        float32 logits [B, Q, V], or [B, V] with `last_only`, and the hidden states that were asked
        for, each [B, Q, hidden].
    """
    slots = positions.clamp(max=cache.scratch_slot)
    seen = positions.clamp(max=model.max_model_len - 1)
    length = cache.begin(slots, 0, read_length)
    masks = {
        layer_type: additive_mask(seen, length, kind, model.dtype)
        for layer_type, kind in model.kinds.items()
    }
    logits, states = model.call(
        token_ids,
        seen,
        masks if len(masks) > 1 else next(iter(masks.values())),
        cache,
        keep_last=last_only,
        hidden_states=hidden_states,
    )
    return (logits[:, -1] if last_only else logits).float(), states or ()
