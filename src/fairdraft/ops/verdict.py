"""What a verified round emits, and the weights that it was decided by.

Axes: B rows, K drafts, V vocabulary, N nodes of a tree, D its depth.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class DecisionWeights:
    """The rule's weights without any noise, for exact enumeration.

    Rows that a walk never reads hold zeros under rule `block` and junk under rule `token`; their
    `end_probability` is 0. Rule `block` holds NaN for a request with an error.

    Attributes:
        accept_probability: float64 [B, K], the chance that the test of each present draft passes.
            Rule `token`, greedy rows and point masses: drafts are tested in turn, and the first
            test to fail ends the walk. Rule `block`: h_i, each test independent of the others,
            and the last test to pass ends the walk. Trees: [B, N], siblings are tested in turn
            and the first test to pass leads on.
        next_law: float64 [B, K + 1, V], the law of the token emitted if the walk ends at a row.
        end_probability: float64 [B, K + 1], the chance that the walk ends at each row.
    """

    accept_probability: Tensor
    next_law: Tensor
    end_probability: Tensor


@dataclass(frozen=True)
class Verdict:
    """What a round emits.

    Attributes:
        token_ids: int64 [B, K + 1], accepted drafts and one token more, padded with -1.
        num_accepted_tokens: int64 [B], 0..K, the last token excluded.
        num_emitted_tokens: int64 [B], accepted + 1; only the accepted ones if `error` is set.
        last_stream: int64 [B], the `Stream` that the last token counts for, whatever drew it
            (greedy rows and rule `common_noise` too).
        margin: float64 [B, K + 1], how far each decision was from another one: second over
            best score minus 1, and likewise for acceptance tests (greedy: the logit gap). Rule
            `block` accepts by one test, whose margin all accepted drafts share.
        error: int64 [B], a `RowError` each; only rows that the walk read count.
        num_broken: How many sampled drafts had q = 0, a broken contract; they were rejected, and
            the round's law is not the target's. On a GPU int64 [B], else one number (a
            0-dimensional tensor in a compiled call).
        weights: DecisionWeights if asked for.
        lossy: Name of the rule if it is lossy, so that nobody takes this for the target's law.
    """

    token_ids: Tensor
    num_accepted_tokens: Tensor
    num_emitted_tokens: Tensor
    last_stream: Tensor
    margin: Tensor
    error: Tensor
    num_broken: int | Tensor
    weights: DecisionWeights | None = None
    lossy: str | None = None

    def cpu(self) -> Self:
        """The same on the host; waits for the device, once, if it was decided on one."""
        if self.token_ids.is_cpu:
            return self
        own = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **copied_together(own))


def copied_together(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of int64 and float64 tensors of one device on the host, by one transfer.

    The copies lie side by side in one piece of memory; every bit of a float is kept.
    """
    flat = [tensor.reshape(-1).view(torch.int64) for tensor in tensors.values()]
    parts = torch.cat(flat).cpu().split([len(part) for part in flat])
    return {
        name: part.view(tensor.dtype).view(tensor.shape)
        for (name, tensor), part in zip(tensors.items(), parts, strict=True)
    }


@dataclass(frozen=True)
class TreeVerdict(Verdict):
    """What a round emits from a tree of drafts; D takes the place of K, except in `weights`.

    Attributes:
        path: int64 [B, D + 1], the row that decided each token: the root, then the nodes that
            stand, `num_accepted_tokens` of them; padded with -1.
        first_child: int64 [B, D + 1], the eldest child of each row of the path, which is tested
            first; 0 where there is none.
    """

    path: Tensor = field(kw_only=True)
    first_child: Tensor = field(kw_only=True)
