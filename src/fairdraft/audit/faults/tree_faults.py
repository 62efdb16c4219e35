"""Faults of trees of drafts: how siblings are arranged, tested and scored."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairdraft.audit.faults.fault import Fault, Function, Planting

__all__ = ["TREE_FAULTS"]


def _whole_law(original: Function, planting: Planting) -> Function:
    return lambda row, token_ids: row


def _resorted(original: Function, planting: Planting) -> Function:
    """The deepest siblings by falling q: nothing is below them that would have to move along."""

    def draw(self: Any, state: Any, *args: Any) -> Any:
        proposal = original(self, state, *args)
        if not proposal.token_ids.shape[1] or proposal.draft_logits is None:
            return proposal
        for group in filter(None, self.tree.children):
            nodes = [c - 1 for c in group if c <= proposal.token_ids.shape[1]]
            if len(nodes) < 2 or any(self.tree.children[c + 1] for c in nodes):
                continue
            ids = proposal.token_ids[:, nodes]
            law = proposal.draft_logits[:, nodes[0]].gather(1, ids.clamp(min=0))
            law = law.masked_fill(ids < 0, -float("inf"))
            order = law.argsort(dim=1, descending=True, stable=True)
            proposal.token_ids[:, nodes] = ids.gather(1, order)
        return proposal

    return draw


def _eldest_uniform(original: Function, planting: Planting) -> Function:
    def addresses(at: Any, tree: Any) -> Any:
        accept_at, final_at = original(at, tree)
        count, size = tree.parents.shape
        eldest = np.array([[row.index(r) for r in row] for row in tree.parents.tolist()], np.int64)
        chosen = np.arange(count)[:, None] * size + eldest.reshape(count, size)
        return accept_at[chosen.reshape(-1)], final_at

    return addresses


TREE_FAULTS = (
    Fault(
        "siblings-scored-alone",
        "each sibling of a tree is scored by the whole q, as if it had been drawn with replacement",
        "fairdraft.ops.tree._without",
        _whole_law,
        "q",
    ),
    Fault(
        "siblings-resorted",
        "siblings of a tree are sorted by falling q after they were drawn",
        "fairdraft.speculators.tree.DraftTree.draw",
        _resorted,
        "q",
    ),
    Fault(
        "siblings-share-a-coin",
        "the siblings of a node are tested with the uniform of the eldest",
        "fairdraft.ops.tree_inputs._addresses",
        _eldest_uniform,
        "accept",
    ),
)
