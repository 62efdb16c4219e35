"""A DFlash head written out for a CPU, as `fused` does for heads of slots.

Keys and values of the context come out of one product for all layers. Axes: B rows, Q positions or
queries, T drafts of a block, H width, G key/value heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairdraft.speculators.heads.dflash import AttendLayer, DflashHead, DflashLayer
from fairdraft.speculators.heads.fused import (
    FusedLayer,
    Normed,
    head_norms,
    normed_heads,
    product,
    rotated_heads,
)


class FusedBlocks:
    """Computes what a `DflashHead` computes.

    Args:
        head: float32 on a CPU, joined to its target; its weights must not change after.
    """

    def __init__(self, head: DflashHead) -> None:
        config = head.config
        layers = [head.layer(i) for i in range(config.num_layers)]
        attentions = [layer.self_attn for layer in layers]
        self._head_dim, self._num_layers = config.head_dim, config.num_layers
        self._fc, self._lm_head = product(head.fc), product(head.lm_head)
        self._hidden_norm, self._final = Normed(head.hidden_norm), Normed(head.norm)
        self._context = product(
            *(attention.k_proj for attention in attentions),
            *(attention.v_proj for attention in attentions),
        )
        groups = [config.num_key_value_heads] * config.num_layers
        self._key_norms = head_norms([attention.k_norm for attention in attentions], groups)
        self._epsilon = config.rms_norm_eps
        self._inputs = [Normed(layer.input_layernorm) for layer in layers]
        self._layers = [
            FusedLayer(head, layer.self_attn, layer.mlp, layer.post_attention_layernorm)
            for layer in layers
        ]
        self.embed, self.drafting = head.embed, head.drafting

    def fuse(self, states: tuple[Tensor, ...]) -> Tensor:
        """As `Head.fuse`."""
        return self._hidden_norm(self._fc(torch.cat(states, -1)))

    def context(self, fused: Tensor, angles: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """As `DflashHead.context`."""
        shape = (*fused.shape[:2], -1, self._head_dim)
        keys, values = self._context(fused).view(shape).transpose(1, 2).chunk(2, 1)
        keys = rotated_heads(normed_heads(keys, self._key_norms, self._epsilon), angles)
        count = self._num_layers
        return list(zip(keys.chunk(count, 1), values.chunk(count, 1), strict=True))

    def block(
        self, embedded: Tensor, angles: tuple[Tensor, Tensor], attend_layer: AttendLayer
    ) -> Tensor:
        """As `DflashHead.block`; `angles` are [B or 1, 1, Q, D]."""
        hidden = embedded
        for i, (normed, layer) in enumerate(zip(self._inputs, self._layers, strict=True)):
            hidden = layer(normed(hidden), hidden, angles, attend_layer(i))
        return self._final(hidden)

    def logits(self, hidden: Tensor, module: int = 0) -> Tensor:
        """As `Head.logits`, of normed outputs."""
        return self._lm_head(hidden)


def is_written_out(head: DflashHead) -> bool:
    """Whether a head is made of the layers above, and not of a subclass's."""
    return all(type(layer) is DflashLayer for layer in head.layers)
