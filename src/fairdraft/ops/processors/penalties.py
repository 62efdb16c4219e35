"""Repetition, presence and frequency penalties along the drafted path.

Axes: B sequences, C of the paths, R rows, V vocabulary, U (sequence, token) pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraft.ops import rows
from fairdraft.ops.processors.entries import check_working_logits, on
from fairdraft.ops.processors.paths import DraftedPaths, Occurrences


def apply_penalties(
    logits: Tensor,
    paths: DraftedPaths,
    *,
    repetition: Any = 1.0,
    presence: Any = 0.0,
    frequency: Any = 0.0,
) -> None:
    """Penalizes tokens that stand before a row; the definitions of vLLM and Hugging Face.

    First repetition: a positive logit of a token in prompt, output or drafts is divided by it, any
    other multiplied. Then, for tokens in output or drafts: frequency times their count and presence
    once are subtracted. One pass over each history and a few entries a row, whatever V is.

    Args:
        logits: Floating point [B, R, V], before temperature; changed in place.
        paths: Of C of the B sequences.
        repetition: Above 0, scalar or [C]; 1 is off (Keskar et al. 2019).
        presence, frequency: Finite, scalar or [C]; 0 is off.

    Raises:
        ValueError: If a shape or penalty is out of range.
    """
    check_working_logits(logits)
    count = len(paths.index)
    factor = rows.as_vector("repetition", repetition, count, np.float64)
    once = rows.as_vector("presence", presence, count, np.float64)
    each = rows.as_vector("frequency", frequency, count, np.float64)
    is_good = np.isfinite(factor) & (factor > 0)
    if not is_good.all():
        raise ValueError(f"repetition = {factor[~is_good][0]} must be above 0; 1 is off")
    for name, values in (("presence", once), ("frequency", each)):
        if not np.isfinite(values).all():
            raise ValueError(f"{name} = {values[~np.isfinite(values)][0]} must be finite; 0 is off")
    chosen = np.flatnonzero(factor != 1)
    if len(chosen):
        found = paths.select(chosen)
        _scale(logits, found, found.occurrences(of_output=False), factor[chosen])
    chosen = np.flatnonzero((once != 0) | (each != 0))
    if len(chosen):
        found = paths.select(chosen)
        _subtract(logits, found, found.occurrences(of_output=True), once[chosen], each[chosen])


def _scale(logits: Tensor, paths: DraftedPaths, seen: Occurrences, factor: np.ndarray) -> None:
    at = on(logits, paths.index[seen.sequence]), on(logits, seen.token_id)
    by_token = logits.transpose(1, 2)
    values = by_token[at]
    by = on(logits, factor[seen.sequence])[:, None]
    scaled = torch.where(values > 0, values / by, values * by)
    by_token[at] = torch.where(on(logits, seen.count > 0), scaled, values)


def _subtract(
    logits: Tensor, paths: DraftedPaths, seen: Occurrences, once: np.ndarray, each: np.ndarray
) -> None:
    at = on(logits, paths.index[seen.sequence]), on(logits, seen.token_id)
    by_token = logits.transpose(1, 2)
    count = on(logits, seen.count.astype(np.float64))
    values = by_token[at] - count * on(logits, each[seen.sequence])[:, None]
    by_token[at] = values - (count > 0) * on(logits, once[seen.sequence])[:, None]
