"""Log-probabilities of the emitted tokens, from the target's raw logits."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fairdraft import ops


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
    found = ops.logprobs(logits, token_ids, top_n=num_top)
    rows = [
        [entry]
        for entry in zip(
            token_ids.tolist(), found.logprobs.tolist(), found.ranks.tolist(), strict=True
        )
    ]
    tops = (found.top_ids.tolist(), found.top_logprobs.tolist(), found.top_ranks.tolist())
    for row, *top in zip(rows, *tops, strict=True):
        emitted = row[0][0]
        row.extend(entry for entry in zip(*top, strict=True) if entry[0] != emitted)
    return rows
