"""Faults of trees of drafts: how siblings are arranged, tested and scored."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairdraft.audit.faults.fault import Fault, Function, Planting
from fairdraft.ops.rows import RowError
from fairdraft.ops.tree import Candidate

__all__ = ["TREE_FAULTS", "k_seq"]


def k_seq(p: np.ndarray, q: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, float]:
    """K-SEQ (Sun et al. 2023, SpecTr, arXiv 2310.15141): exact for independent candidates alone.

    Each of `size` candidates stands with chance min(1, p / (gamma q)); gamma is the smallest that
    leaves no negative residual.

    Args:
        p, q: Laws of target and draft [V].
        size: Candidates for the token.

    Returns:
        Chances to stand [V], the law of what replaces all of them [V], and gamma.
    """

    def parts(gamma: float) -> tuple[np.ndarray, np.ndarray]:
        kept = np.minimum(p / gamma, q)
        mass = kept.sum()
        return kept, p - kept * (1 - (1 - mass) ** size) / mass

    low, high = 1.0, float(size)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if parts(middle)[1].min() >= 0 else (middle, high)
    kept, residual = parts(high)
    accept = np.divide(kept, q, out=np.ones_like(q), where=q > 0)
    return accept, residual / residual.sum(), high


def _by_k_seq(original: Function, planting: Planting) -> Function:
    def candidates(inputs: Any, row: Any, b: int, node: int) -> Any:
        children = inputs.shape.children(b, node)
        for c in children:
            laws = [(row, inputs.target_scale[b]), (inputs.draft[b, c - 1], inputs.draft_scale[b])]
            p, q = (_softmax(logits, scale) for logits, scale in laws)
            accept, rest, _ = k_seq(p, q, len(children))
            x = int(inputs.token_ids[b, c - 1])
            yield Candidate(c, accept[x] * q[x], q[x], rest, RowError.NONE)

    return candidates


def _softmax(logits: np.ndarray, scale: float) -> np.ndarray:
    weights = np.exp2(float(scale) * (logits - logits.max()).astype(np.float64))
    return weights / weights.sum()


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
        "siblings-by-k-seq",
        "siblings, drawn without replacement, are tested by K-SEQ, which needs independent draws",
        "fairdraft.ops.tree.candidates",
        _by_k_seq,
        "accept",
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
