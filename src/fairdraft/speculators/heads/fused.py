"""The head's layer written out for a CPU: projections of one input are one packed product.

A step of a small head is bound by the number of calls. The numbers are those of the network up to
rounding. Axes: B rows, Q slots, H width, G key/value heads, D head size.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from fairdraft.models.packing import Product
from fairdraft.speculators.heads.network import Attend, Eagle3Head, Layer


class FusedHead:
    """Computes what an `Eagle3Head` computes, in fewer calls; its weights must not change after.

    Args:
        head: float32 on a CPU, joined to its target.
    """

    def __init__(self, head: Eagle3Head) -> None:
        config, layer = head.config, cast(Layer, head.layers[0])
        attention, mlp = layer.self_attn, layer.mlp
        assert head.lm_head is not None
        self._config = config
        self._norms = tuple(
            norm.weight.detach()
            for norm in (
                layer.input_layernorm,
                layer.hidden_norm,
                layer.post_attention_layernorm,
                head.norm,
            )
        )
        self._act: Any = mlp.act
        self._num_rotated = config.num_attention_heads + config.num_key_value_heads
        self._heads = _product(attention.q_proj, attention.k_proj, attention.v_proj)
        self._output = _product(attention.o_proj)
        self._gate_up = _product(mlp.gate_proj, mlp.up_proj)
        self._down = _product(mlp.down_proj)
        self._fc = _product(head.fc)
        self._lm_head = _product(head.lm_head)

    def fuse(self, states: tuple[Tensor, ...]) -> Tensor:
        """As `Eagle3Head.fuse`."""
        return self._fc(torch.cat(states, -1))

    def logits(self, hidden: Tensor) -> Tensor:
        """As `Eagle3Head.logits`."""
        return self._lm_head(self._normed(hidden, 3))

    def layer(
        self, embedded: Tensor, hidden: Tensor, angles: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        """As the layer of the network; `angles` are [B or 1, 1, Q, D]."""
        config = self._config
        normed = self._normed(hidden, 1)
        residual = normed if config.norm_before_residual else hidden
        both = torch.cat([self._normed(embedded, 0), normed], -1)
        heads = self._heads(both).view(*hidden.shape[:2], -1, config.head_dim).transpose(1, 2)
        # of the rolled halves the first is the second one negated
        cos, sin = angles
        rotated = heads[:, : self._num_rotated]
        half = config.head_dim // 2
        signed = torch.cat([-sin[..., :half], sin[..., half:]], -1)
        rotated = torch.addcmul(rotated * cos, rotated.roll(half, -1), signed)
        query = rotated[:, : config.num_attention_heads]
        key = rotated[:, config.num_attention_heads :]
        attended = attend(query, key, heads[:, self._num_rotated :])
        hidden = residual + self._output(attended.flatten(2))
        gate, up = self._gate_up(self._normed(hidden, 2)).chunk(2, -1)
        return hidden + self._down(self._act(gate) * up)

    def _normed(self, values: Tensor, which: int) -> Tensor:
        weight = self._norms[which]
        return functional.rms_norm(values, weight.shape, weight, self._config.rms_norm_eps)


def _product(*layers: Any) -> Product:
    weights = [layer.weight.detach() for layer in layers]
    return Product(weights[0] if len(weights) == 1 else torch.cat(weights), None)
