"""What each row is conditioned on: prompt, output, and the drafts above the row.

Axes: B sequences, C chosen ones, K drafts (the nodes of a tree), R rows (K + 1), L tokens, V
vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fairdraft.ops.token_tree import TokenTree, chain_of


class Occurrences(NamedTuple):
    """How often tokens stand before each row: `count` [U, R] of `token_id` [U] in `sequence` [U].

    `sequence` is an index of the paths, not of the logits.
    """

    sequence: np.ndarray
    token_id: np.ndarray
    count: np.ndarray


@dataclass(frozen=True)
class DraftedPaths:
    """The path that leads to each row of C sequences.

    Row r follows what is decided and the drafts from the root to node r of the tree; in a chain
    these are the first r. Made for one round and thrown away after it.

    Attributes:
        token_ids: Prompt, output and this round's drafts, without gaps [C, L], int64. Drafts that
            cannot be read mean nothing.
        prompt_length: Of each sequence [C].
        num_decided: Prompt and output tokens [C].
        is_read: Rows that can be read [C, R]: the first, and those of drafts that are there, are
            tokens of the target and follow a row that can be read.
        tree: Of the drafts, for all sequences.
        vocab_size: V.
        index: Where the logits hold each sequence [C].
    """

    token_ids: np.ndarray
    prompt_length: np.ndarray
    num_decided: np.ndarray
    is_read: np.ndarray
    tree: TokenTree
    vocab_size: int
    index: np.ndarray

    @classmethod
    def of_round(
        cls,
        token_ids: np.ndarray,
        prompt_length: np.ndarray,
        num_decided: np.ndarray,
        draft_token_ids: np.ndarray,
        num_draft_tokens: np.ndarray,
        *,
        vocab_size: int,
        index: np.ndarray | None = None,
        tree: TokenTree | None = None,
    ) -> DraftedPaths:
        """Puts the drafts of a round behind what is decided.

        Args:
            token_ids: Decided ids [C, L], int64; sequence c holds `num_decided[c]` of them.
            prompt_length: How many of them are the prompt [C].
            num_decided: [C].
            draft_token_ids: [C, K]; nothing below an id outside 0..V - 1 can be read.
            num_draft_tokens: Drafts present [C], the first ones.
            vocab_size: V.
            index: Where the logits hold each sequence [C]; None for 0, 1, ...
            tree: Of the K drafts; None for a chain.
        """
        count, depth = draft_token_ids.shape
        longest = int(num_decided.max(initial=0))
        joined = np.zeros((count, longest + depth), np.int64)
        joined[:, : min(longest, token_ids.shape[1])] = token_ids[:, :longest]
        places = num_decided[:, None] + np.arange(depth)
        np.put_along_axis(joined, places, draft_token_ids, axis=1)
        tree = chain_of(depth) if tree is None else tree
        is_read = np.ones((count, depth + 1), np.bool_)
        is_read[:, 1:] = np.arange(depth) < num_draft_tokens[:, None]
        is_read[:, 1:] &= (draft_token_ids >= 0) & (draft_token_ids < vocab_size)
        for node, parent in enumerate(tree.parents, start=1):
            is_read[:, node] &= is_read[:, parent]
        return cls(
            joined,
            prompt_length,
            num_decided,
            is_read,
            tree,
            vocab_size,
            np.arange(count) if index is None else np.asarray(index),
        )

    @property
    def width(self) -> int:
        """R."""
        return self.tree.num_nodes + 1

    @property
    def num_rows(self) -> np.ndarray:
        """How many rows can be read [C]; of a chain they are the first ones."""
        return self.is_read.sum(1)

    @property
    def num_output(self) -> np.ndarray:
        """Output tokens before each row [C, R], drafts included."""
        return (self.num_decided - self.prompt_length)[:, None] + self.tree.depths

    def select(self, chosen: np.ndarray) -> DraftedPaths:
        """The paths of some of the sequences, by index or mask."""
        return replace(
            self,
            token_ids=self.token_ids[chosen],
            prompt_length=self.prompt_length[chosen],
            num_decided=self.num_decided[chosen],
            is_read=self.is_read[chosen],
            index=self.index[chosen],
        )

    def before(self, sequence: int, row: int) -> np.ndarray:
        """Every token before a row, prompt first."""
        end = int(self.num_decided[sequence])
        nodes = self.tree.paths[row, : self.tree.depths[row]]
        text = self.token_ids[sequence]
        return np.concatenate([text[:end], text[end - 1 + nodes]])

    def tails(self, sequence: int, rows: np.ndarray, width: int) -> np.ndarray:
        """The last tokens before some rows [len(rows), width], the nearest last.

        What would lie before the text is junk.
        """
        level = self.tree.depths[rows][:, None] + np.arange(-width, 0)
        nodes = self.tree.paths[rows[:, None], np.maximum(level, 0)]
        place = self.num_decided[sequence] + np.where(level >= 0, nodes - 1, level)
        return self.token_ids[sequence, np.maximum(place, 0)]

    def occurrences(self, *, of_output: bool) -> Occurrences:
        """Counts each token before each row, in the output alone or in prompt and output."""
        vocab_size = self.vocab_size
        begin = self.prompt_length if of_output else np.zeros_like(self.prompt_length)
        place = np.arange(self.token_ids.shape[1])
        end = self.num_decided[:, None]
        is_old = (place >= begin[:, None]) & (place < end)
        sequence, column = np.nonzero(is_old)
        codes = sequence * vocab_size + self.token_ids[sequence, column]
        old, count = np.unique(codes, return_counts=True)
        sequence, column = np.nonzero(self.is_read[:, 1:])
        places = self.num_decided[sequence] + column
        drafted = sequence * vocab_size + self.token_ids[sequence, places]
        codes = np.union1d(old, drafted) if len(drafted) else old
        table = np.zeros((len(codes), self.width), np.int64)
        # a draft counts in its own node's row and in those below it
        np.add.at(table, np.searchsorted(codes, drafted), self.tree.is_seen.T[column + 1])
        table[np.searchsorted(codes, old)] += count[:, None]
        return Occurrences(codes // vocab_size, codes % vocab_size, table)
