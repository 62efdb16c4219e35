"""Exact enumeration of rule `tree`: every tree of drafts is one row of one `verify_tree` call.

p and q depend on the whole history. Axes: R trees, N nodes, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fairdraft import ops
from fairdraft.ops.dispatch import Impl
from fairdraft.ops.token_tree import TokenTree, tree_of
from tests.law.enumeration import EXACT, Form, distance, draft_law
from tests.law.tables import History, Tables

#: children of a node, given the laws and its history: what a shape may depend on
Branching = Callable[[Tables, History], int]
#: changes rows of target logits [R, N + 1, V], given the nodes [R, N], how many of them are there
#: [R] and their tree
ProcessTree = Callable[[torch.Tensor, np.ndarray, np.ndarray, TokenTree], torch.Tensor]


@dataclass(frozen=True)
class Tree:
    """One outcome of a drafter: node c in place c - 1, and its chance."""

    parents: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    chance: float = 1.0

    def history(self, node: int) -> History:
        """Tokens from the root to a node."""
        if node == 0:
            return ()
        return (*self.history(self.parents[node - 1]), self.token_ids[node - 1])


@dataclass(frozen=True)
class TreeExperiment:
    """One drafter of trees on one target.

    Attributes:
        tables: Their laws; trees are at most `tables.depth` deep.
        branching: Children of each node; siblings are drawn without replacement.
        follow: Children of each node of a deterministic drafter; None samples.
        arrange: What happens to a tree after it was drawn; lawful is nothing.
        forbidden: Token marked as forbidden wherever it is proposed.
    """

    tables: Tables
    branching: Branching = field(default=lambda tables, h: 2)
    follow: Callable[[History], Sequence[int]] | None = None
    arrange: Callable[[Tables, Tree], Tree] = field(default=lambda tables, tree: tree)
    forbidden: int | None = None

    def trees(self) -> list[Tree]:
        """Every tree and its chance, as it is verified."""
        return [self.arrange(self.tables, tree) for tree in self._grown(Tree(), 0)]

    def _grown(self, tree: Tree, node: int) -> Iterator[Tree]:
        if node > len(tree.token_ids):
            yield tree
            return
        h = tree.history(node)
        for group, chance in self._groups(h):
            grown = Tree(
                (*tree.parents, *(node,) * len(group)),
                (*tree.token_ids, *group),
                tree.chance * chance,
            )
            yield from self._grown(grown, node + 1)

    def _groups(self, h: History) -> Iterator[tuple[tuple[int, ...], float]]:
        """Siblings below a node in the order drawn, and their chance."""
        if len(h) == self.tables.depth:
            yield (), 1.0
            return
        if self.follow is not None:
            yield tuple(self.follow(h)), 1.0
            return
        q = self.tables.q[h]
        support = np.flatnonzero(q).tolist()
        size = min(self.branching(self.tables, h), len(support))
        for group in itertools.permutations(support, size):
            chance = 1.0
            for i, x in enumerate(group):
                left = [y for y in support if y not in group[:i]]
                chance *= q[x] / q[left].sum()
            yield group, chance


@dataclass
class TreeWeights:
    """Trees [R] and the rule's weights; see `DecisionWeights`."""

    trees: list[Tree]
    end: np.ndarray
    next_law: np.ndarray

    def law(self, tables: Tables) -> np.ndarray:
        """Law of the first depth + 1 tokens [V, ..., V]; the target goes on past the round."""
        length, vocab_size = tables.depth + 1, tables.vocab_size
        law = np.zeros((vocab_size,) * length)
        ended: dict[History, np.ndarray] = {}

        def fill(prefix: History, chance: float) -> None:
            if chance == 0 or len(prefix) == length:
                law[prefix] += chance
                return
            for y in np.flatnonzero(tables.p[prefix]):
                fill((*prefix, int(y)), chance * tables.p[prefix][y])

        for tree, end, next_law in zip(self.trees, self.end, self.next_law, strict=True):
            for r in np.flatnonzero(end).tolist():
                h = tree.history(r)
                ended[h] = ended.get(h, 0.0) + tree.chance * end[r] * next_law[r]
        for h, chances in ended.items():
            for y in np.flatnonzero(chances).tolist():
                fill((*h, y), chances[y])
        return law

    def error(self, tables: Tables) -> float:
        """Total variation from the target."""
        return distance(self.law(tables), tables.target_joint())

    def mean_accepted(self) -> float:
        """Drafts that stand, on average."""
        depths = [[len(t.history(r)) for r in range(len(t.parents) + 1)] for t in self.trees]
        ends = zip(self.trees, self.end, depths, strict=True)
        return sum(t.chance * float(end[: len(d)] @ d) for t, end, d in ends)


