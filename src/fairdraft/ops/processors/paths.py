"""What the law of each row is conditioned on: prompt, output, and the drafts before the row.

Axes: B sequences, C chosen ones, K drafts, R rows (K + 1), L tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np


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

    Row r of sequence c follows token_ids[c, : num_decided[c] + r]. Made for one round and thrown
    away after it.

    Attributes:
        token_ids: Prompt, output and this round's drafts, without gaps [C, L], int64. What lies
            past a sequence's last readable draft means nothing.
        prompt_length: Of each sequence [C].
        num_decided: Prompt and output tokens [C].
        num_rows: Rows that can be read [C], 1..R: one more than the drafts up to the first that
            is no token of the target.
        width: R.
        vocab_size: V.
        index: Where the logits hold each sequence [C].
    """

    token_ids: np.ndarray
    prompt_length: np.ndarray
    num_decided: np.ndarray
    num_rows: np.ndarray
    width: int
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
    ) -> DraftedPaths:
        """Puts the drafts of a round behind what is decided.

        Args:
            token_ids: Decided ids [C, L], int64; sequence c holds `num_decided[c]` of them.
            prompt_length: How many of them are the prompt [C].
            num_decided: [C].
            draft_token_ids: [C, K]; an id outside 0..V - 1 ends what can be read.
            num_draft_tokens: Drafts present [C].
            vocab_size: V.
            index: Where the logits hold each sequence [C]; None for 0, 1, ...
        """
        count, depth = draft_token_ids.shape
        longest = int(num_decided.max(initial=0))
        joined = np.zeros((count, longest + depth), np.int64)
        joined[:, : min(longest, token_ids.shape[1])] = token_ids[:, :longest]
        places = num_decided[:, None] + np.arange(depth)
        np.put_along_axis(joined, places, draft_token_ids, axis=1)
        is_absent = np.arange(depth) >= num_draft_tokens[:, None]
        is_end = is_absent | (draft_token_ids < 0) | (draft_token_ids >= vocab_size)
        num_read = np.where(is_end.any(1), is_end.argmax(1), depth) if depth else np.zeros(count)
        return cls(
            joined,
            prompt_length,
            num_decided,
            num_read.astype(np.int64) + 1,
            depth + 1,
            vocab_size,
            np.arange(count) if index is None else np.asarray(index),
        )

    @property
    def num_output(self) -> np.ndarray:
        """Output tokens before each row [C, R], drafts included."""
        return (self.num_decided - self.prompt_length)[:, None] + np.arange(self.width)

    @property
    def is_read(self) -> np.ndarray:
        """Rows that can be read [C, R]."""
        return np.arange(self.width) < self.num_rows[:, None]

    def select(self, chosen: np.ndarray) -> DraftedPaths:
        """The paths of some of the sequences, by index or mask."""
        return replace(
            self,
            token_ids=self.token_ids[chosen],
            prompt_length=self.prompt_length[chosen],
            num_decided=self.num_decided[chosen],
            num_rows=self.num_rows[chosen],
            index=self.index[chosen],
        )

    def before(self, sequence: int, row: int) -> np.ndarray:
        """Every token before a row, prompt first: a view."""
        return self.token_ids[sequence, : self.num_decided[sequence] + row]

    def occurrences(self, *, of_output: bool) -> Occurrences:
        """Counts each token before each row, in the output alone or in prompt and output."""
        vocab_size = self.vocab_size
        begin = self.prompt_length if of_output else np.zeros_like(self.prompt_length)
        place = np.arange(self.token_ids.shape[1])
        end = self.num_decided[:, None]
        is_old = (place >= begin[:, None]) & (place < end)
        is_draft = (place >= end) & (place < end + self.num_rows[:, None] - 1)
        sequence, column = np.nonzero(is_old)
        codes = sequence * vocab_size + self.token_ids[sequence, column]
        old, count = np.unique(codes, return_counts=True)
        sequence, column = np.nonzero(is_draft)
        drafted = sequence * vocab_size + self.token_ids[sequence, column]
        codes = np.union1d(old, drafted) if len(drafted) else old
        table = np.zeros((len(codes), self.width), np.int64)
        # draft i counts from row i + 1 on
        row = column - self.num_decided[sequence] + 1
        np.add.at(table, (np.searchsorted(codes, drafted), row), 1)
        np.cumsum(table, axis=1, out=table)
        table[np.searchsorted(codes, old)] += count[:, None]
        return Occurrences(codes // vocab_size, codes % vocab_size, table)
