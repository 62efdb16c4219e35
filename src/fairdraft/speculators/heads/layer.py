"""Parts of the decoder layers that heads are made of.

Axes: B rows, Q slots, H width of the head, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import ACT2FN

from fairdraft.speculators.heads.config import HeadConfig

#: query [B, heads, Q, D], key and value [B, groups, Q, D] to what is attended [B, Q, heads, D]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Norm(nn.Module):
    """Root mean square norm with a weight."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, values: Tensor) -> Tensor:
        """Returns values of the same shape and type."""
        return functional.rms_norm(values, self.weight.shape, self.weight, self.epsilon)


class Attention(nn.Module):
    """Projections of the attention, without biases.

    Args:
        config: Of the head.
        width: Width of its input, W.
    """

    def __init__(self, config: HeadConfig, width: int) -> None:
        super().__init__()
        size = config.head_dim
        self.q_proj = nn.Linear(width, config.num_attention_heads * size, bias=False)
        self.k_proj = nn.Linear(width, config.num_key_value_heads * size, bias=False)
        self.v_proj = nn.Linear(width, config.num_key_value_heads * size, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * size, config.hidden_size, bias=False)
        self.head_dim = size

    def forward(self, values: Tensor, angles: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """Attends with rotated queries and keys; [B, Q, W] to [B, Q, H]."""
        shape = (*values.shape[:2], -1, self.head_dim)
        query = rotate(self.q_proj(values).view(shape).transpose(1, 2), angles)
        key = rotate(self.k_proj(values).view(shape).transpose(1, 2), angles)
        value = self.v_proj(values).view(shape).transpose(1, 2)
        return self.o_proj(attend(query, key, value).flatten(2))


class Mlp(nn.Module):
    """Gated MLP."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act: Any = ACT2FN[config.hidden_act]

    def forward(self, values: Tensor) -> Tensor:
        """Returns values of the same shape."""
        return self.down_proj(self.act(self.gate_proj(values)) * self.up_proj(values))


def rotate(values: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates pairs of the halves of [B, heads, Q, D]."""
    cos, sin = angles
    first, second = values.chunk(2, -1)
    return values * cos + torch.cat([-second, first], -1) * sin
