"""Suffix decoding with several candidates: what most often followed, and what else did.

Point masses, as `suffix`: functions of decided tokens, so hypotheses (a) to (c) hold.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch

from fairdraft.ops import PLACEHOLDER_TOKEN_ID
from fairdraft.speculators.proposal import DraftState, Proposal, TreeProposal
from fairdraft.speculators.suffix import SuffixSpeculator
from fairdraft.speculators.token_tree import TokenTree
from fairdraft.speculators.tree import num_tree_nodes


class SuffixTreeSpeculator(SuffixSpeculator):
    """Fills a tree with the most frequent continuations, the i-th one in the i-th child's place.

    A branch is followed while its frequency, from where the match ends, is at least
    `min_token_prob`; the match whose tree has the most expected tokens is proposed.
    """

    def __init__(self, tree: TokenTree, **options: Any) -> None:
        """Drafts a tree a round; options as `SuffixSpeculator`."""
        super().__init__(tree.depth, **options)
        self.tree = tree

    def propose(self, state: DraftState) -> Proposal:
        """Fills the tree of each row; a row whose last token is new gets no drafts."""
        counts = num_tree_nodes(self.tree, state)
        drafts = np.full((state.num_rows, self.tree.num_nodes), PLACEHOLDER_TOKEN_ID)
        for row in np.flatnonzero(counts > 0):
            text = state.token_ids[row, : state.num_decided[row]]
            depth = int(self.tree.depths[counts[row]])
            found = self.continue_text(text, depth, int(state.sampler.key[row]))
            drafts[row, : len(found)] = found
        is_there = drafts != PLACEHOLDER_TOKEN_ID
        last = (is_there * np.arange(1, self.tree.num_nodes + 1)).max(1)
        counts = np.minimum(counts, last)
        size = int(counts.max(initial=0))
        if not size:
            return Proposal.empty(state.num_rows)
        return TreeProposal(
            torch.from_numpy(drafts[:, :size].copy()),
            torch.from_numpy(counts),
            parents=torch.tensor(self.tree.parents[:size]),
        )

    def commit_path(self, path: np.ndarray, num_accepted_tokens: np.ndarray) -> None:
        """Keeps no state of a row."""

    def _walk(self, rows: list[list[int]], most: int) -> tuple[list[int], float]:
        """Fills the tree down to a depth; returns its ids and how many are expected to be right."""
        ids = [PLACEHOLDER_TOKEN_ID] * self.tree.num_nodes
        groups = {0: (rows, 1.0)}
        score = 0.0
        for node, children in enumerate(self.tree.children):
            depth = int(self.tree.depths[node])
            if node not in groups or depth >= most:
                continue
            places, probability = groups[node]
            places = [place for place in places if place[depth] >= 0]
            counted = Counter(place[depth] for place in places).most_common(len(children))
            for child, (token_id, hits) in zip(children, counted, strict=False):
                chance = probability * hits / len(places)
                if chance < self.min_token_prob:
                    break
                ids[child - 1] = token_id
                groups[child] = [place for place in places if place[depth] == token_id], chance
                score += chance
        return ids, score
