"""The head without keys of its own: its queries attend to what the target remembers.

Step i reads draft i - 1 (the last decided token at first) and what step i - 1 gave (the target's
last state at first). Every step stands where the target's last state is: with n decided tokens at
position n - 2, and attends to the target's keys and values of the slots 0 to n - 2. Q-only layers
and the two projections are those of Gemma 4's assistants (transformers 5.24,
models/gemma4_assistant); norms and MLP are Llama's, and what is projected is normed as in
multi-token prediction (DeepSeek-AI 2024).

Axes: B rows, Q slots, H width, N query heads, D head size, C draft ids.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fairdraft.speculators.heads.config import SharedKvConfig
from fairdraft.speculators.heads.head import Head
from fairdraft.speculators.heads.layer import Mlp, Norm, rotate

#: layer of the target and query [B, N, Q, D] to what is attended [B, Q, N, D]
Recall = Callable[[int, Tensor], Tensor]


class QueryLayer(nn.Module):
    """A decoder layer whose attention has queries alone.

    Args:
        config: Of the head.
        memory_layer: Layer of the target whose keys and values it attends to.
    """

    def __init__(self, config: SharedKvConfig, memory_layer: int) -> None:
        super().__init__()
        width = config.num_attention_heads * config.head_dim
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(config.hidden_size, width, bias=False),
                "o_proj": nn.Linear(width, config.hidden_size, bias=False),
            }
        )
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config)
        self.memory_layer = memory_layer
        self.head_dim = config.head_dim

    def forward(self, hidden: Tensor, angles: tuple[Tensor, Tensor], recall: Recall) -> Tensor:
        """Returns the hidden states of the slots [B, Q, H]."""
        query = self.self_attn["q_proj"](self.input_layernorm(hidden))
        query = query.view(*hidden.shape[:2], -1, self.head_dim).transpose(1, 2)
        # angles may be of a wider type than products, and keys are of one type with the query
        attended = recall(self.memory_layer, rotate(query, angles).to(query.dtype))
        hidden = hidden + self.self_attn["o_proj"](attended.flatten(2))
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class SharedKvHead(Head):
    """The layers, with the target's embedding and output rows.

    Args:
        config: Its shape.
        target_ids, owns_embedding, owns_output: As in `Head`.
    """

    kind = "a head that shares its target's keys and values"
    config: SharedKvConfig

    def __init__(
        self,
        config: SharedKvConfig,
        target_ids: Tensor | None = None,
        *,
        owns_embedding: bool = False,
        owns_output: bool = False,
    ) -> None:
        super().__init__(config, target_ids, owns_embedding=owns_embedding, owns_output=owns_output)
        size, epsilon = config.hidden_size, config.rms_norm_eps
        self.embedding_norm = Norm(size, epsilon)
        self.hidden_norm = Norm(size, epsilon)
        self.pre_projection = nn.Linear(2 * size, size, bias=False)
        self.layers = nn.ModuleList([QueryLayer(config, layer) for layer in config.memory_layers])
        self.norm = Norm(size, epsilon)
        self.post_projection = nn.Linear(size, size, bias=False)

    @property
    def first_weight(self) -> Tensor:
        """Of the first projection."""
        return self.pre_projection.weight

    def fuse(self, states: tuple[Tensor, ...]) -> Tensor:
        """The target's last state, as it is."""
        [state] = states
        return state.to(self.first_weight.dtype)

    def recall(
        self, token_ids: Tensor, hidden: Tensor, angles: tuple[Tensor, Tensor], recall: Recall
    ) -> Tensor:
        """Runs one step of slots that stay where they are.

        Args:
            token_ids: Drafts before, or the token after the slot at first, int64 [B, Q].
            hidden: What `carry` made of the step before, or the target's state [B, Q, H].
            angles: Of the slots' positions.
            recall: Attention to the target's keys and values of the slots up to these.

        Returns:
            Normed outputs [B, Q, H], for `logits` and `carry`.
        """
        assert self.embed_tokens is not None, "call share() first"
        embedded = self.embedding_norm(self.embed_tokens(token_ids))
        hidden = self.pre_projection(torch.cat([embedded, self.hidden_norm(hidden)], -1))
        for layer in self.layers:
            hidden = layer(hidden, angles, recall)
        return self.norm(hidden)

    def carry(self, outputs: Tensor) -> Tensor:
        """What the next step takes in place of the target's state [B, Q, H]."""
        return self.post_projection(outputs)

    def logits(self, hidden: Tensor, module: int = 0) -> Tensor:
        """As `Head.logits`."""
        assert self.lm_head is not None, "call share() first"
        return self.lm_head(hidden)
