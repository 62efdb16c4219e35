"""The heads' layers written out for a CPU: projections of one input are one packed product.

A step of a small head is bound by the number of calls. The numbers are those of the network up to
rounding. Axes: B rows, Q slots, H width, G key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional

from fairdraft.models.packing import Product
from fairdraft.speculators.heads.dflash import DflashAttention
from fairdraft.speculators.heads.head import Head, SlotHead
from fairdraft.speculators.heads.layer import Attend, Attention, Mlp, Norm
from fairdraft.speculators.heads.mtp import MtpHead, MtpModule
from fairdraft.speculators.heads.network import Eagle3Head, Layer


class Computed(Protocol):
    """What is computed of every head; see `Head`."""

    def fuse(self, states: tuple[Tensor, ...]) -> Tensor:
        """As `Head.fuse`."""
        ...

    def logits(self, hidden: Tensor, module: int = 0) -> Tensor:
        """As `Head.logits`."""
        ...


class Fused(Computed, Protocol):
    """What a head of slots computes, in fewer calls; see `SlotHead`."""

    def step(
        self,
        embedded: Tensor,
        hidden: Tensor,
        angles: tuple[Tensor, Tensor],
        attend: Attend,
        module: int = 0,
    ) -> Tensor:
        """As `SlotHead.step`; `angles` are [B or 1, 1, Q, D]."""
        ...


def fused(head: SlotHead) -> Fused | SlotHead:
    """The head in fewer calls, if it is of a kind that is written out.

    Args:
        head: float32 on a CPU, joined to its target; its weights must not change after.
    """
    if isinstance(head, Eagle3Head):
        return FusedEagle3(head)
    return FusedMtp(head) if isinstance(head, MtpHead) else head


class FusedLayer:
    """Attention and MLP of a decoder layer after its first norm."""

    def __init__(self, head: Head, attention: Attention, mlp: Mlp, norm: Norm) -> None:
        config = head.config
        self._head_dim = config.head_dim
        self._num_heads = config.num_attention_heads
        self._num_rotated = config.num_attention_heads + config.num_key_value_heads
        self._heads = product(attention.q_proj, attention.k_proj, attention.v_proj)
        self._output = product(attention.o_proj)
        self._act: Any = mlp.act
        self._gate_up = product(mlp.gate_proj, mlp.up_proj)
        self._down = product(mlp.down_proj)
        self._norm = Normed(norm)
        self._head_norms: Tensor | None = None
        if isinstance(attention, DflashAttention):
            counts = (config.num_attention_heads, config.num_key_value_heads)
            self._head_norms = head_norms((attention.q_norm, attention.k_norm), counts)
            self._epsilon = attention.q_norm.epsilon

    def __call__(
        self, normed: Tensor, residual: Tensor, angles: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        """Runs the layer on its normed input [B, Q, W]; returns [B, Q, H]."""
        heads = self._heads(normed).view(*normed.shape[:2], -1, self._head_dim).transpose(1, 2)
        rotated = heads[:, : self._num_rotated]
        if self._head_norms is not None:
            rotated = normed_heads(rotated, self._head_norms, self._epsilon)
        rotated = rotated_heads(rotated, angles)
        query, key = rotated[:, : self._num_heads], rotated[:, self._num_heads :]
        attended = attend(query, key, heads[:, self._num_rotated :])
        hidden = residual + self._output(attended.flatten(2))
        gate, up = self._gate_up(self._norm(hidden)).chunk(2, -1)
        return hidden + self._down(self._act(gate) * up)


class FusedEagle3:
    """Computes what an `Eagle3Head` computes."""

    def __init__(self, head: Eagle3Head) -> None:
        layer = cast(Layer, head.layers[0])
        self._is_residual_normed = head.config.norm_before_residual
        self._input, self._hidden = Normed(layer.input_layernorm), Normed(layer.hidden_norm)
        self._final = Normed(head.norm)
        self._layer = FusedLayer(head, layer.self_attn, layer.mlp, layer.post_attention_layernorm)
        self._fc, self._lm_head = product(head.fc), product(head.lm_head)

    def fuse(self, states: tuple[Tensor, ...]) -> Tensor:
        """As `Head.fuse`."""
        return self._fc(torch.cat(states, -1))

    def step(
        self,
        embedded: Tensor,
        hidden: Tensor,
        angles: tuple[Tensor, Tensor],
        attend: Attend,
        module: int = 0,
    ) -> Tensor:
        """As `SlotHead.step`."""
        normed = self._hidden(hidden)
        both = torch.cat([self._input(embedded), normed], -1)
        return self._layer(both, normed if self._is_residual_normed else hidden, angles, attend)

    def logits(self, hidden: Tensor, module: int = 0) -> Tensor:
        """As `Head.logits`."""
        return self._lm_head(self._final(hidden))


class FusedMtp:
    """Computes what an `MtpHead` computes."""

    def __init__(self, head: MtpHead) -> None:
        self._modules = [_FusedModule(head, head.module(i)) for i in range(head.config.num_modules)]
        self._lm_head = product(head.lm_head)

    def fuse(self, states: tuple[Tensor, ...]) -> Tensor:
        """As `Head.fuse`."""
        [state] = states
        return state

    def step(
        self,
        embedded: Tensor,
        hidden: Tensor,
        angles: tuple[Tensor, Tensor],
        attend: Attend,
        module: int = 0,
    ) -> Tensor:
        """As `SlotHead.step`."""
        return self._modules[module](embedded, hidden, angles, attend)

    def logits(self, hidden: Tensor, module: int = 0) -> Tensor:
        """As `Head.logits`."""
        return self._lm_head(self._modules[module].final(hidden))


class _FusedModule:
    def __init__(self, head: MtpHead, module: MtpModule) -> None:
        self._enorm, self._hnorm = Normed(module.enorm), Normed(module.hnorm)
        self._project = product(module.eh_proj)
        self._input, self.final = Normed(module.input_layernorm), Normed(module.norm)
        norm = module.post_attention_layernorm
        self._layer = FusedLayer(head, module.self_attn, module.mlp, norm)

    def __call__(
        self, embedded: Tensor, hidden: Tensor, angles: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        hidden = self._project(torch.cat([self._enorm(embedded), self._hnorm(hidden)], -1))
        return self._layer(self._input(hidden), hidden, angles, attend)


class Normed:
    """A norm without the lookups of a module."""

    def __init__(self, norm: Norm) -> None:
        self._weight, self._epsilon = norm.weight.detach(), norm.epsilon

    def __call__(self, values: Tensor) -> Tensor:
        return functional.rms_norm(values, self._weight.shape, self._weight, self._epsilon)


def head_norms(norms: Sequence[Norm], counts: Sequence[int]) -> Tensor:
    """Weights of norms of single heads, each for as many heads in a row [heads, 1, D]."""
    pairs = zip(norms, counts, strict=True)
    return torch.cat([norm.weight.detach().expand(count, 1, -1) for norm, count in pairs])


def normed_heads(heads: Tensor, weights: Tensor, epsilon: float) -> Tensor:
    """Norms heads [B, heads, Q, D], each with a weight of its own [heads, 1, D]."""
    return functional.rms_norm(heads, heads.shape[-1:], None, epsilon) * weights


def rotated_heads(heads: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates pairs of the halves of heads [B, heads, Q, D], as `rotate` in fewer calls."""
    cos, sin = angles
    half = heads.shape[-1] // 2
    # of the rolled halves the first is the second one negated
    signed = torch.cat([-sin[..., :half], sin[..., half:]], -1)
    return torch.addcmul(heads * cos, heads.roll(half, -1), signed)


def product(*layers: Any) -> Product:
    """Products of one input with the matrices of several layers, one behind the other."""
    weights = [layer.weight.detach() for layer in layers]
    return Product(weights[0] if len(weights) == 1 else torch.cat(weights), None)
