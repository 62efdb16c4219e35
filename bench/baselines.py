"""What engines do in plain torch: the sampling and verification that the ops are timed against.

Axes: B rows, K drafts, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor


def inverse_cdf(logits: Tensor) -> Tensor:
    """softmax, cumsum, searchsorted: one token a row [B, V] -> [B]."""
    return _search(_softmax(logits))


def gumbel(logits: Tensor) -> Tensor:
    """softmax over exponentials, argmax: the Gumbel trick as engines write it."""
    probs = _softmax(logits)
    return probs.div_(torch.empty_like(probs).exponential_()).argmax(dim=-1)


def multinomial(logits: Tensor) -> Tensor:
    """softmax, torch.multinomial."""
    return torch.multinomial(_softmax(logits), 1).squeeze(-1)


def verify(target_logits: Tensor, draft_logits: Tensor, draft_token_ids: Tensor) -> Tensor:
    """Speculative sampling of a chain: [B, K + 1, V], [B, K, V], [B, K] -> ids [B, K + 1].

    Leviathan et al. 2023, algorithm 1, over the whole batch at once.
    """
    p = _softmax(target_logits)
    q = _softmax(draft_logits)
    depth = draft_token_ids.shape[1]
    index = draft_token_ids[..., None]
    p_x = p[:, :-1].gather(-1, index).squeeze(-1)
    q_x = q.gather(-1, index).squeeze(-1)
    is_kept = torch.rand_like(p_x) * q_x < p_x
    num_accepted = is_kept.long().cumprod(dim=1).sum(dim=1)
    rows = torch.arange(len(p))
    last = p[rows, num_accepted]
    residual = (last - q[rows, num_accepted.clamp(max=depth - 1)]).clamp_(min=0)
    is_rejected = num_accepted < depth
    weights = torch.where(is_rejected[:, None], residual, last)
    weights /= weights.sum(dim=-1, keepdim=True)
    token_ids = torch.full((len(p), depth + 1), -1)
    token_ids[:, :depth] = draft_token_ids
    token_ids[torch.arange(depth + 1) > num_accepted[:, None]] = -1
    token_ids[rows, num_accepted] = _search(weights)
    return token_ids


def read(logits: Tensor) -> Tensor:
    """The floor: a reduction that reads every logit once."""
    return logits.amax(dim=-1)


def _softmax(logits: Tensor) -> Tensor:
    return torch.softmax(logits, dim=-1, dtype=torch.float32)


def _search(probs: Tensor) -> Tensor:
    cumulative = probs.cumsum(dim=-1)
    drawn = torch.rand(len(probs), 1) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, drawn).squeeze(-1)
