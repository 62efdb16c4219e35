"""The EAGLE-3 head: one decoder layer on the next token and fused states of the target.

Slot j reads the target's states at position j and the token at j + 1, and gives the law of the
token at j + 2. While drafting, the head's own output stands in for the states that the target has
not computed. Source: Li et al. 2025 (EAGLE-3); with one state read, EAGLE's input (Li et al. 2024).

Axes: B rows, Q slots, H width of the head, F states read, D head size, V target ids, C draft ids.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fairdraft.speculators.heads.config import Eagle3Config
from fairdraft.speculators.heads.head import SlotHead
from fairdraft.speculators.heads.layer import Attend, Attention, Mlp, Norm


class Layer(nn.Module):
    """The head's decoder layer."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.self_attn = Attention(config, 2 * config.hidden_size)
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


class Eagle3Head(SlotHead):
    """The head: `fc` fuses the target's states, and one layer runs on them.

    Args:
        config: Its shape.
        target_ids, owns_embedding, owns_output: As in `Head`.
    """

    kind = "an EAGLE-3 head of one layer"
    config: Eagle3Config

    def __init__(
        self,
        config: Eagle3Config,
        target_ids: Tensor | None = None,
        *,
        owns_embedding: bool = False,
        owns_output: bool = False,
    ) -> None:
        super().__init__(config, target_ids, owns_embedding=owns_embedding, owns_output=owns_output)
        num_states = len(config.feature_layers)
        self.fc = nn.Linear(num_states * config.target_hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([Layer(config)])
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)

    @property
    def first_weight(self) -> Tensor:
        """Of `fc`."""
        return self.fc.weight

    def fuse(self, states: tuple[Tensor, ...]) -> Tensor:
        """As `Head.fuse`."""
        return self.fc(torch.cat(states, -1).to(self.fc.weight.dtype))

    def step(
        self,
        embedded: Tensor,
        hidden: Tensor,
        angles: tuple[Tensor, Tensor],
        attend: Attend,
        module: int = 0,
    ) -> Tensor:
        """As `SlotHead.step`; `hidden` is fused states, or the output at the slot before."""
        return self.layers[0](embedded, hidden, angles, attend)

    def logits(self, hidden: Tensor, module: int = 0) -> Tensor:
        """As `Head.logits`."""
        assert self.lm_head is not None, "call share() first"
        return self.lm_head(self.norm(hidden))
