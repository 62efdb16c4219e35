"""The shape of a round's drafts: which node is below which. A chain is a tree of one branch.

Axes: N nodes besides the root, D depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np


@dataclass(frozen=True)
class TokenTree:
    """A tree of drafts: parents before children, siblings in the order in which they are drawn.

    Attributes:
        parents: The parent of each node, of node c in place c - 1; node 0 is the root.
    """

    parents: tuple[int, ...]

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.parents)

    @cached_property
    def depths(self) -> np.ndarray:
        """Depth of each node [N + 1], int64."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return np.array(depths)

    @cached_property
    def depth(self) -> int:
        """D, the most drafts that can stand."""
        return int(self.depths.max())

    @cached_property
    def is_seen(self) -> np.ndarray:
        """bool [N + 1, N + 1]: whether node c is node r or above it."""
        seen = np.eye(self.num_nodes + 1, dtype=bool)
        for node, parent in enumerate(self.parents, start=1):
            seen[node] |= seen[parent]
        return seen

    @cached_property
    def paths(self) -> np.ndarray:
        """Nodes from below the root to each node [N + 1, D, at least 1], int64, padded with 0."""
        paths = np.zeros((self.num_nodes + 1, max(self.depth, 1)), np.int64)
        for node, parent in enumerate(self.parents, start=1):
            paths[node] = paths[parent]
            paths[node, self.depths[parent]] = node
        return paths

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of each node [N + 1]."""
        found: list[list[int]] = [[] for _ in range(self.num_nodes + 1)]
        for node, parent in enumerate(self.parents, start=1):
            found[parent].append(node)
        return tuple(map(tuple, found))

    @property
    def is_chain(self) -> bool:
        """Whether each node is below the one before it."""
        return self.depth == self.num_nodes

    def below(self, nodes: list[int]) -> np.ndarray:
        """bool [N + 1]: whether each node is one of the given ones or below one."""
        return np.logical_or.reduce(self.is_seen[:, nodes], axis=1)

    def level(self, depth: int) -> np.ndarray:
        """Nodes of one depth; consecutive where the tree is numbered by levels."""
        return np.flatnonzero(self.depths == depth)

    def num_nodes_to(self, depth: np.ndarray) -> np.ndarray:
        """Nodes of at most the given depths; they come first in a tree numbered by levels."""
        return np.searchsorted(self.depths, depth, side="right") - 1

    def first(self, num_nodes: int) -> TokenTree:
        """The tree of the first nodes alone."""
        return self if num_nodes == self.num_nodes else tree_of(self.parents[:num_nodes])


@lru_cache(maxsize=64)
def tree_of(parents: tuple[int, ...]) -> TokenTree:
    """The tree of some parents, the same object again: what is derived from it is kept."""
    return TokenTree(parents)


def chain_of(num_drafts: int) -> TokenTree:
    """The chain of some drafts."""
    return tree_of(tuple(range(num_drafts)))