def tree_weights(
    experiments: Sequence[TreeExperiment],
    impl: Impl,
    *,
    form: Form = "dense",
    process: ProcessTree | None = None,
) -> list[TreeWeights]:
    """Weights of the production path; all experiments are rows of one call.

    Rows and drafts that must not be read are filled with NaN and huge ids. `process` is called once
    for each shape, as in `weights_of`.
    """
    found = [experiment.trees() for experiment in experiments]
    rows = [(e, tree) for e, trees in zip(experiments, found, strict=True) for tree in trees]
    vocab_size = experiments[0].tables.vocab_size
    count, size = len(rows), max(len(tree.parents) for _, tree in rows)
    target = np.full((count, size + 1, vocab_size), np.nan, np.float32)
    draft = np.full((count, size, vocab_size), np.nan, np.float32)
    token_ids, parents = np.full((count, size), 1 << 40), np.full((count, size), 1 << 40)
    forbidden, is_read = np.zeros((count, size), bool), np.ones((count, size + 1), bool)
    for b, (experiment, tree) in enumerate(rows):
        for c in range(1, len(tree.parents) + 1):
            x, parent = tree.token_ids[c - 1], tree.parents[c - 1]
            token_ids[b, c - 1], parents[b, c - 1] = x, parent
            forbidden[b, c - 1] = x == experiment.forbidden
            is_read[b, c] = is_read[b, parent] and not forbidden[b, c - 1] and x < vocab_size
            if experiment.follow is None and is_read[b, parent]:
                draft[b, c - 1] = experiment.tables.draft_logits[tree.history(parent)]
        for r in range(len(tree.parents) + 1):
            if is_read[b, r]:
                target[b, r] = experiment.tables.target_logits[tree.history(r)]
    options: dict[str, Any] = {
        "key": np.arange(count, dtype=np.uint64),
        "anchor": 7,
        "temperature": np.array([e.tables.temperature for e, _ in rows]),
        "draft_temperature": np.array([e.tables.draft_temperature for e, _ in rows]),
        "point_mass": torch.tensor([e.follow is not None for e, _ in rows]),
        "forbidden": torch.from_numpy(forbidden),
    }
    if process is not None:
        _process(process, [tree.parents for _, tree in rows], target, token_ids)
    verdict = ops.verify_tree(
        torch.from_numpy(target),
        torch.from_numpy(token_ids),
        parents,
        np.array([len(tree.parents) for _, tree in rows]),
        draft_logits=draft_law(draft, form),
        return_weights=True,
        impl=impl,
        **options,
    )
    assert verdict.weights is not None and verdict.num_broken == 0
    end, next_law = (
        part.numpy() for part in (verdict.weights.end_probability, verdict.weights.next_law)
    )
    edges = np.cumsum([0, *map(len, found)])
    return [
        TreeWeights(trees, end[begin:stop], next_law[begin:stop])
        for trees, begin, stop in zip(found, edges[:-1], edges[1:], strict=True)
    ]


def _process(
    process: ProcessTree, shapes: list[tuple[int, ...]], target: np.ndarray, token_ids: np.ndarray
) -> None:
    for parents in set(shapes):
        at = [row for row, other in enumerate(shapes) if other == parents]
        size = len(parents)
        logits = torch.from_numpy(target[at, : size + 1])
        given = np.full(len(at), size)
        target[at, : size + 1] = process(logits, token_ids[at, :size], given, tree_of(parents))


def assert_exact_trees(experiments: Sequence[TreeExperiment], impl: Impl) -> None:
    """Every experiment emits the target's law."""
    for experiment, weights in zip(experiments, tree_weights(experiments, impl), strict=True):
        np.testing.assert_allclose(weights.end.sum(1), 1, rtol=EXACT)
        assert weights.error(experiment.tables) < EXACT, experiment
