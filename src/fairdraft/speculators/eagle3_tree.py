"""Trees of drafts from an EAGLE-3 head.

A level of the tree is one forward of the head, in which a node sees what is above it and goes on
from its parent's output. Meets (a) to (c) as `DraftTree`. Source: Li et al. 2025, with siblings
sampled without replacement in place of the head's best tokens (these where drafts are greedy).

Axes: B rows, N nodes, H width of the head, M parents of a level over all rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraft.models.blocks import TreeBlock
from fairdraft.speculators.eagle3 import Eagle3Speculator
from fairdraft.speculators.heads import CachedHead
from fairdraft.speculators.proposal import DraftState, Guesses
from fairdraft.speculators.token_tree import TokenTree
from fairdraft.speculators.tree import DraftTree, num_tree_nodes


class Eagle3TreeSpeculator(Eagle3Speculator):
    """Drafts trees with an EAGLE-3 head; slots as `RecurrentSpeculator`."""

    def __init__(
        self, head: CachedHead, tree: TokenTree, vocab_size: int, *, greedy: bool = False
    ) -> None:
        super().__init__(head, tree.depth, vocab_size, greedy=greedy)
        self.tree = tree
        self._drawing = DraftTree(f"the {self.name} head", tree, vocab_size, greedy=greedy)

    def propose(self, state: DraftState) -> Guesses:
        """Drafts the tree's first nodes for each row, fewer where the head's own context ends.

        A row with a single decided token gets none: the target has no state before it.

        Noise:
            One DRAFT race for each node, none when greedy.
        """
        anchor = state.num_decided
        # node c is fed in slot anchor + c - 2
        room = self.head.num_slots - anchor + 1
        counts = np.maximum(np.minimum(num_tree_nodes(self.tree, state), room), 0)
        counts[anchor < 2] = 0
        root = self._kept[0].at(anchor - 2)
        outputs = root.new_zeros(len(anchor), self.tree.num_nodes + 1, root.shape[-1])
        outputs[:, 0] = root

        def next_logits(
            depth: int, drafts: np.ndarray, rows: np.ndarray, parents: np.ndarray
        ) -> Tensor:
            if depth > 1:
                self._run_level(depth - 1, drafts, anchor, (rows, parents), outputs)
            at = torch.from_numpy(rows), torch.from_numpy(parents)
            return self._law(self.head.logits(outputs[at]))

        return self._drawing.draw(state, counts, next_logits)

    def commit_path(self, path: np.ndarray, num_accepted_tokens: np.ndarray) -> None:
        """Does nothing: slots of drafts are written again when their tokens are decided."""

    def _run_level(
        self, depth: int, drafts: np.ndarray, anchor: np.ndarray, continued: Any, outputs: Tensor
    ) -> None:
        """Runs the slots of one depth's nodes; writes their outputs [B, N + 1, H]."""
        rows, parents = continued
        first, last = int(self.tree.level(depth)[0]), int(parents.max())
        counts = np.zeros(len(anchor), np.int64)
        np.maximum.at(counts, rows, parents - first + 1)
        above = torch.tensor(self.tree.parents[first - 1 : last])
        start = np.clip(anchor + first - 2, 0, self.head.num_slots)
        outputs[:, first : last + 1] = self.head.forward(
            torch.from_numpy(drafts[:, first - 1 : last].clip(0)),
            outputs[:, above],
            start,
            counts,
            tree=TreeBlock(anchor - 1, self.tree.depths, self.tree.is_seen, first),
        )
