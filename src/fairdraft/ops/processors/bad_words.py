"""Token sequences that may not come up.

Axes: C sequences of the paths, R rows, V vocabulary, S bad sequences, M their longest prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fairdraft.ops.processors.masks import forbid
from fairdraft.ops.processors.paths import DraftedPaths


@dataclass(frozen=True)
class BadWords:
    """Bad sequences of one request, cut into prefix and last token.

    Attributes:
        singles: Tokens that are bad alone [S1].
        prefixes: What must stand before the last token, aligned at the end [S, M].
        lengths: Tokens of each prefix [S].
        last_ids: Last tokens [S].
        reads_prompt: Whether a prefix may begin in the prompt [S].
    """

    singles: np.ndarray
    prefixes: np.ndarray
    lengths: np.ndarray
    last_ids: np.ndarray
    reads_prompt: np.ndarray

    @classmethod
    def of(cls, in_output: Sequence[Sequence[int]], anywhere: Sequence[Sequence[int]]) -> BadWords:
        """Compiles sequences that must lie in the output, and ones that may begin in the prompt."""
        words = [(word, False) for word in in_output] + [(word, True) for word in anywhere]
        longer = [(word, reads) for word, reads in words if len(word) > 1]
        width = max((len(word) - 1 for word, _ in longer), default=0)
        prefixes = np.zeros((len(longer), width), np.int64)
        for place, (word, _) in enumerate(longer):
            prefixes[place, width - len(word) + 1 :] = word[:-1]
        return cls(
            np.unique(np.array([word[0] for word, _ in words if len(word) == 1], np.int64)),
            prefixes,
            np.array([len(word) - 1 for word, _ in longer], np.int64),
            np.array([word[-1] for word, _ in longer], np.int64),
            np.array([reads for _, reads in longer], np.bool_),
        )


def forbid_bad_words(logits: Tensor, paths: DraftedPaths, words: Sequence[BadWords | None]) -> None:
    """Masks every token that would complete a bad sequence, through output and drafts.

    Args:
        logits: Floating point [B, R, V], changed in place.
        paths: Of C of the B sequences.
        words: Bad sequences of each; None for none.
    """
    sequence, row, ids = [], [], []
    for c, bad in enumerate(words):
        if bad is None:
            continue
        where = paths.index[c]
        if len(bad.singles):
            forbid(logits, np.full(len(bad.singles), where), None, bad.singles)
        if len(bad.last_ids):
            rows, completed = completions(paths, c, bad)
            sequence.append(np.full(len(rows), where))
            row.append(rows)
            ids.append(completed)
    if sequence:
        forbid(logits, np.concatenate(sequence), np.concatenate(row), np.concatenate(ids))


def completions(paths: DraftedPaths, sequence: int, bad: BadWords) -> tuple[np.ndarray, np.ndarray]:
    """Rows of one sequence and the tokens that would complete a bad sequence there, as pairs."""
    width = bad.prefixes.shape[1]
    rows = np.flatnonzero(paths.is_read[sequence])
    end = paths.num_decided[sequence] + paths.tree.depths[rows]
    begin = np.where(bad.reads_prompt, 0, paths.prompt_length[sequence])
    is_same = paths.tails(sequence, rows, width)[:, None, :] == bad.prefixes
    is_same |= np.arange(width, 0, -1) > bad.lengths[:, None]
    is_inside = end[:, None] - bad.lengths >= begin
    row, word = np.nonzero(is_same.all(axis=2) & is_inside)
    return rows[row], bad.last_ids[word]
