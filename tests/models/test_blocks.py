"""Blocks whose tokens are nodes of a tree, against each node's path from scratch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fairdraft.models import CausalLM, load_model
from fairdraft.models.blocks import TreeBlock, keep_path
from fairdraft.models.probe import check_trees
from fairdraft.speculators import read_token_tree
from tests.models.networks import CONFIGS, VOCAB_SIZE, network, reference_logits
from tests.models.test_causal_lm import tolerance

TREE = read_token_tree([2, 2, 1])


class Trees:
    """Rows of decided tokens with a tree below each, in one cache."""

    def __init__(self, lm: CausalLM, lengths: list[int]) -> None:
        self.lm, self.cache = lm, lm.new_cache(num_rows=1, length=16)
        generator = torch.Generator().manual_seed(4)
        self.texts = [
            torch.randint(VOCAB_SIZE, (n,), generator=generator).tolist() for n in lengths
        ]
        size = (len(lengths), TREE.num_nodes)
        self.nodes = torch.randint(VOCAB_SIZE, size, generator=generator)
        self.num_decided = np.array(lengths)
        lm.prefill([text[:-1] for text in self.texts], self.cache)

    def path(self, row: int, node: int) -> list[int]:
        """Decided tokens and those from the root to a node."""
        seen = np.flatnonzero(TREE.is_seen[node])[1:]
        return self.texts[row] + [int(self.nodes[row, c - 1]) for c in seen]

    def forward(self, first: int, last: int, count: list[int] | None = None) -> Any:
        """Forwards nodes first..last; the root is the last decided token."""
        root = torch.tensor([text[-1:] for text in self.texts])
        block = torch.cat([root, self.nodes], 1)[:, first : last + 1]
        return self.lm.forward(
            block,
            torch.from_numpy(self.num_decided - 1 + first),
            self.cache,
            num_tokens=None if count is None else torch.tensor(count),
            tree=TreeBlock(self.num_decided, TREE.depths, TREE.is_seen, first),
            logits_dtype=None,
        )

    def worst_difference(self, logits: Any, first: int, last: int) -> float:
        worst = 0.0
        for row in range(len(self.texts)):
            for node in range(first, last + 1):
                expected = reference_logits(self.lm.model, self.path(row, node))[-1]
                difference = (logits[row, node - first] - expected).abs().max()
                worst = max(worst, float(difference / expected.abs().max()))
        return worst


@pytest.mark.parametrize("shape", CONFIGS)
def test_nodes_equal_their_paths_from_scratch_and_an_accepted_path_goes_on(shape: str) -> None:
    """At once and level by level, past a sliding window; then as if the path were decided."""
    lm = load_model(network(shape, dtype=torch.float64))
    check_trees(lm)
    limit = tolerance(shape, torch.float64)
    trees = Trees(lm, [12, 3, 25])
    logits = trees.forward(0, TREE.num_nodes)
    assert trees.worst_difference(logits, 0, TREE.num_nodes) < limit
    trees.forward(0, 0)
    for depth in range(1, TREE.depth + 1):
        level = TREE.level(depth).tolist()
        logits = trees.forward(level[0], level[-1])
        assert trees.worst_difference(logits, level[0], level[-1]) < limit
    leaf = TREE.num_nodes
    path = np.tile(np.flatnonzero(TREE.is_seen[leaf]), (3, 1))
    kept = np.array([TREE.depth, 1, 0])
    keep_path(trees.cache, trees.num_decided, path, kept)
    texts = [
        trees.path(row, int(path[row, kept[row]])) if kept[row] else trees.texts[row]
        for row in range(3)
    ]
    start = torch.tensor([len(text) for text in texts])
    following = torch.tensor([[5, 6]] * 3)
    logits = lm.forward(following, start, trees.cache, logits_dtype=None)
    for row, text in enumerate(texts):
        expected = reference_logits(lm.model, [*text, 5, 6])[-2:]
        assert float((logits[row] - expected).abs().max() / expected.abs().max()) < limit


def test_fewer_nodes_and_the_context_limit_are_padding() -> None:
    """Rows that have slots for some nodes only; what is past the context is not read."""
    lm = load_model(network("llama", dtype=torch.float64))
    trees = Trees(lm, [lm.max_model_len - 2, 9])
    logits = trees.forward(0, TREE.num_nodes, [3, 1 + TREE.num_nodes])
    assert trees.worst_difference(logits[:, :3], 0, 2) < 1e-10
    trees.texts, trees.nodes = trees.texts[1:], trees.nodes[1:]
    assert trees.worst_difference(logits[1:], 0, TREE.num_nodes) < 1e-10


def test_a_model_that_takes_slots_for_positions_is_refused() -> None:
    lm = load_model(network("llama"))
    forward = lm.forward

    def by_slot(*args: Any, tree: Any = None, **options: Any) -> Any:
        if tree is not None:
            tree = TreeBlock(tree.num_decided, np.arange(len(tree.depths)), tree.is_seen, 0)
        return forward(*args, tree=tree, **options)

    lm.forward = by_slot
    with pytest.raises(ValueError, match="cannot forward trees: at a node its logits differ"):
        check_trees(lm)
