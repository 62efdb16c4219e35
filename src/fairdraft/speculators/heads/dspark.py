"""The DSpark head: a DFlash head whose logits are biased by the token before each draft.

Draft i has the logits base_i + scale W2 W1[x_(i-1)]; x_0 is the last decided token. The bias costs
a product of rank R a draft, and the block's pass is not run again. A linear layer on the output at
draft i and W1[x_(i-1)] guesses how likely draft i is to be accepted, before it is drawn. Source:
DeepSeek-AI 2026 (DSpark).

Axes: H width of the head, R rank of the bias, V target ids, C draft ids.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fairdraft.speculators.heads.config import DsparkConfig
from fairdraft.speculators.heads.dflash import DflashHead


class MarkovHead(nn.Module):
    """Factors of the bias: W1 by the token before, W2 by draft id."""

    def __init__(self, config: DsparkConfig) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(config.vocab_size, config.markov_rank)
        self.markov_w2 = nn.Linear(config.markov_rank, config.draft_vocab_size, bias=False)


class ConfidenceHead(nn.Module):
    """Log-odds of acceptance."""

    def __init__(self, config: DsparkConfig) -> None:
        super().__init__()
        extra = config.markov_rank if config.confidence_reads_token else 0
        self.proj = nn.Linear(config.hidden_size + extra, 1)


class DsparkHead(DflashHead):
    """The head; arguments as in `DflashHead`."""

    kind = "a DSpark head"
    config: DsparkConfig

    def __init__(
        self,
        config: DsparkConfig,
        target_ids: Tensor | None = None,
        *,
        owns_embedding: bool = False,
        owns_output: bool = False,
    ) -> None:
        super().__init__(config, target_ids, owns_embedding=owns_embedding, owns_output=owns_output)
        self.markov_head = MarkovHead(config)
        self.confidence_head = ConfidenceHead(config) if config.has_confidence else None

    def before(self, token_ids: Tensor) -> Tensor:
        """What the token before a draft contributes: W1 of ids int64 [...], [..., R]."""
        return self.markov_head.markov_w1(token_ids)

    def bias(self, before: Tensor) -> Tensor:
        """Biases of all draft ids [..., C] from `before` [..., R]."""
        return self.config.logit_scale * self.markov_head.markov_w2(before)

    def acceptance_logits(self, hidden: Tensor, before: Tensor) -> Tensor:
        """Log-odds that drafts are accepted, guessed before they are drawn, float32 [...].

        Args:
            hidden: Outputs at the drafts [..., H].
            before: Of the tokens before them [..., R].
        """
        assert self.confidence_head is not None
        read = [hidden, before] if self.config.confidence_reads_token else [hidden]
        projection = self.confidence_head.proj
        # one number decides whether a draft is there: no rounding to a short type
        values = torch.cat(read, -1).float() @ projection.weight[0].float()
        return values + projection.bias[0].float()
