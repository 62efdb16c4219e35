"""Uniforms and unit exponentials from Philox words, resolved down to 2^-64.

A race is decided by its smallest exponentials, so the small side is the exact one:
u = hi 2^-32 + (lo 2^-64 + 2^-65) never is 0 and has a grid of 2^-64; E = -log1p(-u) by a fixed
polynomial (a library call would differ between backends). The large side saturates at
u = 1 - 2^-24, which only ever loses.
"""

from __future__ import annotations

import numpy as np

from fairdraft.noise.address import LEVEL_SHIFT, Address
from fairdraft.noise.fma import fma32
from fairdraft.noise.philox import philox4x32

# log(1 + t) / t on [1/sqrt 2 - 1, sqrt 2 - 1], highest power first
LOG1P_COEFFICIENTS = (
    -0.07618916779756546,
    0.1290394514799118,
    -0.13243956863880157,
    0.14181971549987793,
    -0.1660897433757782,
    0.20001961290836334,
    -0.25001588463783264,
    0.33333325386047363,
    -0.49999988079071045,
    1.0,
)
LN2 = 0.6931471805599453
SERIES_LIMIT = 0.2928932
LARGEST_UNIFORM = 1 - 2.0**-24
SQRT_HALF_BITS = 0x3F3504F3

_f = np.float32


def uniform32(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Uniforms in (0, 1) as float32 from two uint32 words; neither 0 nor 1 occurs."""
    tail = low.astype(_f) * _f(2.0**-64) + _f(2.0**-65)
    u = high.astype(_f) * _f(2.0**-32) + tail
    return np.minimum(u, _f(LARGEST_UNIFORM))


def exponential32(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Unit exponentials -log1p(-u) as float32; relative error below 1.3e-7 for u < 0.29."""
    u = uniform32(high, low)
    is_large = u > _f(SERIES_LIMIT)
    bits = (_f(1) - u).view(np.int32)
    exponent = np.where(is_large, (bits - np.int32(SQRT_HALF_BITS)) >> 23, 0).astype(np.int32)
    mantissa = (bits - (exponent << 23)).view(_f)
    t = np.where(is_large, mantissa - _f(1), -u)
    series = np.full_like(t, _f(LOG1P_COEFFICIENTS[0]))
    for coefficient in LOG1P_COEFFICIENTS[1:]:
        series = fma32(series, t, _f(coefficient))
    return -fma32(series, t, exponent.astype(_f) * _f(LN2))


def accept_uniform(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Uniforms in (0, 1) as float64 on a grid of 2^-52, open at both ends."""
    word = high.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64)
    return ((word >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _words(at: Address, row: int, lanes: np.ndarray, level: int) -> tuple[np.ndarray, np.ndarray]:
    block = (lanes >> 1).astype(np.uint32)
    counter = np.repeat(at.counter[row][None], len(lanes), axis=0)
    counter[:, 2] |= block | np.uint32(level << LEVEL_SHIFT)
    words = philox4x32(counter, np.broadcast_to(at.key[row], len(lanes)))
    is_odd = (lanes & 1).astype(bool)
    high = np.where(is_odd, words[:, 2], words[:, 0])
    low = np.where(is_odd, words[:, 3], words[:, 1])
    return high, low


def exponentials(at: Address, row: int, lanes: np.ndarray, level: int) -> np.ndarray:
    """Unit exponentials of one draw: float32 [L] for the given lanes of its race."""
    return exponential32(*_words(at, row, lanes, level))


def acceptance(at: Address) -> np.ndarray:
    """The acceptance uniforms of N draws: float64 [N], from lane 0 of each address."""
    words = philox4x32(at.counter, at.key)
    return accept_uniform(words[..., 0], words[..., 1])
