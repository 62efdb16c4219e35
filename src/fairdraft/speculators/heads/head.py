"""What every head has: its target's embedding and output rows, rotations, and drafted ids.

Axes: B rows, Q slots, H width of the head, F states read, D head size, V target ids, C draft ids.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from fairdraft.speculators.heads.config import HeadConfig
from fairdraft.speculators.heads.layer import Attend


class Head(nn.Module):
    """A network that drafts, with the target's embedding and output rows or with its own.

    `share` must be called before it is run unless the head has both of its own.

    Args:
        config: Its shape.
        target_ids: Target id of each draft id, int64 [C], ascending; None for the first C.
        owns_embedding: Whether it has an embedding of its own.
        owns_output: Whether it has an output matrix of its own.

    Attributes:
        target_ids: int64 [C].
    """

    #: what messages call it
    kind: str
    target_ids: Tensor

    def __init__(
        self,
        config: HeadConfig,
        target_ids: Tensor | None = None,
        *,
        owns_embedding: bool = False,
        owns_output: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.rotary = LlamaRotaryEmbedding(config.llama())
        if target_ids is None:
            target_ids = torch.arange(config.draft_vocab_size)
        self.register_buffer("target_ids", target_ids, persistent=False)
        self.owns_embedding, self.owns_output = owns_embedding, owns_output
        rows = config.vocab_size if owns_embedding else 0
        self.embed_tokens = nn.Embedding(rows, config.hidden_size) if rows else None
        rows = config.draft_vocab_size if owns_output else 0
        self.lm_head = nn.Linear(config.hidden_size, rows, bias=False) if rows else None

    @property
    def num_modules(self) -> int:
        """Modules, each with keys and values of its own."""
        return 1

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

    @property
    def first_weight(self) -> Tensor:
        """A matrix of the head's own, which says where it is and of which type."""
        raise NotImplementedError

    def fuse(self, states: tuple[Tensor, ...]) -> Tensor:
        """Makes one vector a position of the target's states, F times [B, Q, target's H]."""
        raise NotImplementedError

    def logits(self, hidden: Tensor, module: int = 0) -> Tensor:
        """Logits over the draft ids [..., C] from a module's outputs [..., H]."""
        raise NotImplementedError

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of positions [B or 1, Q], each [B or 1, 1, Q, D]."""
        cos, sin = self.rotary(self.first_weight, positions)
        return cos[:, None], sin[:, None]


class SlotHead(Head):
    """A head whose slots go on from an output of their own; arguments as in `Head`."""

    def step(
        self,
        embedded: Tensor,
        hidden: Tensor,
        angles: tuple[Tensor, Tensor],
        attend: Attend,
        module: int = 0,
    ) -> Tensor:
        """Runs slots of one module.

        Args:
            embedded: Of the tokens that the slots read [B, Q, H].
            hidden: Fused states, or what a slot gave before [B, Q, H].
            angles: Of the slots' positions.
            attend: Attention over earlier slots and these.
            module: Which module; heads of one layer have module 0 alone.

        Returns:
            [B, Q, H]: what the next slot or module takes for `hidden`.
        """
        raise NotImplementedError

    def forward(
        self,
        token_ids: Tensor,
        hidden: Tensor,
        angles: tuple[Tensor, Tensor],
        attend: Attend,
        module: int = 0,
    ) -> Tensor:
        """Embeds the tokens that slots read, int64 [B, Q], and runs `step`."""
        assert self.embed_tokens is not None, "call share() first"
        return self.step(self.embed_tokens(token_ids), hidden, angles, attend, module)
