"""What an observer of the engine sees of each round, before stops cut anything.

Axes: B rows, K drafts, V the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fairdraft.ops import SparseLogits
from fairdraft.ops.token_tree import TokenTree


@dataclass(frozen=True)
class ObservedTree:
    """The whole tree of a round of rule `tree`. Axes besides those above: N nodes.

    Attributes:
        shape: Which node is below which.
        token_ids: Drafts [B, N], -1 for nodes that are absent.
        num_nodes: Nodes of each row [B], the first ones.
        draft_logits: What each node's group was sampled from [B, N, V]; None for point masses.
        target_logits: Of every node, after filters, before temperature [B, N + 1, V].
    """

    shape: TokenTree
    token_ids: np.ndarray
    num_nodes: np.ndarray
    draft_logits: Tensor | None
    target_logits: Tensor


@dataclass(frozen=True)
class Observation:
    """One verified round, as it was decided. Arrays are valid until the observer returns.

    Under rule `tree` this is the walk: K is the depth, row i the one that decided token i, and
    draft i the candidate for it that was tested first.

    Attributes:
        key: Request keys [B], uint64.
        sample: Which of the request's samples [B].
        anchor: Decided tokens before the round [B].
        temperature: [B].
        draft_token_ids: Drafts [B, K].
        num_draft_tokens: Drafts present [B].
        draft_logits: What drafts were sampled from [B, K, V]; None for point masses.
        token_ids: Emitted tokens [B, K + 1], padded with -1.
        num_accepted_tokens: [B].
        num_emitted_tokens: [B].
        raw_target_logits: The target's [B, K + 1, V].
        target_logits: The same after filters, before temperature [B, K + 1, V].
        errors: Row to message, of requests that fail. What such a row emits is cut where its walk
            came to a broken row, which its logits alone need not show.
        is_guessed: Drafts may share the target's noise: given its draft, a token does not follow
            the target. Without the draft it does.
        tree: What the walk went down, under rule `tree`.
    """

    key: np.ndarray
    sample: np.ndarray
    anchor: np.ndarray
    temperature: np.ndarray
    draft_token_ids: np.ndarray
    num_draft_tokens: np.ndarray
    draft_logits: Tensor | SparseLogits | None
    token_ids: np.ndarray
    num_accepted_tokens: np.ndarray
    num_emitted_tokens: np.ndarray
    raw_target_logits: Tensor
    target_logits: Tensor
    errors: Mapping[int, str]
    is_guessed: bool = False
    tree: ObservedTree | None = None


Observer = Callable[[Observation], None]
