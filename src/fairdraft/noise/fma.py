"""Fused multiply-add in float32 for NumPy, correctly rounded.

The product of two float32 is exact in float64; the sum is rounded there to odd, so that the final
rounding to float32 is the only one that counts (Boldo & Melquiond 2008, "Emulation of FMA").
"""

from __future__ import annotations

import numpy as np


def fma32(a: np.ndarray, b: np.ndarray | np.float32, c: np.ndarray | np.float32) -> np.ndarray:
    """Returns float32(a * b + c), rounded once."""
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.asarray(c, np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    even = (total.view(np.int64) & 1) == 0
    toward = np.where(error > 0, np.inf, -np.inf)
    total = np.where((error != 0) & even, np.nextafter(total, toward), total)
    return total.astype(np.float32)
