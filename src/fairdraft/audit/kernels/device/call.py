"""How the texts of a row go through the ops of a device, and where its tokens lie in wide rows.

An experiment's law stays narrow, so that few cells hold all the power; its tokens are put into a
row as wide as a vocabulary, where everything else is excluded or is one more token's thin tail.
Axes: S states, C columns of the experiment, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fairdraft.ops.sample import Method

__all__ = ["NARROW", "Call"]

#: one tile: the two-level race is the flat race there, and every narrow row shares its kernels
NARROW = 512


@dataclass(frozen=True)
class Call:
    """The ops' call, and the place of the experiment's tokens in it.

    Attributes:
        op: "verify": drafts by `ops.sample`, then `ops.verify_chain`; "sample": `ops.sample` alone.
        vocab_size: V.
        is_spread: Columns lie evenly over the row, else side by side in one tile.
        has_tail: The last column is every id that no other column has, all of one chance; without
            it those ids are excluded.
        method: Of `ops.sample`.
        arithmetic: Of both ops.
        declares_law: Drafts come with their law; else each is a point mass, however it was drawn.
    """

    op: Literal["verify", "sample"] = "verify"
    vocab_size: int = NARROW
    is_spread: bool = False
    has_tail: bool = False
    method: Method = "race"
    arithmetic: Literal["fast", "portable"] = "fast"
    declares_law: bool = True

    def ids(self, num_columns: int) -> np.ndarray:
        """The ids of the columns, int64 [C], less the tail's."""
        count = num_columns - self.has_tail
        if count > self.vocab_size - self.has_tail:
            raise ValueError(f"{num_columns} columns do not fit a vocabulary of {self.vocab_size}")
        if self.is_spread:
            return (2 * np.arange(count) + 1) * self.vocab_size // (2 * count)
        # in the middle, where a tile begins
        first = self.vocab_size // 2 // NARROW * NARROW
        return np.arange(count) + min(first, self.vocab_size - count)

    def widened(self, logits: np.ndarray) -> np.ndarray:
        """Rows of columns as rows of the vocabulary: float32 [S, C] to [S, V]."""
        num_columns = logits.shape[1]
        at = self.ids(num_columns)
        other = np.full(len(logits), -np.inf)
        if self.has_tail:
            other = logits[:, -1] - np.log(self.vocab_size - len(at))
        wide = np.repeat(other[:, None], self.vocab_size, axis=1)
        wide[:, at] = logits[:, : len(at)]
        return wide.astype(np.float32)

    def columns(self, num_columns: int) -> np.ndarray:
        """The column of each id, int64 [V]; -1 for an excluded one."""
        at = self.ids(num_columns)
        found = np.full(self.vocab_size, num_columns - 1 if self.has_tail else -1)
        found[at] = np.arange(len(at))
        return found
