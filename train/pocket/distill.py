"""Distillation of the draft from the full distributions of the target.

The loss is KL(p || q) plus the total variation TV(p, q) = 1 - sum_x min(p(x), q(x)), which is
the probability that speculative sampling rejects a draft (Leviathan et al. 2023, theorem 3.5).
"""

from __future__ import annotations

import torch
from torch.nn import functional
from transformers import LlamaForCausalLM

from train.pocket.data import Tokens
from train.pocket.train import (
    Budget,
    Curve,
    autocast,
    compile_layers,
    fit,
    hidden_states,
    quick_loss,
)


def divergence(
    target_hidden: torch.Tensor,
    target_weight: torch.Tensor,
    draft_hidden: torch.Tensor,
    draft_weight: torch.Tensor,
    tv_weight: float,
) -> torch.Tensor:
    """Mean of KL(p || q) + tv_weight * TV(p, q) over rows; hidden states [N, H], a scalar back."""
    with autocast(str(draft_hidden.device)):
        target_logits = functional.linear(target_hidden, target_weight)
        draft_logits = functional.linear(draft_hidden, draft_weight)
    log_p = target_logits.float().log_softmax(-1).detach()
    log_q = draft_logits.float().log_softmax(-1)
    p = log_p.exp()
    kl = (p * (log_p - log_q)).sum(-1)
    rejected = 0.5 * (p - log_q.exp()).abs().sum(-1)
    return (kl + tv_weight * rejected).mean()


def distill_draft(
    draft: LlamaForCausalLM,
    target: LlamaForCausalLM,
    tokens: Tokens,
    held_out: Tokens,
    budget: Budget,
    *,
    tv_weight: float = 4.0,
    name: str = "draft",
    compiled: bool = False,
) -> Curve:
    """Distils the draft on training windows; returns its curve (held out: next-token loss)."""
    loss = torch.compile(divergence, dynamic=False) if compiled else divergence
    target.eval().requires_grad_(False)
    if compiled:
        compile_layers(draft)

    def loss_of(window: torch.Tensor) -> torch.Tensor:
        ids = window[:, :-1]
        with torch.no_grad():
            target_hidden = hidden_states(target, ids).flatten(0, 1)
        draft_hidden = hidden_states(draft, ids).flatten(0, 1)
        weights = target.lm_head.weight, draft.lm_head.weight
        return loss(target_hidden, weights[0], draft_hidden, weights[1], tv_weight)

    curve = Curve(name)
    draft.train()
    fit(draft, loss_of, tokens, budget, curve, quick_loss(draft, held_out, budget))
    draft.eval()
    return curve
