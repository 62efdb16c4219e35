"""No n-gram twice: `no_repeat_ngram_size` of Hugging Face.

Axes: C sequences of the paths, R rows, V vocabulary, W windows.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fairdraft.ops.processors.masks import forbid
from fairdraft.ops.processors.paths import DraftedPaths


def forbid_repeated_ngrams(logits: Tensor, paths: DraftedPaths, size: np.ndarray) -> None:
    """Masks every token that would complete an n-gram which prompt, output or drafts hold already.

    Args:
        logits: Floating point [B, R, V], changed in place.
        paths: Of C of the B sequences.
        size: n of each sequence [C]; 0 is off, 1 lets no token come twice.
    """
    sequence, row, ids = [], [], []
    for c in np.flatnonzero(size > 0):
        rows, repeated = repeats(paths, int(c), int(size[c]))
        sequence.append(np.full(len(rows), paths.index[c]))
        row.append(rows)
        ids.append(repeated)
    if sequence:
        forbid(logits, np.concatenate(sequence), np.concatenate(row), np.concatenate(ids))


def repeats(paths: DraftedPaths, sequence: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of one sequence and the tokens that would repeat an n-gram there, as pairs."""
    rows = np.flatnonzero(paths.is_read[sequence])
    end = int(paths.num_decided[sequence])
    text = paths.token_ids[sequence, :end]
    # n-grams that end in what is decided, then those that end in a draft
    num_old = max(end - size + 1, 0)
    drafted = paths.tails(sequence, rows[1:], size)
    is_match = np.ones((len(rows), num_old + len(drafted)), np.bool_)
    is_old, is_new = is_match[:, :num_old], is_match[:, num_old:]
    is_whole = end + paths.tree.depths[rows[1:]] >= size
    is_new[:] = paths.tree.is_seen[np.ix_(rows, rows[1:])] & is_whole
    before = paths.tails(sequence, rows, size - 1)
    for place in range(size - 1):
        wanted = before[:, place, None]
        is_old &= text[place : place + num_old] == wanted
        is_new &= drafted[:, place] == wanted
    row, window = np.nonzero(is_match)
    last = np.concatenate([text[size - 1 :], drafted[:, -1]])
    return rows[row], last[window]
