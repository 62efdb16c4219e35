"""What a verified round emits, and the weights that it was decided by.

Axes: B rows, K drafts, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class DecisionWeights:
    """The rule's weights without any noise, for exact enumeration.

    Attributes:
        accept_probability: float64 [B, K], for each present draft, given that it is tested.
        next_law: float64 [B, K + 1, V], the law of the token emitted if the walk ends at a row.
    """

    accept_probability: Tensor
    next_law: Tensor


@dataclass(frozen=True)
class Verdict:
    """What a round emits.

    Attributes:
        token_ids: int64 [B, K + 1], accepted drafts and one token more, padded with -1.
        num_accepted_tokens: int64 [B], 0..K, the last token excluded.
        num_emitted_tokens: int64 [B], accepted + 1; only the accepted ones if `error` is set.
        last_stream: int64 [B], the `Stream` that the last token counts for (greedy rows too).
        margin: float64 [B, K + 1], how far each decision was from another one: second over
            best score minus 1, and likewise for acceptance tests (greedy: the logit gap).
        error: int64 [B], a `RowError` each; only rows that the walk read count.
        num_broken: How many sampled drafts had q = 0, a broken contract; they were rejected, and
            the round's law is not the target's.
        weights: DecisionWeights if asked for.
    """

    token_ids: Tensor
    num_accepted_tokens: Tensor
    num_emitted_tokens: Tensor
    last_stream: Tensor
    margin: Tensor
    error: Tensor
    num_broken: int
    weights: DecisionWeights | None = None
