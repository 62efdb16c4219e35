"""No end of the text before its least number of tokens.

Axes: C sequences of the paths, R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from fairdraft.ops.processors.masks import forbid
from fairdraft.ops.processors.paths import DraftedPaths


def forbid_early_ends(
    logits: Tensor, paths: DraftedPaths, min_tokens: np.ndarray, end_ids: Sequence[np.ndarray]
) -> None:
    """Masks ends wherever fewer than `min_tokens` output tokens and drafts stand before the row.

    Args:
        logits: Floating point [B, R, V], changed in place.
        paths: Of C of the B sequences.
        min_tokens: Least number of tokens before an end [C]; 0 is off.
        end_ids: Tokens that end each sequence, int64, inside the vocabulary.
    """
    is_early = paths.num_output < min_tokens[:, None]
    early = np.flatnonzero(is_early[:, 0]).tolist()
    if not early:
        return
    sequence, row, ids = [], [], []
    for c in early:
        places = np.flatnonzero(is_early[c])
        sequence.append(np.full(len(places) * len(end_ids[c]), paths.index[c]))
        row.append(np.repeat(places, len(end_ids[c])))
        ids.append(np.tile(end_ids[c], len(places)))
    forbid(logits, np.concatenate(sequence), np.concatenate(row), np.concatenate(ids))
