"""Log-probabilities of the emitted tokens, from the target's raw logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's log-probability under the raw logits (nats).

    Attributes:
        logprob: Before temperature and filters.
        rank: 1 for the most probable token of the row; ties share the best rank.
        decoded_token: Its text alone, or None without a tokenizer.
    """

    logprob: float
    rank: int
    decoded_token: str | None = None


def gather_logprobs(
    logits: Tensor, token_ids: Tensor, num_top: int
) -> list[list[tuple[int, float, int]]]:
    """Reports each row's emitted token first, then its `num_top` most probable ones.

    Args:
        logits: Raw logits [N, V], float.
        token_ids: The emitted token of each row [N], int64.
        num_top: Most probable tokens to add; the emitted one is not repeated.

    Returns:
        For each row a list of (token id, logprob, rank).
    """
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    chosen = logprobs.gather(1, token_ids[:, None])
    ranks = (logprobs > chosen).sum(dim=1) + 1
    rows = [
        [(token, value, rank)]
        for token, value, rank in zip(
            token_ids.tolist(), chosen[:, 0].tolist(), ranks.tolist(), strict=True
        )
    ]
    if num_top:
        top = logprobs.topk(min(num_top, logits.shape[-1]), dim=-1)
        # equal logits share a rank, as for the emitted token
        top_ranks = (logprobs[:, None, :] > top.values[:, :, None]).sum(dim=-1) + 1
        for row, ids, values, at in zip(
            rows, top.indices.tolist(), top.values.tolist(), top_ranks.tolist(), strict=True
        ):
            emitted = row[0][0]
            row.extend(entry for entry in zip(ids, values, at, strict=True) if entry[0] != emitted)
    return rows
