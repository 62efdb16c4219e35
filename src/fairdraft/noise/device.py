"""Addresses, uniforms and exponentials inside Triton kernels: the same bits as the NumPy form.

`pack_counter` is the one place where a kernel forms an address. Launches look it up here each time
and hand it to their kernels as a constant, so that an audit can plant another layout and leave the
rest of the path as it is: a kernel is compiled anew for every function that it is given.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from fairdraft.noise import exponential as reference
from fairdraft.noise.address import (
    ANCHOR_BITS,
    LEVEL_SHIFT,
    NODE_BITS,
    POSITION_BITS,
    SAMPLE_BITS,
    STREAM_BITS,
    STREAM_SHIFT,
)

TOKEN_LEVEL, TILE_LEVEL = tl.constexpr(0), tl.constexpr(1)
_POSITION_BITS, _ANCHOR_BITS = tl.constexpr(POSITION_BITS), tl.constexpr(ANCHOR_BITS)
_NODE_BITS, _SAMPLE_BITS = tl.constexpr(NODE_BITS), tl.constexpr(SAMPLE_BITS)
_STREAM_BITS = tl.constexpr(STREAM_BITS)
_LEVEL_SHIFT, _STREAM_SHIFT = tl.constexpr(LEVEL_SHIFT), tl.constexpr(STREAM_SHIFT)
_C0, _C1, _C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9 = (
    tl.constexpr(c) for c in reference.LOG1P_COEFFICIENTS
)
_LN2, _LIMIT = tl.constexpr(reference.LN2), tl.constexpr(reference.SERIES_LIMIT)
_LARGEST = tl.constexpr(reference.LARGEST_UNIFORM)
# -log1p(-u) = u + u^2 h(u) up to here, h of degree 4; beyond, the hardware's logarithm is as good
_FAST_LIMIT = tl.constexpr(0.25)
_H0, _H1, _H2, _H3, _H4 = (
    tl.constexpr(c)
    for c in (
        0.5000072717666626,
        0.33293071389198303,
        0.25711020827293396,
        0.1467033177614212,
        0.33570966124534607,
    )
)
_SQRT_HALF_BITS = tl.constexpr(reference.SQRT_HALF_BITS)
_2M32, _2M64, _2M65 = tl.constexpr(2.0**-32), tl.constexpr(2.0**-64), tl.constexpr(2.0**-65)


@triton.jit
def pack_counter(position, anchor, stream, node, sample):
    """The Philox counter of an address at level 0 and block 0; fields are int64 and in range."""
    return (
        position.to(tl.uint32),
        anchor.to(tl.uint32),
        (stream << _STREAM_SHIFT).to(tl.uint32),
        ((sample << _NODE_BITS) | node).to(tl.uint32),
    )


@triton.jit
def is_in_range(position, anchor, stream, node, sample):
    """Whether every field fits its bits; one that does not is an error of its request."""
    excess = (position >> _POSITION_BITS) | (anchor >> _ANCHOR_BITS) | (stream >> _STREAM_BITS)
    return (excess | (node >> _NODE_BITS) | (sample >> _SAMPLE_BITS)) == 0


@triton.jit
def exponential(high, low):
    """Twin of `exponential.exponential32`."""
    tail = low.to(tl.float32) * _2M64 + _2M65
    u = high.to(tl.float32) * _2M32 + tail
    u = tl.minimum(u, _LARGEST)
    is_large = u > _LIMIT
    bits = (1.0 - u).to(tl.int32, bitcast=True)
    exponent = tl.where(is_large, (bits - _SQRT_HALF_BITS) >> 23, 0)
    mantissa = (bits - (exponent << 23)).to(tl.float32, bitcast=True)
    t = tl.where(is_large, mantissa - 1.0, -u)
    zero = tl.zeros_like(t)
    series = tl.fma(zero + _C0, t, zero + _C1)
    series = tl.fma(series, t, zero + _C2)
    series = tl.fma(series, t, zero + _C3)
    series = tl.fma(series, t, zero + _C4)
    series = tl.fma(series, t, zero + _C5)
    series = tl.fma(series, t, zero + _C6)
    series = tl.fma(series, t, zero + _C7)
    series = tl.fma(series, t, zero + _C8)
    series = tl.fma(series, t, zero + _C9)
    return -tl.fma(series, t, exponent.to(tl.float32) * _LN2)


@triton.jit
def fast_exponential(high, low, HAS_LG2: tl.constexpr):
    """The same number to 1e-6 of itself, in a third of the operations."""
    u = high.to(tl.float32) * _2M32 + (low.to(tl.float32) * _2M64 + _2M65)
    u = tl.minimum(u, _LARGEST)
    zero = tl.zeros_like(u)
    h = tl.fma(zero + _H4, u, zero + _H3)
    h = tl.fma(h, u, zero + _H2)
    h = tl.fma(h, u, zero + _H1)
    h = tl.fma(h, u, zero + _H0)
    log = libdevice.fast_log2f(1.0 - u) if HAS_LG2 else tl.log2(1.0 - u)
    return tl.where(u > _FAST_LIMIT, log * -_LN2, tl.fma(h * u, u, u))


@triton.jit
def fast_exponentials(
    key, counter, first_lane, LEVEL: tl.constexpr, COUNT: tl.constexpr, HAS_LG2: tl.constexpr
):
    """`exponentials` in `fast` arithmetic."""
    w0, w1, w2, w3 = words(key, counter, first_lane, LEVEL, COUNT)
    return tl.interleave(fast_exponential(w0, w1, HAS_LG2), fast_exponential(w2, w3, HAS_LG2))


@triton.jit
def exponentials(key, counter, first_lane, LEVEL: tl.constexpr, COUNT: tl.constexpr):
    """Unit exponentials of COUNT consecutive lanes, from an even one: a block [COUNT]."""
    w0, w1, w2, w3 = words(key, counter, first_lane, LEVEL, COUNT)
    return tl.interleave(exponential(w0, w1), exponential(w2, w3))


@triton.jit
def words(key, counter, first_lane, LEVEL: tl.constexpr, COUNT: tl.constexpr):
    """The words of COUNT // 2 consecutive Philox blocks, of two lanes each."""
    pair = tl.arange(0, COUNT // 2)
    block = (first_lane // 2 + pair).to(tl.uint32)
    zero = (pair * 0).to(tl.uint32)
    c2 = counter[2] | (LEVEL << _LEVEL_SHIFT)
    return tl.philox(
        key, zero + counter[0], zero + counter[1], block | c2.to(tl.uint32), zero + counter[3]
    )


@triton.jit
def exponentials_at(key, counter, lane, LEVEL: tl.constexpr):
    """Unit exponentials of any lanes, a block of int32: one Philox block a lane."""
    zero = (lane * 0).to(tl.uint32)
    c2 = counter[2] | (LEVEL << _LEVEL_SHIFT)
    w0, w1, w2, w3 = tl.philox(
        key,
        zero + counter[0],
        zero + counter[1],
        (lane >> 1).to(tl.uint32) | c2.to(tl.uint32),
        zero + counter[3],
    )
    is_odd = (lane & 1) == 1
    return exponential(tl.where(is_odd, w2, w0), tl.where(is_odd, w3, w1))


@triton.jit
def accept_uniform(key, counter):
    """Twin of `exponential.accept_uniform` for one address: a float64 in (0, 1)."""
    zero = tl.zeros([1], tl.uint32)
    w0, w1, _, _ = tl.philox(
        key, zero + counter[0], zero + counter[1], zero + counter[2], zero + counter[3]
    )
    word = (w0.to(tl.uint64) << 32) | w1.to(tl.uint64)
    half = tl.full([1], 0.5, tl.float64)
    return tl.sum(((word >> 12).to(tl.float64) + half) * 2.220446049250313e-16, 0)
