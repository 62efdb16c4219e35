"""All processors of a round at once, on the device where the logits are.

Axes: B sequences, G guarded ones, R rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairdraft.ops.dispatch import resolve_impl
from fairdraft.ops.processors.edits import Edits
from fairdraft.ops.processors.entries import check_working_logits

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def edit_rows(logits: Tensor, edits: Edits) -> None:
    """Applies everything that was packed, in the order of `fairdraft.engine.processing.order`.

    The result has the bits of the processors called one after another, at most with another zero.
    Nothing waits for the device, and a CUDA graph may capture it: later replays read what is in
    `edits.words` then.

    Args:
        logits: float32, bfloat16 or float16 [B, R, V], changed in place; tokens side by side.
        edits: Of `pack_edits`.

    Raises:
        ValueError: If the logits are none that were packed for, or lie where no kernel runs.
    """
    _check(logits, edits)
    from fairdraft.ops.triton.processors import edit_on_device

    edit_on_device(logits, edits)


def guard_rows(logits: Tensor, edits: Edits, *, stand_in: Tensor | None = None) -> Tensor:
    """Puts something to sample into guarded rows without a token, and into rows after them.

    Args:
        logits: As for `edit_rows`.
        edits: Of `pack_edits`, with guards.
        stand_in: What takes their place [B, R, V], tokens side by side; None for zeros.

    Returns:
        The first row without a token of each guarded sequence [G], int32, on the device; R where
        each row that is read has one.

    Raises:
        ValueError: As `edit_rows`, or if `stand_in` has another shape.
    """
    _check(logits, edits)
    if stand_in is not None:
        if stand_in.shape != logits.shape or stand_in.device != logits.device:
            raise ValueError(
                f"stand_in has shape {tuple(stand_in.shape)} on {stand_in.device}; give "
                f"{tuple(logits.shape)} on {logits.device}"
            )
        _check_side_by_side("stand_in", stand_in)
    from fairdraft.ops.triton.processors import guard_on_device

    return guard_on_device(logits, edits, stand_in)


def _check(logits: Tensor, edits: Edits) -> None:
    check_working_logits(logits)
    resolve_impl("triton", logits.device)
    if logits.dtype is not edits.dtype or logits.dtype not in _DTYPES:
        raise ValueError(
            f"logits are {logits.dtype}, packed for {edits.dtype}; kernels take float32, bfloat16 "
            "and float16"
        )
    is_inside = edits.last_index < len(logits) and logits.shape[1:] == edits.shape
    if not is_inside or edits.words.device != logits.device:
        raise ValueError(
            f"logits {tuple(logits.shape)} on {logits.device}, edits of rows {edits.shape} up to "
            f"sequence {edits.last_index} on {edits.words.device}: pack them for these rows"
        )
    _check_side_by_side("logits", logits)


def _check_side_by_side(name: str, rows: Tensor) -> None:
    if rows.shape[2] > 1 and rows.stride(2) != 1:
        raise ValueError(f"{name} have strides {rows.stride()}; tokens must lie side by side")
