"""Some rows of an observed round, and how their definition draws and decides them.

Axes: R rows, K drafts or nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from fairdraft.engine import Observation
    from fairdraft.engine.observation import ObservedTree
    from fairdraft.engine.round_rule import RoundRule
    from fairdraft.ops import Verdict

__all__ = ["Draw", "RoundPart", "TreePart", "part_of"]


class Draw(NamedTuple):
    """One draft of some rows: its node and depth, the rows [M], and the law it came from [M, V]."""

    node: int
    depth: int
    rows: np.ndarray
    logits: Tensor


class RoundPart:
    """Rows of a round of chains, copied out of the observation; laws are logits before temperature.

    Attributes:
        draft_ids: Drafts [R, K].
        num_drafts: Drafts present [R].
        draft_logits: What they were drawn from [R, K, V], or None for point masses.
        target_logits: [R, K + 1, V].
        is_cut: Rows whose request fails [R]: only the tokens before a broken row were emitted.
    """

    def __init__(self, seen: Observation, rows: np.ndarray, rule: RoundRule) -> None:
        self.rule: RoundRule = rule
        self.key = np.ascontiguousarray(seen.key[rows])
        self.sample = seen.sample[rows]
        self.anchor = seen.anchor[rows]
        self.temperature = np.asarray(seen.temperature[rows], np.float64)
        self.token_ids = seen.token_ids[rows]
        self.num_emitted = seen.num_emitted_tokens[rows]
        self.is_cut = np.isin(rows, [*seen.errors])
        self._copy(seen, seen.draft_token_ids, seen.num_draft_tokens, rows)

    def _copy(
        self,
        laws: Observation | ObservedTree,
        ids: np.ndarray,
        counts: np.ndarray,
        rows: np.ndarray,
    ) -> None:
        import torch

        from fairdraft.audit.dense import dense_logits

        at = torch.from_numpy(rows)
        self.draft_ids = np.ascontiguousarray(ids[rows])
        self.num_drafts = counts[rows]
        self.target_logits = laws.target_logits[at]
        drafts = dense_logits(laws.draft_logits, laws.target_logits.shape[-1])
        self.draft_logits = None if drafts is None else drafts[at]

    def name(self, row: int) -> str:
        """Which round it was."""
        key, sample = int(self.key[row]), int(self.sample[row])
        return f"the round at anchor {int(self.anchor[row])} of key {key:016x}, sample {sample}"

    def draws(self) -> Iterator[Draw]:
        """The drafts that were drawn from a law."""
        if self.draft_logits is None:
            return
        for step in range(1, self.draft_ids.shape[1] + 1):
            at = np.flatnonzero(self.num_drafts >= step)
            if len(at):
                yield Draw(step, step, at, self.draft_logits[at, step - 1])

    def verified(self) -> Verdict:
        """What the reference decides."""
        import torch

        from fairdraft import ops

        call: Any = (self.target_logits, torch.from_numpy(self.draft_ids), self.num_drafts)
        if self.rule == "common_noise":
            options = self._options()
            return ops.verify_chain(*call, draft_logits=None, rule="common_noise", **options)
        # a round without drafts is the same under each rule
        rule = "token" if self.rule == "tree" else self.rule
        return ops.verify_chain(*call, draft_logits=self.draft_logits, rule=rule, **self._options())

    def _options(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "anchor": self.anchor,
            "sample": self.sample,
            "temperature": self.temperature,
            "impl": "reference",
        }


class TreePart(RoundPart):
    """Rows of a round of trees: nodes take the place of drafts.

    Attributes:
        children: Of each row [R], the nodes that are there below each node.
    """

    def __init__(
        self, seen: Observation, tree: ObservedTree, rows: np.ndarray, rule: RoundRule
    ) -> None:
        super().__init__(seen, rows, rule)
        self._copy(tree, tree.token_ids, tree.num_nodes, rows)
        self.tree = tree.shape
        self.children = [self._children(row) for row in range(len(rows))]

    def _children(self, row: int) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in range(self.tree.num_nodes + 1)]
        is_there = [True] + [False] * self.tree.num_nodes
        for node, parent in enumerate(self.tree.parents, start=1):
            is_there[node] = bool(
                is_there[parent]
                and node <= self.num_drafts[row]
                and self.draft_ids[row, node - 1] >= 0
            )
            if is_there[node]:
                found[parent].append(node)
        return found

    def draws(self) -> Iterator[Draw]:
        """The nodes that were drawn, each from its group's law without its elders."""
        if self.draft_logits is None:
            return
        for node, parent in enumerate(self.tree.parents, start=1):
            at = [row for row, below in enumerate(self.children) if node in below[parent]]
            if not at:
                continue
            logits = self.draft_logits[at, node - 1]
            for i, row in enumerate(at):
                elders = [s - 1 for s in self.children[row][parent] if s < node]
                logits[i, self.draft_ids[row, elders]] = -np.inf
            yield Draw(node, int(self.tree.depths[node]), np.array(at), logits)

    def verified(self) -> Verdict:
        """What the reference decides."""
        import torch

        from fairdraft import ops

        return ops.verify_tree(
            self.target_logits,
            torch.from_numpy(self.draft_ids),
            np.array(self.tree.parents),
            self.num_drafts,
            draft_logits=self.draft_logits,
            **self._options(),
        )


def part_of(seen: Observation, rows: np.ndarray, rule: RoundRule) -> RoundPart:
    """Some rows of a round, a tree if it drafted any."""
    if seen.tree is None:
        return RoundPart(seen, rows, rule)
    return TreePart(seen, seen.tree, rows, rule)
