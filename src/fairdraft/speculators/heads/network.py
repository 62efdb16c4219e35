"""The EAGLE-3 head: one decoder layer on the next token and fused states of the target.

Slot j reads the target's states at position j and the token at j + 1, and gives the law of the
token at j + 2. While drafting, the head's own output stands in for the states that the target has
not computed. Source: Li et al. 2025 (EAGLE-3); with one state read, EAGLE's input (Li et al. 2024).

Axes: B rows, Q slots, H width of the head, F states read, D head size, V target ids, C draft ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from fairdraft.speculators.heads.config import Eagle3Config

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
    """Projections of the attention; its input is two vectors wide."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        width, size = 2 * config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(width, config.num_attention_heads * size, bias=False)
        self.k_proj = nn.Linear(width, config.num_key_value_heads * size, bias=False)
        self.v_proj = nn.Linear(width, config.num_key_value_heads * size, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * size, config.hidden_size, bias=False)
        self.head_dim = size

    def forward(self, values: Tensor, angles: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """Attends with rotated queries and keys; [B, Q, 2 H] to [B, Q, H]."""
        shape = (*values.shape[:2], -1, self.head_dim)
        query = rotate(self.q_proj(values).view(shape).transpose(1, 2), angles)
        key = rotate(self.k_proj(values).view(shape).transpose(1, 2), angles)
        value = self.v_proj(values).view(shape).transpose(1, 2)
        return self.o_proj(attend(query, key, value).flatten(2))


class Mlp(nn.Module):
    """Gated MLP."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act: Any = ACT2FN[config.hidden_act]

    def forward(self, values: Tensor) -> Tensor:
        """Returns values of the same shape."""
        return self.down_proj(self.act(self.gate_proj(values)) * self.up_proj(values))


class Layer(nn.Module):
    """The head's decoder layer."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.hidden_norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.norm_before_residual = config.norm_before_residual

    def forward(
        self, embedded: Tensor, hidden: Tensor, angles: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        """Returns the hidden states of the slots [B, Q, H]."""
        normed = self.hidden_norm(hidden)
        residual = normed if self.norm_before_residual else hidden
        both = torch.cat([self.input_layernorm(embedded), normed], -1)
        hidden = residual + self.self_attn(both, angles, attend)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Eagle3Head(nn.Module):
    """The head, with the target's embedding and output rows or with its own.

    `share` must be called before `forward` and `logits` unless the head has both of its own.

    Args:
        config: Its shape.
        target_ids: Target id of each draft id, int64 [C], ascending; None for the first C.
        owns_embedding: Whether it has an embedding of its own.
        owns_output: Whether it has an output matrix of its own.

    Attributes:
        target_ids: int64 [C].
    """

    target_ids: Tensor

    def __init__(
        self,
        config: Eagle3Config,
        target_ids: Tensor | None = None,
        *,
        owns_embedding: bool = False,
        owns_output: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        num_states = len(config.feature_layers)
        self.fc = nn.Linear(num_states * config.target_hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([Layer(config)])
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.rotary = LlamaRotaryEmbedding(config.llama())
        if target_ids is None:
            target_ids = torch.arange(config.draft_vocab_size)
        self.register_buffer("target_ids", target_ids, persistent=False)
        self.owns_embedding, self.owns_output = owns_embedding, owns_output
        rows = config.vocab_size if owns_embedding else 0
        self.embed_tokens = nn.Embedding(rows, config.hidden_size) if rows else None
        rows = config.draft_vocab_size if owns_output else 0
        self.lm_head = nn.Linear(config.hidden_size, rows, bias=False) if rows else None

    def share(self, embedding: Tensor, output: Tensor) -> None:
        """Takes over what the head has not of its own.

        Args:
            embedding: The target's input embedding [at least V, H].
            output: The target's output matrix [at least V, H].
        """
        config = self.config
        if not self.owns_embedding:
            self.embed_tokens = nn.Embedding.from_pretrained(embedding.detach(), freeze=True)
        if not self.owns_output:
            is_whole = len(output) == config.draft_vocab_size
            rows = output.detach() if is_whole else output.detach()[self.target_ids]
            # without memory of its own at first: the rows replace it
            self.lm_head = nn.Linear(*rows.T.shape, bias=False, device="meta")
            self.lm_head.weight = nn.Parameter(rows, requires_grad=False)

    def own_parameters(self) -> dict[str, nn.Parameter]:
        """What is the head's and not the target's, by name."""
        shared = [] if self.owns_embedding else ["embed_tokens."]
        shared += [] if self.owns_output else ["lm_head."]
        return {
            name: parameter
            for name, parameter in self.named_parameters()
            if not name.startswith(tuple(shared))
        }

    def fuse(self, states: tuple[Tensor, ...]) -> Tensor:
        """Makes one vector a position of the target's states, F times [B, Q, target's H]."""
        return self.fc(torch.cat(states, -1).to(self.fc.weight.dtype))

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of positions [B or 1, Q], each [B or 1, 1, Q, D]."""
        cos, sin = self.rotary(self.norm.weight, positions)
        return cos[:, None], sin[:, None]

    def forward(
        self,
        token_ids: Tensor,
        hidden: Tensor,
        angles: tuple[Tensor, Tensor],
        attend: Attend,
    ) -> Tensor:
        """Runs slots.

        Args:
            token_ids: The token after each slot's position, int64 [B, Q].
            hidden: Fused states, or the head's output at the slot before [B, Q, H].
            angles: Of the slots' positions.
            attend: Attention over earlier slots and these.

        Returns:
            [B, Q, H], before the final norm; it is the next slot's `hidden` while drafting.
        """
        assert self.embed_tokens is not None, "call share() first"
        return self.layers[0](self.embed_tokens(token_ids), hidden, angles, attend)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits over the draft ids [..., C] from outputs [..., H]."""
        assert self.lm_head is not None, "call share() first"
        return self.lm_head(self.norm(hidden))


def rotate(values: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates pairs of the halves of [B, heads, Q, D]."""
    cos, sin = angles
    first, second = values.chunk(2, -1)
    return values * cos + torch.cat([-second, first], -1) * sin
