"""The DFlash head: one pass over a block of masks drafts all of it.

Queries stand at the last decided token and at the masks behind it. Keys and values of the decided
text are made of the target's states alone, for every layer at once, and are never computed on; a
block attends to them and to all of itself, in both directions. So what a block gives depends on no
draft, and q factorises over it. Source: Chen, Liang and Liu 2026 (DFlash), with the layer of Qwen3;
queries that draft the token after their own: DeepSeek-AI 2026 (DSpark).

Axes: B rows, Q queries of a block, T drafts of it, H width of the head, F states read, D head size,
V target ids, C draft ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from fairdraft.speculators.heads.config import DflashConfig
from fairdraft.speculators.heads.head import Head
from fairdraft.speculators.heads.layer import Attend, Attention, Mlp, Norm, rotate

#: what each layer attends with, by its number
AttendLayer = Callable[[int], Attend]


class DflashAttention(Attention):
    """Attention with normed queries and keys, whose keys and values are also made of states."""

    def __init__(self, config: DflashConfig) -> None:
        super().__init__(config, config.hidden_size)
        self.q_norm = Norm(config.head_dim, config.rms_norm_eps)
        self.k_norm = Norm(config.head_dim, config.rms_norm_eps)

    def keys_values(self, values: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Rotated keys and values [B, groups, Q, D] of [B, Q, H]."""
        shape = (*values.shape[:2], -1, self.head_dim)
        key = rotate(self.k_norm(self.k_proj(values).view(shape)).transpose(1, 2), angles)
        return key, self.v_proj(values).view(shape).transpose(1, 2)

    def forward(self, values: Tensor, angles: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """Attends; [B, Q, H] to [B, Q, H]."""
        shape = (*values.shape[:2], -1, self.head_dim)
        query = rotate(self.q_norm(self.q_proj(values).view(shape)).transpose(1, 2), angles)
        return self.o_proj(attend(query, *self.keys_values(values, angles)).flatten(2))


class DflashLayer(nn.Module):
    """A decoder layer on the queries of blocks."""

    def __init__(self, config: DflashConfig) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = DflashAttention(config)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config)

    def forward(self, hidden: Tensor, angles: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """Returns the hidden states of the queries [B, Q, H]."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), angles, attend)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class DflashHead(Head):
    """The head: `fc` and `hidden_norm` fuse the target's states, and the layers run on blocks.

    Args:
        config: Its shape.
        target_ids, owns_embedding, owns_output: As in `Head`.
    """

    kind = "a DFlash head"
    config: DflashConfig

    def __init__(
        self,
        config: DflashConfig,
        target_ids: Tensor | None = None,
        *,
        owns_embedding: bool = False,
        owns_output: bool = False,
    ) -> None:
        super().__init__(config, target_ids, owns_embedding=owns_embedding, owns_output=owns_output)
        size, num_states = config.hidden_size, len(config.feature_layers)
        self.fc = nn.Linear(num_states * config.target_hidden_size, size, bias=False)
        self.hidden_norm = Norm(size, config.rms_norm_eps)
        self.layers = nn.ModuleList([self.new_layer() for _ in range(config.num_layers)])
        self.norm = Norm(size, config.rms_norm_eps)
        has_own = config.mask_token_id is None
        self.mask_embedding = nn.Parameter(0.02 * torch.randn(size)) if has_own else None

    def new_layer(self) -> DflashLayer:
        """One of its layers."""
        return DflashLayer(self.config)

    def layer(self, index: int) -> DflashLayer:
        """One of the layers, from 0 on."""
        return cast(DflashLayer, self.layers[index])

    @property
    def first_weight(self) -> Tensor:
        """Of `fc`."""
        return self.fc.weight

    def fuse(self, states: tuple[Tensor, ...]) -> Tensor:
        """As `Head.fuse`: what keys and values of the context are made of."""
        return self.hidden_norm(self.fc(torch.cat(states, -1).to(self.fc.weight.dtype)))

    def context(self, fused: Tensor, angles: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of the decided text, of each layer [B, groups, Q, D].

        Args:
            fused: Of the positions [B, Q, H].
            angles: Of the positions.
        """
        return [
            self.layer(i).self_attn.keys_values(fused, angles)
            for i in range(self.config.num_layers)
        ]

    def embed(self, last: Tensor) -> Tensor:
        """Embeddings of blocks [B, Q, H] that begin with the given tokens, int64 [B]."""
        assert self.embed_tokens is not None, "call share() first"
        first = self.embed_tokens(last)[:, None]
        if self.mask_embedding is not None:
            mask = self.mask_embedding.to(first.dtype)
        else:
            mask = self.embed_tokens.weight[self.config.mask_token_id]
        masks = mask.expand(len(last), self.config.block_size - 1, -1)
        return torch.cat([first, masks], 1)

    def block(
        self, embedded: Tensor, angles: tuple[Tensor, Tensor], attend_layer: AttendLayer
    ) -> Tensor:
        """Runs blocks.

        Args:
            embedded: [B, Q, H], see `embed`.
            angles: Of the queries' positions.
            attend_layer: Attention of a layer over context and block.

        Returns:
            Normed outputs of all queries [B, Q, H]; `drafting` chooses those that draft.
        """
        hidden = embedded
        for i in range(self.config.num_layers):
            hidden = self.layer(i)(hidden, angles, attend_layer(i))
        return self.norm(hidden)

    def drafting(self, outputs: Tensor) -> Tensor:
        """Of a block's outputs [B, Q, H] those that draft, in order [B, T, H]."""
        return outputs[:, self.config.block_size - self.config.num_drafts :]

    def logits(self, hidden: Tensor, module: int = 0) -> Tensor:
        """As `Head.logits`, of normed outputs."""
        assert self.lm_head is not None, "call share() first"
        return self.lm_head(hidden)
