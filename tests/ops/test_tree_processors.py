"""Processors on trees of drafts: each row is the last row of a chain along its own path.

By `==` of bits, on random trees; chains are held to Hugging Face in `test_processors.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fairdraft.ops import processors
from fairdraft.ops.processors import DraftedPaths
from fairdraft.ops.processors.bad_words import BadWords
from fairdraft.ops.token_tree import TokenTree, chain_of, tree_of

#: few ids, so that paths, siblings and history share tokens
V, B, N = 5, 3, 14
PROMPT, DECIDED = np.array([3, 1, 2]), np.array([9, 1, 4])
WORDS = BadWords.of([[1], [0, 2], [3, 4, 1]], [[2, 2], [1, 0, 3], [4, 4, 4, 0]])

Process = Callable[[torch.Tensor, DraftedPaths], Any]

PROCESSES: dict[str, Process] = {
    "repetition": lambda logits, paths: processors.apply_penalties(logits, paths, repetition=1.7),
    "presence, frequency": lambda logits, paths: processors.apply_penalties(
        logits, paths, presence=0.3, frequency=[0.7, 0.1, -0.2]
    ),
    "bad words": lambda logits, paths: processors.forbid_bad_words(logits, paths, [WORDS] * B),
    "n-grams": lambda logits, paths: processors.forbid_repeated_ngrams(
        logits, paths, np.array([1, 3, 2])
    ),
    "early ends": lambda logits, paths: processors.forbid_early_ends(
        logits, paths, np.array([8, 2, 0]), [np.array([4]), np.array([0, 1]), np.array([2])]
    ),
}


def random_tree(generator: np.random.Generator) -> TokenTree:
    return tree_of(tuple(int(generator.integers(0, node)) for node in range(1, N + 1)))


def paths_of(text: np.ndarray, drafts: np.ndarray, given: Any, tree: TokenTree) -> DraftedPaths:
    return DraftedPaths.of_round(text, PROMPT, DECIDED, drafts, given, vocab_size=V, tree=tree)


@pytest.mark.parametrize("name", PROCESSES)
def test_a_row_of_a_tree_is_that_of_the_chain_above_it(name: str) -> None:
    generator = np.random.default_rng(5)
    for _ in range(3):
        tree = random_tree(generator)
        text = generator.integers(0, V, (B, 9))
        drafts = generator.integers(0, V, (B, N))
        drafts[1, 3], drafts[2, 5] = -1, V
        given = np.array([N, N, 9])
        logits = torch.from_numpy(generator.normal(size=(B, N + 1, V)).astype(np.float32))
        paths, found = paths_of(text, drafts, given, tree), logits.clone()
        PROCESSES[name](found, paths)
        num_read = 0
        for node in range(N + 1):
            above = tree.paths[node, : tree.depths[node]]
            chain = drafts[:, above - 1]
            own = paths_of(text, chain, np.full(B, len(above)), chain_of(len(above)))
            expected = logits[:, [node] * (len(above) + 1)].clone()
            PROCESSES[name](expected, own)
            is_there = own.is_read[:, -1] & (above <= given[:, None]).all(1)
            assert (paths.is_read[:, node] == is_there).all()
            for c in np.flatnonzero(is_there).tolist():
                assert torch.equal(found[c, node], expected[c, -1]), (c, node)
                assert paths.before(c, node).tolist() == own.before(c, len(above)).tolist()
                num_read += 1
        assert num_read > 2 * N


def test_kernels_refuse_a_tree_and_say_the_way_out() -> None:
    tree = tree_of((0, 0))
    paths = paths_of(np.zeros((B, 9), np.int64), np.zeros((B, 2), np.int64), np.full(B, 2), tree)
    params = [processors.RowParams(vocab_size=V, min_tokens=4)] * B
    with pytest.raises(ValueError, match="a tree of 2 drafts, and kernels follow chains: call"):
        processors.pack_edits(paths, params)


def test_a_shorter_tree_is_made_once() -> None:
    """Its masks are kept from round to round."""
    tree = TokenTree((0, 0, 1, 1, 2))
    assert tree.first(5) is tree and tree.first(3) is tree.first(3)
    assert tree.first(3).parents == (0, 0, 1) and tree.first(3).is_seen is tree.first(3).is_seen
