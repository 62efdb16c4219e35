"""Trees of drafts from a smaller model with a KV cache of its own.

A level of the tree is one forward, in which a node sees what is above it. Meets (a) to (c) as
`DraftTree`; how many nodes a row gets follows from its limits alone. Sources: Chen et al. 2024,
Sequoia; Jeon et al. 2024, RSD-C. Axes: B rows, N nodes, D depth, M parents of a level over all
rows, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairdraft.models import CausalLM
from fairdraft.models.blocks import TreeBlock, keep_path
from fairdraft.models.probe import check_trees
from fairdraft.speculators.draft_model import DraftModelSpeculator
from fairdraft.speculators.proposal import DraftState, Guesses
from fairdraft.speculators.token_tree import TokenTree
from fairdraft.speculators.tree import DraftTree, num_tree_nodes
from fairdraft.speculators.vocabulary import VocabularyMap


class DraftModelTreeSpeculator(DraftModelSpeculator):
    """Samples a tree of drafts from its own checkpoint; the cache as `DraftModelSpeculator`."""

    def __init__(
        self, model: CausalLM, tree: TokenTree, vocabulary: VocabularyMap, *, greedy: bool = False
    ) -> None:
        super().__init__(model, tree.depth, vocabulary, greedy=greedy)
        check_trees(model)
        self.tree = tree
        self._anchor = np.zeros(0, np.int64)
        self._drawing = DraftTree(
            f"draft model {model.name!r}", tree, vocabulary.target_size, greedy=greedy
        )

    def propose(self, state: DraftState) -> Guesses:
        """Drafts the tree's first nodes for each row, as many as both contexts have slots for.

        Noise:
            One DRAFT race for each node, none when greedy.
        """
        self._anchor = anchor = state.num_decided
        # a node is fed in a slot of its own
        counts = np.minimum(num_tree_nodes(self.tree, state), self.model.max_model_len - anchor)
        counts = np.maximum(counts, 0)
        # node 0 is a decided token
        self._is_fed = np.zeros((len(counts), self.tree.num_nodes + 1), np.bool_)

        def next_logits(
            depth: int, drafts: np.ndarray, rows: np.ndarray, parents: np.ndarray
        ) -> Tensor:
            if depth == 1:
                logits = self._feed_decided(state, rows)
            else:
                logits = self._feed_level(depth - 1, drafts, rows, parents)
            return self.vocabulary.fit(logits.to(state.sampler.device))

        return self._drawing.draw(state, counts, next_logits)

    def commit_path(self, path: np.ndarray, num_accepted_tokens: np.ndarray) -> None:
        """Moves what is cached of the accepted nodes to where their positions are."""
        count = len(self._is_fed)
        # a leaf beside the last parent of its level was not fed
        is_fed = np.take_along_axis(self._is_fed, path[:count, 1:].clip(0), 1)
        is_fed &= path[:count, 1:] > 0
        self._num_fed = np.minimum(is_fed.cumprod(1).sum(1), num_accepted_tokens[:count])
        keep_path(self._cache, self._anchor, path, self._num_fed)

    def _feed_level(
        self, depth: int, drafts: np.ndarray, rows: np.ndarray, parents: np.ndarray
    ) -> Tensor:
        """Feeds the nodes of one depth; returns the logits after the given ones [M, V]."""
        first, last = int(self.tree.level(depth)[0]), int(parents.max())
        counts = np.zeros(len(drafts), np.int64)
        np.maximum.at(counts, rows, parents - first + 1)
        self._is_fed[:, first : last + 1] |= np.arange(last - first + 1) < counts[:, None]
        # absent nodes are fed as padding is: nothing sees them
        tokens = drafts[:, first - 1 : last].clip(0)
        start = np.minimum(self._anchor + first - 1, self.model.max_model_len)
        logits = self.model.forward(
            torch.from_numpy(tokens),
            torch.from_numpy(start),
            self._cache,
            num_tokens=torch.from_numpy(counts),
            tree=TreeBlock(self._anchor, self.tree.depths, self.tree.is_seen, first),
        )
        return logits[torch.from_numpy(rows), torch.from_numpy(parents - first)]
