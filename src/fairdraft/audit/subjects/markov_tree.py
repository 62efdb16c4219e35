"""One round of Markov tables whose drafts are a tree, through the production drawing and rule.

Axes: N texts in step, D depth of the tree, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch

from fairdraft import ops
from fairdraft.audit.subjects.markov import (
    Decoding,
    MarkovPair,
    Round,
    Rows,
    contexts,
    look_up,
    new_sampler,
)
from fairdraft.noise import Trace
from fairdraft.ops import PLACEHOLDER_TOKEN_ID
from fairdraft.speculators import DraftState, TreeProposal, read_token_tree
from fairdraft.speculators.tree import DraftTree, num_tree_nodes

__all__ = ["play_tree"]


def play_tree(
    pair: MarkovPair, decoding: Decoding, rows: Rows, trace: Trace | None = None
) -> Round:
    """Drafts and verifies one round of every row; draft i is the first candidate for token i."""
    count = len(rows)
    tree = read_token_tree(decoding.breadths)
    state = DraftState(
        rows.last[:, None],
        rows.anchor,
        rows.num_drafts,
        new_sampler(decoding, rows, trace, tree),
        max_nodes=np.full(count, tree.num_nodes),
    )

    def next_logits(
        depth: int, drafts: np.ndarray, at: np.ndarray, parents: np.ndarray
    ) -> torch.Tensor:
        last = rows.last[at] if depth == 1 else drafts[at, parents - 1]
        return look_up(pair.draft_table, torch.from_numpy(last))

    drawing = DraftTree("the table", tree, pair.vocab_size, greedy=decoding.is_greedy)
    proposal = drawing.draw(state, num_tree_nodes(tree, state), next_logits)
    parents = proposal.parents if isinstance(proposal, TreeProposal) else np.zeros(0, np.int64)
    verdict = ops.verify_tree(
        look_up(pair.target_table, contexts(rows, proposal.token_ids)),
        proposal.token_ids,
        parents,
        proposal.num_draft_tokens,
        draft_logits=proposal.draft_logits,
        key=rows.key,
        anchor=rows.anchor,
        sample=rows.sample,
        temperature=decoding.temperature,
        impl=decoding.impl,
        trace=trace,
    )
    tested = verdict.first_child[:, :-1].numpy()
    drafted = np.take_along_axis(proposal.token_ids.numpy(), np.maximum(tested - 1, 0), 1)
    return Round(
        verdict.token_ids.numpy(),
        verdict.num_accepted_tokens.numpy(),
        np.where(tested > 0, drafted, PLACEHOLDER_TOKEN_ID),
        (tested > 0).sum(1),
        verdict.error.numpy(),
    )
