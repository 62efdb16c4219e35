"""The contract between a speculator and the engine.

Let H_i be everything before the round, the drafts x_<i, and private randomness that no ACCEPT,
RESIDUAL, BONUS or TARGET draw uses. A speculator promises: (a) q_i is the exact law of x_i given
H_i, in the numbers actually used; (b) whether draft i is present is decided from H_i and q_i
alone, never from x_i nor from anything computed from x_i; (c) the same for selecting, reordering
and merging proposals. Under (a) to (c) the verification rules are exact for ragged K. Rule
`common_noise` needs none of them: it emits the target's own draws, and drafts are guesses of these.

Axes: B rows, K drafted, V vocabulary of the target, N nodes of a tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fairdraft.ops import PLACEHOLDER_TOKEN_ID, SparseLogits

if TYPE_CHECKING:
    from fairdraft.ops.sample import TileStats
    from fairdraft.speculators.features import Features
    from fairdraft.speculators.memory import TargetMemory
    from fairdraft.speculators.sampler import CommonSampler, SharedSampler
    from fairdraft.speculators.token_tree import TokenTree


@dataclass
class Guesses:
    """Drafted tokens of one round without a law: only rule `common_noise` verifies them.

    Attributes:
        token_ids: Drafts [B, K], int64, padded with PLACEHOLDER_TOKEN_ID.
        num_draft_tokens: Drafts present in each row [B], int64.
        forbidden: Drafts that keep their q but have target probability 0 [B, K]; None for none.
        errors: Row to message, for rows whose drafts could not be drawn; they fail.
    """

    token_ids: Tensor
    num_draft_tokens: Tensor
    forbidden: Tensor | None = field(default=None, kw_only=True)
    errors: dict[int, str] | None = field(default=None, kw_only=True)


@dataclass
class Proposal(Guesses):
    """Drafted tokens of one round and the law they were drawn from, for every rule.

    Attributes:
        draft_logits: What each draft was sampled from [B, K, V]; None for point masses.
        draft_temperature: Temperature of `draft_logits` [B]; None for the request's own.
    """

    draft_logits: Tensor | SparseLogits | None = None
    draft_temperature: Tensor | None = None

    @classmethod
    def empty(cls, num_rows: int) -> Proposal:
        """A proposal without drafts: every row decodes plainly."""
        return cls(
            token_ids=torch.full((num_rows, 0), PLACEHOLDER_TOKEN_ID, dtype=torch.int64),
            num_draft_tokens=torch.zeros(num_rows, dtype=torch.int64),
        )


@dataclass
class TreeProposal(Proposal):
    """A tree of drafts for rule `tree`; N nodes in the places of K drafts.

    A sampled node's `draft_logits` are the law of its whole group, from which the node was drawn
    without its elder siblings. PLACEHOLDER_TOKEN_ID is an absent node; what is below it is absent.

    Attributes:
        parents: The parent of each node [N], int64; 0 is the last decided token.
        draft_stats: Of the draws of all nodes, as `ops.verify_tree` takes them [B N]; None on the
            host, which has no use for them.
    """

    parents: Tensor = field(kw_only=True)
    draft_stats: TileStats | None = field(default=None, kw_only=True)


@dataclass
class DraftState:
    """What a speculator may see of a round.

    Attributes:
        token_ids: Decided ids, prompt and output [B, L], int64; row b holds `num_decided[b]`.
        num_decided: Decided tokens of each row [B]; also the round's anchor.
        max_draft_tokens: Most drafts that each row has room for [B], from its limits alone.
        sampler: Draws drafts at the round's addresses, under each row's temperature and filters;
            under rule `common_noise` one that gives no laws.
        memory: The target's keys and values at decided tokens, for this round alone; None where
            there is no engine.
        max_nodes: Most nodes of a tree that each row has slots for [B]; None for chains.
    """

    token_ids: np.ndarray
    num_decided: np.ndarray
    max_draft_tokens: np.ndarray
    sampler: SharedSampler | CommonSampler
    memory: TargetMemory | None = None
    max_nodes: np.ndarray | None = None

    @property
    def num_rows(self) -> int:
        """Rows of the batch, B."""
        return len(self.num_decided)


class Speculator(Protocol):
    """Proposes tokens; never touches noise.

    Rows are numbered as in the engine's batch. A speculator with state per row keeps it in step
    through `admit_row`, `move_row` and `drop_row`; `commit` ends a round.
    """

    name: str
    num_speculative_tokens: int

    def propose(self, state: DraftState) -> Guesses:
        """Drafts up to `state.max_draft_tokens` for each row.

        Returns:
            Proposal; Guesses if `state.sampler` gave no laws.
        """
        ...

    def commit(self, num_accepted_tokens: np.ndarray) -> None:
        """Learns how many drafts of each row stood; called once after each `propose`."""
        ...

    def admit_row(self, row: int) -> None:
        """A sequence takes `row`, with whatever tokens are decided by then."""
        ...

    def move_row(self, source: int, destination: int) -> None:
        """The sequence in `source` moves to `destination`, which is free."""
        ...

    def drop_row(self, row: int) -> None:
        """The sequence in `row` left, finished or preempted."""
        ...


@runtime_checkable
class TreeSpeculator(Protocol):
    """A speculator that proposes trees of one shape, a `TreeProposal` a round.

    `propose` drafts the first nodes of the tree, down to `state.max_draft_tokens` of depth and at
    most `state.max_nodes`.
    """

    tree: TokenTree

    def commit_path(self, path: np.ndarray, num_accepted_tokens: np.ndarray) -> None:
        """Learns which nodes stood, path[b, 1 : num_accepted_tokens[b] + 1]; before `commit`."""
        ...


@runtime_checkable
class FeatureReader(Protocol):
    """A speculator that reads hidden states of the target.

    The engine shows it every decided token but a row's last, in order: a prompt's when its row is
    admitted (again after a preemption), later ones at the end of each round, drafted in or not.
    """

    feature_layers: tuple[int, ...]

    def observe(self, features: Features) -> None:
        """Takes in the features of newly decided tokens."""
        ...
