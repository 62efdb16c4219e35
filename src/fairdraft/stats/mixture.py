"""Sums and means of numbers kept as logarithms."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

__all__ = ["log_mean_exp", "log_sum_exp"]


def log_sum_exp(logs: Iterable[float]) -> float:
    """Returns the natural log of the sum of exp(logs); -inf for none."""
    values = np.fromiter(logs, np.float64)
    if not len(values):
        return -math.inf
    top = float(values.max())
    return top + math.log(float(np.exp(values - top).sum()))


def log_mean_exp(logs: np.ndarray) -> float:
    """Returns the natural log of the mean of exp(logs)."""
    return log_sum_exp(logs) - math.log(len(logs))
