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
    num_rows = int(paths.num_rows[sequence])
    text = paths.before(sequence, num_rows - 1)
    lengths = len(text) - num_rows + 1 + np.arange(num_rows)
    if len(text) < size:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    last = text[size - 1 :]
    # an n-gram that ends at index e stands before a row if e < the row's length
    is_match = np.arange(size - 1, len(text)) < lengths[:, None]
    for back in range(1, size):
        wanted = text[np.maximum(lengths - back, 0)]
        is_match &= text[size - 1 - back : len(text) - back] == wanted[:, None]
    is_match &= (lengths >= size)[:, None]
    row, window = np.nonzero(is_match)
    return row, last[window]
