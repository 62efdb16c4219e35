"""Log-probabilities of tokens, from the target's raw logits or from the law that was sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fairdraft import ops
from fairdraft.ops.arithmetic import GREEDY_TEMPERATURE

LogprobsMode = Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's log-probability (nats), or its logit; `LLM(logprobs_mode=)` says which.

    Attributes:
        logprob: Of the target's token, whether it was drafted, replaced or added.
        rank: 1 for the most probable token of the row; ties share the best rank.
        decoded_token: Its text alone, or None without a tokenizer.
    """

    logprob: float
    rank: int
    decoded_token: str | None = None


def check_logprobs_mode(mode: str) -> None:
    """Refuses an unknown mode."""
    if mode not in get_args(LogprobsMode):
        known = ", ".join(get_args(LogprobsMode))
        raise ValueError(f"logprobs_mode={mode!r}: must be one of {known}")


def tempered(logits: Tensor, temperature: float) -> Tensor:
    """Logits at a temperature; greedy rows, whose temperature is 0, at 1."""
    return logits if temperature < GREEDY_TEMPERATURE else logits.double() / temperature


def reported(entries: list[tuple[int, float, int]], tokenizer: Any) -> dict[int, Logprob]:
    """One position's entries as the caller sees them."""
    return {
        token_id: Logprob(value, rank, tokenizer.decode([token_id]) if tokenizer else None)
        for token_id, value, rank in entries
    }


def gather_logprobs(
    logits: Tensor, token_ids: Tensor, num_top: int, *, normalized: bool = True
) -> list[list[tuple[int, float, int]]]:
    """Reports each row's emitted token first, then its `num_top` most probable ones.

    Args:
        logits: [N, V], float.
        token_ids: The emitted token of each row [N], int64.
        num_top: Most probable tokens to add; the emitted one is not repeated, and tokens of
            probability 0 are left out.
        normalized: Whether values are logprobs; logits themselves otherwise.

    Returns:
        For each row a list of (token id, logprob, rank).
    """
    if normalized:
        found = ops.logprobs(logits.float(), token_ids, top_n=num_top)
        firsts = (found.logprobs, found.ranks)
        tops = (found.top_ids, found.top_logprobs, found.top_ranks)
    else:
        firsts, tops = _logits_of(logits, token_ids, num_top)
    columns = (token_ids, *firsts)
    rows = [[entry] for entry in zip(*(column.tolist() for column in columns), strict=True)]
    for row, *top in zip(rows, *(part.tolist() for part in tops), strict=True):
        emitted = row[0][0]
        row.extend(
            entry
            for entry in zip(*top, strict=True)
            if entry[0] != emitted and entry[1] > -torch.inf
        )
    return rows


def _logits_of(
    logits: Tensor, token_ids: Tensor, num_top: int
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
    """Values and ranks of tokens [N], and ids, values and ranks of the best [N, num_top]."""
    values = logits.double()
    chosen = values.gather(1, token_ids[:, None])
    ranks = (values > chosen).sum(dim=1) + 1
    top = values.topk(min(num_top, logits.shape[-1]), dim=-1)
    # equal logits share a rank, as for the emitted token
    top_ranks = (values[:, None, :] > top.values[:, :, None]).sum(dim=-1) + 1
    return (chosen[:, 0], ranks), (top.indices, top.values, top_ranks)
