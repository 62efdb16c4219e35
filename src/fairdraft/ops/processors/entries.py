"""Reads and writes single entries of logits by arrays of the host.

Axes: B sequences, R rows, V vocabulary, E entries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def on(logits: Tensor, values: np.ndarray) -> Tensor:
    """The values beside the logits; int64 stays, floats become the logits' own."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor.to(logits.device, logits.dtype if tensor.is_floating_point() else None)


def check_working_logits(logits: Any) -> None:
    """Refuses what cannot be processed in place.

    Raises:
        ValueError: If it is no floating-point tensor [B, R, V].
    """
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.dim() != 3:
        what = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"logits must be a floating-point tensor [B, R, V], not {what}")
