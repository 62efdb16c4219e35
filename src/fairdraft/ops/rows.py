"""Rows of logits and their parameters: what every op accepts, and what it refuses.

Axes: B rows, V vocabulary.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraft.noise.address import MAX_LANES
from fairdraft.ops.arithmetic import GREEDY_TEMPERATURE, MAX_TEMPERATURE

LOG2_E = float(np.log2(np.e))

#: padding past the emitted tokens
PLACEHOLDER_TOKEN_ID = -1


class RowError(IntEnum):
    """Why a row could not be sampled; an error of that request alone."""

    NONE = 0
    NAN = 1
    INFINITE = 2
    EMPTY = 3
    DRAFT = 4
    PARAMETER = 5
    ADDRESS = 6

    @property
    def message(self) -> str:
        """One sentence for the person who sent the request."""
        return _MESSAGES[self]


_MESSAGES = {
    RowError.NONE: "",
    RowError.NAN: "the target's logits hold NaN; check the model's weights and dtype",
    RowError.INFINITE: "the target's logits hold +inf; check the model's weights and dtype",
    RowError.EMPTY: "every token of the target's row is masked (-inf); loosen the masks",
    RowError.DRAFT: "the draft's logits hold NaN, +inf or no token at all; check the draft model",
    RowError.PARAMETER: "a temperature, a count, an offset or a slot on the device is out of range",
    RowError.ADDRESS: "a position, anchor, node or sample on the device does not fit its field",
}


def row_error(row: np.ndarray) -> RowError:
    """Classifies a float32 row [V]; NONE if it has a finite maximum."""
    if np.isnan(row).any():
        return RowError.NAN
    top = row.max()
    if top == np.inf:
        return RowError.INFINITE
    return RowError.EMPTY if top == -np.inf else RowError.NONE


def as_rows(name: str, logits: Tensor, dims: int) -> np.ndarray:
    """Returns logits as a float32 NumPy array (a view where they are float32 on the CPU)."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        kind = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"{name} must be a floating-point tensor, not {kind}")
    if logits.dim() != dims:
        shape = tuple(logits.shape)
        raise ValueError(
            f"{name} must have {dims} dimensions ending in the vocabulary, not {shape}"
        )
    if not 1 <= logits.shape[-1] <= MAX_LANES:
        raise ValueError(
            f"{name} has a vocabulary of {logits.shape[-1]}; noise addresses cover 1..{MAX_LANES}"
        )
    if not logits.is_cpu:
        raise ValueError(f"{name} is on {logits.device}; this release samples on the CPU: .cpu()")
    if logits.dtype is not torch.float32:
        logits = logits.to(torch.float32)
    array = (logits.detach() if logits.requires_grad else logits).numpy()
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def as_vector(name: str, values: Any, count: int, dtype: type) -> np.ndarray:
    """Returns a scalar or a vector as a NumPy vector [count]."""
    array = values.numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.ndim == 0:
        return np.full(count, array, dtype)
    if array.shape == (count,) and array.dtype == dtype and array.flags.c_contiguous:
        return array
    if array.shape != (count,):
        raise ValueError(
            f"{name} has shape {array.shape}; give a scalar or one value a row ({count})"
        )
    return np.ascontiguousarray(array, dtype)


def temperature_scales(name: str, values: Any, count: int) -> np.ndarray:
    """Turns temperatures, a scalar or [count], into scales; refuses what cannot be sampled.

    Returns:
        float32 [count] scales c = log2(e) / T of sampled rows, 0 for greedy rows.
    """
    if not isinstance(values, int | float):
        temperatures = as_vector(name, values, count, np.float64)
        if count != 1:
            return _vector_scales(name, temperatures)
        values = temperatures.item()
    # plain numbers: a few calls of NumPy would cost as much as sampling the row
    _check_range(name, values, values)
    scale = LOG2_E / values if values >= GREEDY_TEMPERATURE else 0.0
    return np.full(count, scale, np.float32)


def _vector_scales(name: str, temperatures: np.ndarray) -> np.ndarray:
    if len(temperatures):
        _check_range(name, temperatures.min(), temperatures.max())
    is_sampled = temperatures >= GREEDY_TEMPERATURE
    return (LOG2_E / np.where(is_sampled, temperatures, np.inf)).astype(np.float32)


def _check_range(name: str, lowest: float, highest: float) -> None:
    # a NaN is neither
    for value in (lowest, highest):
        if not 0 <= value <= MAX_TEMPERATURE:
            raise ValueError(
                f"{name} = {value} is not in 0..{MAX_TEMPERATURE:g}; "
                f"use 0 for greedy (anything below {GREEDY_TEMPERATURE:g} is)"
            )
