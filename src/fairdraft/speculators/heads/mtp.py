"""The head for multi-token prediction: one or more modules on the target's last state.

Slot j of module k (the first is 1) reads what module k - 1 gave at slot j, the target's state at
position j for the first, and the token at j + k; it gives the law of the token at j + k + 1. A
single module may go on alone: it then reads its own output at the slot before, and the next token.
Source: DeepSeek-AI 2024 (DeepSeek-V3), section 2.2; a single module used again: Cai et al. 2025
(FastMTP).

Axes: B rows, Q slots, H width of the head, V target ids, C draft ids.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from fairdraft.speculators.heads.config import MtpConfig
from fairdraft.speculators.heads.head import SlotHead
from fairdraft.speculators.heads.layer import Attend, Attention, Mlp, Norm


class MtpModule(nn.Module):
    """Norms of embedding and state, their projection, one decoder layer, and the final norm."""

    def __init__(self, config: MtpConfig) -> None:
        super().__init__()
        size, epsilon = config.hidden_size, config.rms_norm_eps
        self.enorm = Norm(size, epsilon)
        self.hnorm = Norm(size, epsilon)
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        self.input_layernorm = Norm(size, epsilon)
        self.self_attn = Attention(config, size)
        self.post_attention_layernorm = Norm(size, epsilon)
        self.mlp = Mlp(config)
        self.norm = Norm(size, epsilon)

    def forward(
        self, embedded: Tensor, hidden: Tensor, angles: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        """Returns the hidden states of the slots [B, Q, H]; `norm` comes before the logits."""
        hidden = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(hidden)], -1))
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), angles, attend)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class MtpHead(SlotHead):
    """The modules, with the target's embedding and output rows.

    Args:
        config: Its shape.
        target_ids, owns_embedding, owns_output: As in `Head`.
    """

    kind = "a head for multi-token prediction"
    config: MtpConfig

    def __init__(
        self,
        config: MtpConfig,
        target_ids: Tensor | None = None,
        *,
        owns_embedding: bool = False,
        owns_output: bool = False,
    ) -> None:
        super().__init__(config, target_ids, owns_embedding=owns_embedding, owns_output=owns_output)
        self.layers = nn.ModuleList([MtpModule(config) for _ in range(config.num_modules)])

    @property
    def num_modules(self) -> int:
        """As the configuration says."""
        return self.config.num_modules

    @property
    def first_weight(self) -> Tensor:
        """Of the first module's projection."""
        return self.module(0).eh_proj.weight

    def module(self, index: int) -> MtpModule:
        """One of the modules, from 0 on."""
        return cast(MtpModule, self.layers[index])

    def fuse(self, states: tuple[Tensor, ...]) -> Tensor:
        """The target's last state, as it is."""
        [state] = states
        return state.to(self.first_weight.dtype)

    def step(
        self,
        embedded: Tensor,
        hidden: Tensor,
        angles: tuple[Tensor, Tensor],
        attend: Attend,
        module: int = 0,
    ) -> Tensor:
        """As `SlotHead.step`."""
        return self.layers[module](embedded, hidden, angles, attend)

    def logits(self, hidden: Tensor, module: int = 0) -> Tensor:
        """As `Head.logits`."""
        assert self.lm_head is not None, "call share() first"
        return self.lm_head(self.module(module).norm(hidden))
