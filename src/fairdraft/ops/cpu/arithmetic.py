"""Fast twin of `ops/arithmetic.py` for one tile at a time: numba, same bits.

Loops are written so that the compiler vectorizes them without reordering floats: maxima are taken
on order-preserving integers, sums on the integer mantissas that the exact split produces.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from fairdraft.noise.jit import bits_float, float_bits, fma
from fairdraft.ops import arithmetic as reference

# the decorator replaces the typing context, which type checkers cannot see
_intrinsic: Any = intrinsic
_f = np.float32
TILE = reference.TILE
_MAGIC = _f(reference.ROUND_TO_INTEGER)
_C = tuple(_f(c) for c in reference.EXP2_COEFFICIENTS)
_SMALLEST = _f(reference.SMALLEST_EXPONENT)
_HIGH, _LOW = _f(reference.SPLIT_HIGH), _f(reference.SPLIT_LOW)
_HIGH_BITS = np.int32(np.float32(reference.SPLIT_HIGH).view(np.int32))
_LOW_BITS = np.int32(np.float32(reference.SPLIT_LOW).view(np.int32))
_HIGH_UNIT, _LOW_UNIT = _f(2.0**-14), _f(2.0**-29)
_ZERO = _f(0)
FIXED_POINT = reference.FIXED_POINT
_TINY = 2.0**reference.SMALLEST_EXPONENT

#: order-preserving integers of +inf and -inf; NaN lies outside of them on either side
KEY_INF = np.int32(0x7F800000)
KEY_MINUS_INF = np.int32(-0x7F800001)


@_intrinsic
def double_bits(_context, value):
    """The bits of a float64 as int64."""

    def generate(_, builder, __, args):
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), generate


@_intrinsic
def bits_double(_context, bits):
    """The float64 with the given int64 bits."""

    def generate(_, builder, __, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), generate


@njit(inline="always")
def order_key(value):
    """An int32 that orders float32 values, with NaN at the ends."""
    bits = float_bits(value)
    return np.int32(bits ^ (np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@njit(inline="always")
def key_value(key):
    """The float32 of an order key; -0.0 becomes 0.0."""
    return (
        bits_float(np.int32(key ^ (np.int32(key >> np.int32(31)) & np.int32(0x7FFFFFFF)))) + _ZERO
    )


@njit(inline="always")
def exp2_weight(d, c):
    """Twin of `arithmetic.exp2_weights` on one difference d <= 0."""
    # below the limit the polynomial's value is garbage, and is dropped at the end
    shifted = fma(d, c, _MAGIC)
    fraction = fma(d, c, -(shifted - _MAGIC))
    power = fma(fraction, _C[0], _C[1])
    power = fma(power, fraction, _C[2])
    power = fma(power, fraction, _C[3])
    power = fma(power, fraction, _C[4])
    power = fma(power, fraction, _C[5])
    power = fma(power, fraction, _C[6])
    bits = np.int32(float_bits(power) + np.int32(float_bits(shifted) << np.int32(23)))
    return bits_float(bits) if d * c > _SMALLEST else _ZERO


@njit
def extreme_keys(tile):
    """The largest and smallest order keys of a tile."""
    top, bottom = np.int32(-0x80000000), np.int32(0x7FFFFFFF)
    for j in range(len(tile)):
        key = order_key(tile[j])
        top = max(top, key)
        bottom = min(bottom, key)
    return top, bottom


@njit(inline="always")
def split(weight):
    """The bits of a weight's part on the grid of 2^-14, and of the rest on that of 2^-29."""
    high = weight + _HIGH
    low = (weight - (high - _HIGH)) + _LOW
    return float_bits(high), float_bits(low)


@njit(inline="always")
def joined(high_sum, low_sum, count):
    """The exact sum of `count` weights from the sums of their parts, which wrap at 32 bits."""
    high = np.int32(high_sum - count * _HIGH_BITS)
    low = np.int32(low_sum - count * _LOW_BITS)
    return _f(high) * _HIGH_UNIT + _f(low) * _LOW_UNIT


@njit
def weight_sum(tile, tile_max, c):
    """Exact sum of a tile's weights, to 2^-29, without keeping them."""
    high_sum, low_sum = np.int32(0), np.int32(0)
    for j in range(len(tile)):
        high, low = split(exp2_weight(tile[j] - tile_max, c))
        # the casts keep the sums in 32 bits, which is twice as fast
        high_sum, low_sum = np.int32(high_sum + high), np.int32(low_sum + low)
    return joined(high_sum, low_sum, len(tile))


@njit
def fill_weights(tile, tile_max, c, out):
    """Writes a tile's weights."""
    for j in range(len(tile)):
        out[j] = exp2_weight(tile[j] - tile_max, c)


@njit
def exact_sum(weights):
    """Twin of `arithmetic.exact_sums` on one tile of weights in [0, 1]."""
    high_sum, low_sum = np.int32(0), np.int32(0)
    for j in range(len(weights)):
        high, low = split(weights[j])
        high_sum, low_sum = np.int32(high_sum + high), np.int32(low_sum + low)
    return joined(high_sum, low_sum, len(weights))


@njit(inline="always")
def binary_exponent(value):
    """e with value = m 2^e and m in [1/2, 1), for a positive normal float64 (as frexp)."""
    return np.int64((double_bits(value) >> 52) - 1022)


@njit(inline="always")
def power_of_two(exponent):
    """2^exponent as float64, for exponents of normal numbers."""
    return bits_double(np.int64((exponent + 1023) << 52))


@njit
def scale_weights(values, exponent, out):
    """Writes float64 values times 2^-exponent as float32, 0 below 2^-100."""
    scale = power_of_two(-exponent)
    for j in range(len(values)):
        scaled = values[j] * scale
        out[j] = _f(scaled) if scaled >= _TINY else _ZERO
