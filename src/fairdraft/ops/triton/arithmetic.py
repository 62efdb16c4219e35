"""Twin of `ops/arithmetic.py` inside Triton kernels: `portable` bits, and the `fast` form.

`portable` has the bits of the NumPy form on any tree of sums, since its partial sums are exact;
kernels that use it are compiled with fp fusion off. `fast` takes the hardware's 2^x and plain sums.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from fairdraft.ops import arithmetic as reference
from fairdraft.ops.rows import LOG2_E

TILE = tl.constexpr(reference.TILE)


def _offset(split: float) -> int:
    """What TILE weights add to a sum of bits by being split, as int32."""
    total = reference.TILE * int(np.float32(split).view(np.int32))
    return (total + 2**31) % 2**32 - 2**31


_MAGIC = tl.constexpr(reference.ROUND_TO_INTEGER)
_C0, _C1, _C2, _C3, _C4, _C5, _C6 = (tl.constexpr(c) for c in reference.EXP2_COEFFICIENTS)
_SMALLEST = tl.constexpr(reference.SMALLEST_EXPONENT)
_HIGH, _LOW = tl.constexpr(reference.SPLIT_HIGH), tl.constexpr(reference.SPLIT_LOW)
_HIGH_BITS = tl.constexpr(int(np.float32(reference.SPLIT_HIGH).view(np.int32)))
_LOW_BITS = tl.constexpr(int(np.float32(reference.SPLIT_LOW).view(np.int32)))
_HIGH_OFFSET = tl.constexpr(_offset(reference.SPLIT_HIGH))
_LOW_OFFSET = tl.constexpr(_offset(reference.SPLIT_LOW))
_HIGH_UNIT, _LOW_UNIT = tl.constexpr(2.0**-14), tl.constexpr(2.0**-29)
_INF = tl.constexpr(float("inf"))
_LOG2_E = tl.constexpr(LOG2_E)
_GREEDY = tl.constexpr(reference.GREEDY_TEMPERATURE)
_MAX_TEMPERATURE = tl.constexpr(reference.MAX_TEMPERATURE)
_FIXED_POINT = tl.constexpr(reference.FIXED_POINT)


@triton.jit
def temperature_scale(temperature):
    """Twin of `rows.temperature_scales`: c = log2(e) / T as float32, 0 for greedy, NaN if bad."""
    t = temperature.to(tl.float64)
    is_greedy = t < tl.full([], _GREEDY, tl.float64)
    c = (tl.full([], _LOG2_E, tl.float64) / tl.where(is_greedy, 1.0, t)).to(tl.float32)
    is_good = (t >= 0.0) & (t <= _MAX_TEMPERATURE)
    return tl.where(is_good, tl.where(is_greedy, 0.0, c), float("nan"))


@triton.jit
def exp2_weight(d, c):
    """Twin of `arithmetic.exp2_weights`: 2^(d c) for float32 d <= 0, 0 below 2^-100."""
    # below the limit the polynomial's value is garbage, and is dropped at the end
    is_kept = d * c > _SMALLEST
    zero = tl.zeros_like(d)
    c = zero + c
    shifted = tl.fma(d, c, zero + _MAGIC)
    fraction = tl.fma(d, c, -(shifted - _MAGIC))
    power = tl.fma(fraction, zero + _C0, zero + _C1)
    power = tl.fma(power, fraction, zero + _C2)
    power = tl.fma(power, fraction, zero + _C3)
    power = tl.fma(power, fraction, zero + _C4)
    power = tl.fma(power, fraction, zero + _C5)
    power = tl.fma(power, fraction, zero + _C6)
    bits = power.to(tl.int32, bitcast=True) + (shifted.to(tl.int32, bitcast=True) << 23)
    return tl.where(is_kept, bits.to(tl.float32, bitcast=True), 0.0)


@triton.jit
def exact_sum(weights, axis: tl.constexpr):
    """Twin of `arithmetic.exact_sums` along an axis of TILE weights in [0, 1].

    The two parts of a weight are multiples of 2^-14 and 2^-29, and their bits count them: sums of
    integers are exact, and wrap without harm.
    """
    high = weights + _HIGH
    low = (weights - (high - _HIGH)) + _LOW
    high_sum = tl.sum(high.to(tl.int32, bitcast=True), axis) - _HIGH_OFFSET
    low_sum = tl.sum(low.to(tl.int32, bitcast=True), axis) - _LOW_OFFSET
    return sum_of_parts(high_sum, low_sum)


@triton.jit
def exact_parts(weights):
    """The two parts of weights in [0, 1] as int32, of units 2^-14 and 2^-29."""
    high = weights + _HIGH
    low = (weights - (high - _HIGH)) + _LOW
    return (
        high.to(tl.int32, bitcast=True) - _HIGH_BITS,
        low.to(tl.int32, bitcast=True) - _LOW_BITS,
    )


@triton.jit
def sum_of_parts(high_sum, low_sum):
    """The sum of weights whose parts were summed."""
    return high_sum.to(tl.float32) * _HIGH_UNIT + low_sum.to(tl.float32) * _LOW_UNIT


@triton.jit
def tile_base(top):
    """Twin of `tile_base` on the CPU: what is subtracted from a tile whose maximum is given."""
    return tl.where(tl.abs(top) == _INF, 0.0, top)


@triton.jit
def tile_stats(x, c, IS_FAST: tl.constexpr):
    """Maximum and sum of 2^((x - max) c) of each tile of x [G, TILE], c > 0.

    A NaN makes its tile's sum NaN, +inf makes it +inf, an empty tile has -inf and 0.
    """
    top = tl.max(x, 1)
    d = x - tile_base(top)[:, None]
    if IS_FAST:
        return top, tl.sum(tl.exp2(d * c), 1)
    total = exact_sum(exp2_weight(d, c), 1)
    # one addition a token finds NaN: no term is +inf unless the tile holds it
    exponents = tl.sum(d * c, 1)
    is_nan = exponents != exponents
    if tl.max(top, 0) == _INF:
        is_nan = tl.max((x != x).to(tl.int32), 1) > 0
    total = tl.where(top == _INF, _INF, total)
    return top, tl.where(is_nan, float("nan"), total)


@triton.jit
def row_total(tile_weights):
    """Twin of `arithmetic.fixed_point_sum`: int64 of unit 2^-38."""
    return tl.sum((tile_weights.to(tl.float64) * _FIXED_POINT).to(tl.int64), 0)


@triton.jit
def law_scale(tile_scale, total):
    """What turns a tile's weights into probabilities: float64, as in `RowWeights`."""
    return tile_scale.to(tl.float64) * (_FIXED_POINT / total.to(tl.float64))
