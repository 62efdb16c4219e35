"""Masks: tokens that may not follow a path get -inf, in place.

Axes: B sequences, R rows, V vocabulary, E entries.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairdraft.ops.processors.entries import check_working_logits, on


def forbid(
    logits: Tensor, sequence: np.ndarray, row: np.ndarray | None, token_ids: np.ndarray
) -> None:
    """Sets entries to -inf.

    Args:
        logits: Floating point [B, R, V], changed in place.
        sequence: First axis of each entry [E], int64.
        row: Row of each entry [E], int64; None for every row of the sequence.
        token_ids: Token of each entry [E], int64, inside the vocabulary.
    """
    check_working_logits(logits)
    if not len(token_ids):
        return
    at, ids = on(logits, sequence), on(logits, token_ids)
    if row is None:
        logits.transpose(1, 2)[at, ids] = -torch.inf
    else:
        logits[at, on(logits, row), ids] = -torch.inf


def allow_only(logits: Tensor, sequence: int, token_ids: np.ndarray) -> None:
    """Sets every token but the given ones to -inf, in all rows of one sequence.

    Args:
        logits: Floating point [B, R, V], changed in place.
        sequence: Which of the B.
        token_ids: Tokens that keep their logits [E], int64, inside the vocabulary.
    """
    check_working_logits(logits)
    rows = logits[sequence]
    ids = on(logits, token_ids)
    kept = rows[:, ids]
    rows.fill_(-torch.inf)
    rows[:, ids] = kept
