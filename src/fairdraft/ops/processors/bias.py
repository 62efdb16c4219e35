"""Additive bias of single tokens.

Axes: B sequences, R rows, V vocabulary, E entries.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fairdraft.ops.processors.entries import check_working_logits, on


def add_bias(logits: Tensor, sequence: np.ndarray, token_ids: np.ndarray, bias: np.ndarray) -> None:
    """Adds a bias to tokens in every row of their sequences.

    Args:
        logits: Floating point [B, R, V], changed in place.
        sequence: First axis of each entry [E], int64; no (sequence, token) twice.
        token_ids: Token of each entry [E], int64, inside the vocabulary.
        bias: What is added to it [E], float; before temperature, so it acts as bias / T.
    """
    check_working_logits(logits)
    if not len(token_ids):
        return
    by_token = logits.transpose(1, 2)
    at, ids = on(logits, sequence), on(logits, token_ids)
    by_token[at, ids] = by_token[at, ids] + on(logits, bias)[:, None]
