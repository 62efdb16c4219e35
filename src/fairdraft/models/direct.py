"""Llama's forward written out, for a network whose time is the calls and not the arithmetic.

A token of a small model on a CPU costs transformers several hundred operations; here projections
of one input are one product, rotations are a table, and norms are one operation. A few tokens of
one row of a network smaller still, a draft model's, are one compiled call a layer (see `single`).
The logits are those of the network up to rounding, which the probe checks at every load.

Axes: B rows, Q queries, H query heads, G key/value heads, D head size, V output width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaForCausalLM, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from fairdraft.models.attention import attend
from fairdraft.models.cache import RaggedCache
from fairdraft.models.packing import Product

__all__ = ["DirectLlama", "take_last"]

# networks of up to so many weights, 8 MB, run a few tokens of one row compiled
_MAX_COMPILED_WEIGHTS = 1 << 21
_MAX_COMPILED_TOKENS = 4


@dataclass
class _Layer:
    norm: Tensor
    heads: Product
    output: Product
    mlp_norm: Tensor
    gate_up: Product
    down: Product

    def arrays(self) -> tuple[np.ndarray, ...]:
        """The weights in the order of the fields, on the host."""
        products = (self.heads.weight, self.output.weight, self.gate_up.weight, self.down.weight)
        heads, output, gate_up, down = map(_array, products)
        return _array(self.norm), heads, output, _array(self.mlp_norm), gate_up, down


class DirectLlama:
    """Computes what a `LlamaForCausalLM` computes, in fewer operations.

    Weights that share an input are copied side by side; when one of the network's own weights
    changes, the copies are made again.

    Args:
        model: The network; it stays as it is.
        max_model_len: Its context limit.
    """

    def __init__(self, model: LlamaForCausalLM, max_model_len: int) -> None:
        self._model = model
        self._max_model_len = max_model_len
        config = model.config
        first: Any = model.model.layers[0]
        self._num_heads = config.num_attention_heads
        self._num_groups: int = first.self_attn.k_proj.out_features // first.self_attn.head_dim
        self._width = config.intermediate_size
        self._epsilon = config.rms_norm_eps
        self._head_dim = first.self_attn.head_dim
        self._scale = first.self_attn.scaling
        self._numbers = np.float32(self._epsilon), np.float32(self._scale)
        self._act: Any = first.mlp.act_fn
        self._angles = torch.zeros(0, 2, self._head_dim)
        #: up to so many tokens of one row run compiled, hidden states and trees apart
        self.num_compiled = _MAX_COMPILED_TOKENS if _can_compile(model) else 0
        self._build()

    @staticmethod
    def supports(model: PreTrainedModel) -> TypeGuard[LlamaForCausalLM]:
        """Tells whether a network is a Llama without additions.

        Args:
            model: Any network.
        """
        return (
            type(model) is LlamaForCausalLM
            and len(model.model.layers) == model.config.num_hidden_layers > 0
            and all(type(module) in _PARTS for module in model.modules() if _has_weights(module))
        )

    def _build(self) -> None:
        base = self._model.model
        self._watched = [
            (module._parameters, name, weight)
            for module in self._model.modules()
            for name, weight in module.named_parameters(recurse=False)
        ]
        self._version = sum(weight._version for _, _, weight in self._watched)
        self._layers = [_layer(layer) for layer in base.layers]
        self._norm = base.norm.weight
        self._head = _product([self._model.lm_head])
        self._arrays = [layer.arrays() for layer in self._layers] if self.num_compiled else []
        network = (base.embed_tokens.weight, self._norm, self._head.weight)
        self._network = tuple(map(_array, network))

    # a weight that was replaced or written to after loading must not be ignored
    def _is_stale(self) -> bool:
        version = 0
        for parameters, name, weight in self._watched:
            if parameters[name] is not weight:
                return True
            version += weight._version
        return version != self._version

    @property
    def num_packed(self) -> int:
        """Products that run in the packed layout."""
        products = [self._head]
        for layer in self._layers:
            products += [layer.heads, layer.output, layer.gate_up, layer.down]
        return sum(product.is_packed for product in products)

    def __call__(
        self,
        token_ids: Tensor,
        positions: Tensor | None,
        mask: Tensor | None,
        cache: RaggedCache,
        *,
        last: Sequence[int] | None = None,
        keep_hidden_states: bool = False,
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """Forwards one block.

        Args:
            token_ids: int64 [B, Q].
            positions: int64 [B, Q] or [1, Q]; None for a compiled row.
            mask: Additive [B, 1, Q, L] or [1, 1, Q, L]; None for a compiled row, of which there are
                at most `num_compiled` tokens, from the cache's first slot on.
            cache: After `begin`; its slots are written.
            last: The one query of each row whose logits are wanted [B]; None for all.
            keep_hidden_states: Whether to return them.

        Returns:
            Logits [B, Q, V], or [B, 1, V] with `last`, and the hidden states as transformers
            reports them, or None.
        """
        if self._is_stale():
            self._build()
        if mask is None:
            return self._run_row(token_ids, cache, last), None
        assert positions is not None
        angles = self._rotations(positions, cache)
        hidden = functional.embedding(token_ids, self._model.model.embed_tokens.weight)
        states = [hidden]
        for index, layer in enumerate(self._layers):
            hidden = self._layer(layer, index, hidden, angles, mask, cache)
            states.append(hidden)
        if last is not None and not keep_hidden_states:
            hidden = take_last(hidden, last)
        hidden = functional.rms_norm(hidden, self._norm.shape, self._norm, self._epsilon)
        if not keep_hidden_states:
            return self._head(hidden), None
        states[-1] = hidden
        if last is not None:
            hidden = take_last(hidden, last)
        return self._head(hidden), tuple(states)

    def _layer(
        self,
        layer: _Layer,
        index: int,
        hidden: Tensor,
        angles: tuple[Tensor, Tensor],
        mask: Tensor,
        cache: RaggedCache,
    ) -> Tensor:
        num_rows, num_queries, width = hidden.shape
        num_rotated = self._num_heads + self._num_groups
        normed = functional.rms_norm(hidden, (width,), layer.norm, self._epsilon)
        heads = layer.heads(normed).view(num_rows, num_queries, -1, self._head_dim)
        rotated = heads[:, :, :num_rotated]
        cos, sin = angles
        rotated = torch.addcmul(rotated * cos, rotated.roll(self._head_dim // 2, -1), sin)
        keys, values = cache.update(
            rotated[:, :, self._num_heads :].transpose(1, 2),
            heads[:, :, num_rotated:].transpose(1, 2),
            index,
        )
        query = rotated[:, :, : self._num_heads].transpose(1, 2)
        attended = attend(query, keys, values, mask, self._scale)
        hidden = hidden + layer.output(attended.reshape(num_rows, num_queries, -1))
        normed = functional.rms_norm(hidden, (width,), layer.mlp_norm, self._epsilon)
        gate, up = layer.gate_up(normed).split(self._width, -1)
        return hidden + layer.down(self._act(gate) * up)

    def _run_row(self, token_ids: Tensor, cache: RaggedCache, last: Sequence[int] | None) -> Tensor:
        """Logits of one row [1, Q, V], or [1, 1, V] with `last`, without torch."""
        from fairdraft.models.single import run_layer

        ids = np.ascontiguousarray(token_ids.numpy()[0])
        width, size = len(ids), self._network[0].shape[1]
        # past a row's real tokens is padding, which may be left out
        count = width if last is None else last[0] + 1
        num_wanted = width if last is None else 1
        self._grow_angles(cache.get_seq_length())
        hidden = np.empty((count, size), np.float32)
        place, numbers = (cache.first_row, cache.first_slot), self._numbers
        tokens, final = ids[:count], len(self._arrays) - 1
        for index, layer in enumerate(self._arrays):
            memory = cache.memory(index, self._num_groups, self._head_dim, self._norm)
            logits = run_layer(
                tokens,
                hidden,
                layer,
                tuple(map(_array, memory)),
                place,
                self._angles.numpy(),
                numbers,
                self._network,
                num_wanted if index == final else 0,
            )
            tokens = ids[:0]
        return torch.from_numpy(logits)[None]

    # cos and signed sin of every position so far: x cos + roll(x) sin rotates the two halves
    def _grow_angles(self, needed: int) -> None:
        if needed > len(self._angles):
            size = min(max(needed, 2 * len(self._angles), 256), self._max_model_len)
            rotary: Any = self._model.model.rotary_emb
            cos, sin = rotary(self._norm, torch.arange(size)[None])
            sin[..., : self._head_dim // 2].neg_()
            self._angles = torch.stack([cos[0], sin[0]], 1)

    def _rotations(self, positions: Tensor, cache: RaggedCache) -> tuple[Tensor, Tensor]:
        self._grow_angles(cache.get_seq_length())
        first = cache.first_slot
        if first is None:
            angles = self._angles[positions][:, :, None]
        else:
            # slots are positions
            angles = self._angles[None, first : first + positions.shape[1], None]
        cos, sin = angles.unbind(3)
        return cos, sin


_PARTS = {nn.Linear, nn.Embedding, LlamaRMSNorm}


def take_last(hidden: Tensor, last: Sequence[int]) -> Tensor:
    """The one query of each row that is named [B, 1, W], of hidden states or logits [B, Q, W]."""
    if min(last) == hidden.shape[1] - 1:
        return hidden[:, -1:]
    rows = torch.arange(len(last), device=hidden.device)
    return hidden[rows, torch.tensor(last, device=hidden.device)][:, None]


def _can_compile(model: LlamaForCausalLM) -> bool:
    """Whether a network is as small and plain as `single` wants it."""
    is_plain = model.config.hidden_act == "silu" and not any(
        isinstance(module, nn.Linear) and module.bias is not None for module in model.modules()
    )
    num_weights = sum(weight.numel() for weight in model.parameters())
    return is_plain and num_weights <= _MAX_COMPILED_WEIGHTS and find_spec("numba") is not None


def _array(weight: Tensor) -> np.ndarray:
    return weight.detach().numpy()


def _has_weights(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))


def _layer(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return _Layer(
        norm=layer.input_layernorm.weight,
        heads=_product([attention.q_proj, attention.k_proj, attention.v_proj]),
        output=_product([attention.o_proj]),
        mlp_norm=layer.post_attention_layernorm.weight,
        gate_up=_product([mlp.gate_proj, mlp.up_proj]),
        down=_product([mlp.down_proj]),
    )


def _product(layers: Sequence[nn.Linear]) -> Product:
    weights = [layer.weight.detach() for layer in layers]
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    if not biases:
        return Product(weight, None)
    assert len(biases) == len(layers)
    return Product(weight, biases[0] if len(biases) == 1 else torch.cat(biases))
