"""Drawing a tree of drafts, level after level, from whatever gives their logits.

Axes: B rows, N nodes, D depth, M parents of one level over all rows, V vocabulary of the target.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fairdraft.ops import PLACEHOLDER_TOKEN_ID, RowError
from fairdraft.ops.sample import TileStats, stats_shapes
from fairdraft.speculators.proposal import DraftState, Proposal, TreeProposal
from fairdraft.speculators.sampler import SharedSampler
from fairdraft.speculators.token_tree import TokenTree

#: depth of the drafts (1 first), drafts so far [B, N], rows and nodes to continue [M] to logits
#: [M, V]
NextLogits = Callable[[int, np.ndarray, np.ndarray, np.ndarray], Tensor]


class DraftTree:
    """Draws each node from logits that may depend on what is above it.

    Siblings are drawn without replacement: each from the law of its parent without its elders.
    Meets (a): these laws are handed on as q. Meets (b) and (c): the shape is given before anything
    is drawn; a node is absent where its own elders hold all that q has, or where its parent is.

    Args:
        what: What messages call the speculator.
        tree: The shape.
        vocab_size: V.
        greedy: Takes the best tokens: point masses without noise.
    """

    def __init__(self, what: str, tree: TokenTree, vocab_size: int, *, greedy: bool) -> None:
        self.what = what
        self.tree = tree
        self.vocab_size = vocab_size
        self.greedy = greedy

    def draw(self, state: DraftState, counts: np.ndarray, next_logits: NextLogits) -> Proposal:
        """Draws the first `counts` nodes of the tree for each row.

        Args:
            state: The round.
            counts: Nodes of each row [B], int64; changed where a row fails.
            next_logits: Called once a level, in order.

        Noise:
            One DRAFT race for each node, none when greedy.
        """
        size = int(counts.max(initial=0))
        if not size:
            return Proposal.empty(state.num_rows)
        assert isinstance(state.sampler, SharedSampler)
        drafts = np.full((state.num_rows, size), PLACEHOLDER_TOKEN_ID)
        laws = None if self.greedy else _Laws(state, size, self.vocab_size)
        errors: dict[int, str] = {}
        for depth in range(1, int(self.tree.depths[size]) + 1):
            rows, parents = self._parents(depth, counts, drafts)
            if not len(rows):
                break
            logits = next_logits(depth, drafts, rows, parents).to(state.sampler.device)
            law = state.sampler.law(logits, depth, rows, greedy=self.greedy)
            errors |= self._draw_groups(state.sampler, law, rows, parents, counts, drafts, laws)
            counts[list(errors)] = 0
        parents = torch.tensor(self.tree.parents[:size])
        return TreeProposal(
            torch.from_numpy(drafts),
            torch.from_numpy(counts),
            None if laws is None else laws.logits,
            errors=errors or None,
            parents=parents,
            draft_stats=None if laws is None else laws.stats,
        )

    def _parents(
        self, depth: int, counts: np.ndarray, drafts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows and nodes that are there and have a child to draw, row after row."""
        nodes = np.array([r for r in self.tree.level(depth - 1) if self.tree.children[r]])
        if not len(nodes):
            return nodes, nodes
        first_child = np.array([self.tree.children[r][0] for r in nodes])
        is_there = first_child <= counts[:, None]
        if depth > 1:
            at = np.minimum(nodes, drafts.shape[1]) - 1
            is_there &= drafts[:, at] != PLACEHOLDER_TOKEN_ID
        row, column = np.nonzero(is_there)
        return row, nodes[column]

    def _draw_groups(
        self,
        sampler: SharedSampler,
        law: Tensor,
        rows: np.ndarray,
        parents: np.ndarray,
        counts: np.ndarray,
        drafts: np.ndarray,
        laws: _Laws | None,
    ) -> dict[int, str]:
        """Draws the children of each parent, eldest first; returns the rows that failed."""
        errors: dict[int, str] = {}
        left = law.clone()
        # tokens of each law, known once for all siblings: a device is waited for here
        num_left = (law != -torch.inf).sum(-1).cpu().numpy()
        groups = [self.tree.children[r] for r in parents]
        for place in range(max(map(len, groups))):
            nodes = np.array([group[place] if place < len(group) else 0 for group in groups])
            # that its elders left something says whether a sibling is there, not what it drew
            is_drawn = (nodes > 0) & (nodes <= counts[rows]) & (place < num_left)
            chosen = np.flatnonzero(is_drawn)
            if not len(chosen):
                break
            at = torch.from_numpy(chosen).to(law.device)
            row, node = rows[chosen], nodes[chosen]
            drawn = sampler.draw_nodes(left[at], node, row, greedy=self.greedy)
            error, ids = drawn.error.numpy(), drawn.token_ids.numpy()
            drafts[row, node - 1] = ids
            if laws is not None:
                laws.keep(row, node, law[at], drawn.stats)
            left[at, drawn.token_ids.clamp(min=0).to(law.device)] = -torch.inf
            for failed in np.flatnonzero(error):
                message = RowError(error[failed]).message
                errors[int(row[failed])] = (
                    f"{self.what}, node {node[failed]} of the tree: {message}"
                )
            counts[list(errors)] = 0
        return errors


class _Laws:
    """What the nodes of a round were drawn from, and the statistics of their draws.

    Attributes:
        logits: [B, N, V].
        stats: Of B N rows; None until kernels drew.
    """

    def __init__(self, state: DraftState, size: int, vocab_size: int) -> None:
        self.logits = torch.empty((state.num_rows, size, vocab_size), device=state.sampler.device)
        self.stats: TileStats | None = None

    def keep(self, row: np.ndarray, node: np.ndarray, law: Tensor, stats: TileStats | None) -> None:
        """Writes the laws [M, V] and the statistics of nodes [M] of rows [M]."""
        size = self.logits.shape[1]
        at = torch.from_numpy(row * size + node - 1).to(law.device)
        self.logits.flatten(0, 1)[at] = law
        if stats is None:
            return
        if self.stats is None:
            shapes = stats_shapes(len(self.logits) * size, stats.tile_max.shape[1])
            self.stats = TileStats(
                **{
                    name: torch.zeros(shape, dtype=dtype, device=law.device)
                    for name, (shape, dtype) in shapes.items()
                }
            )
        for kept, drawn in zip(self.stats.tensors(), stats.tensors(), strict=True):
            kept[at] = drawn


def num_tree_nodes(tree: TokenTree, state: DraftState) -> np.ndarray:
    """Nodes that each row has room for [B], from its limits alone."""
    assert state.max_nodes is not None
    counts = np.minimum(tree.num_nodes_to(state.max_draft_tokens), state.max_nodes)
    return np.maximum(counts, 0)
