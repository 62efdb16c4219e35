"""The fast CPU form of the generator and the exponential: numba, same bits as the NumPy form."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from fairdraft.noise import exponential as reference
from fairdraft.noise import philox as generator

# the decorator replaces the typing context, which type checkers cannot see
_intrinsic: Any = intrinsic
_f = np.float32
_M0, _M1 = np.uint64(generator.MULTIPLIER_0), np.uint64(generator.MULTIPLIER_1)
_W0, _W1 = np.uint32(generator.WEYL_0), np.uint32(generator.WEYL_1)
_C = tuple(_f(c) for c in reference.LOG1P_COEFFICIENTS)
_LN2, _LIMIT = _f(reference.LN2), _f(reference.SERIES_LIMIT)
_LARGEST = _f(reference.LARGEST_UNIFORM)
_SQRT_HALF_BITS = np.int32(reference.SQRT_HALF_BITS)
_2M32, _2M64, _2M65 = _f(2.0**-32), _f(2.0**-64), _f(2.0**-65)
_ONE, _ZERO = _f(1), _f(0)


@_intrinsic
def fma(_context, a, b, c):
    """float32 fused multiply-add; one instruction where the processor has it."""

    def generate(_, builder, __, args):
        single = ir.FloatType()
        kind = ir.FunctionType(single, [single, single, single])
        return builder.call(builder.module.declare_intrinsic("llvm.fma", [single], kind), args)

    return types.float32(types.float32, types.float32, types.float32), generate


@_intrinsic
def float_bits(_context, value):
    """The bits of a float32 as int32."""

    def generate(_, builder, __, args):
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), generate


@_intrinsic
def bits_float(_context, bits):
    """The float32 with the given int32 bits."""

    def generate(_, builder, __, args):
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), generate


@njit(inline="always")
def philox4x32(c0, c1, c2, c3, key):
    """One block: four uint32 words from four uint32 counter words and a uint64 key."""
    k0 = np.uint32(key & np.uint64(0xFFFFFFFF))
    k1 = np.uint32(key >> np.uint64(32))
    for _ in range(generator.ROUNDS):
        low = np.uint64(c0) * _M0
        high = np.uint64(c2) * _M1
        c0 = np.uint32(high >> np.uint64(32)) ^ c1 ^ k0
        c1 = np.uint32(high & np.uint64(0xFFFFFFFF))
        c2 = np.uint32(low >> np.uint64(32)) ^ c3 ^ k1
        c3 = np.uint32(low & np.uint64(0xFFFFFFFF))
        k0 = np.uint32(k0 + _W0)
        k1 = np.uint32(k1 + _W1)
    return c0, c1, c2, c3


@njit(inline="always")
def exponential32(high, low):
    """Twin of `exponential.exponential32` on two uint32 words."""
    u = _f(high) * _2M32 + (_f(low) * _2M64 + _2M65)
    u = min(u, _LARGEST)
    if u > _LIMIT:
        bits = float_bits(_ONE - u)
        exponent = np.int32(np.int32(bits - _SQRT_HALF_BITS) >> np.int32(23))
        t = bits_float(np.int32(bits - np.int32(exponent << np.int32(23)))) - _ONE
        whole = _f(exponent) * _LN2
    else:
        t = -u
        whole = _ZERO
    series = _C[0]
    for i in range(1, 10):
        series = fma(series, t, _C[i])
    return -fma(series, t, whole)


@njit(inline="always")
def accept_uniform(high, low):
    """Twin of `exponential.accept_uniform`."""
    word = np.uint64(high) << np.uint64(32) | np.uint64(low)
    return (np.float64(word >> np.uint64(12)) + 0.5) * 2.0**-52


@njit
def fill_exponentials(key, counter, first_lane, level_bit, out):
    """Writes the exponentials of lanes first_lane .. first_lane + len(out) - 1 (even start)."""
    c0, c1, c2, c3 = counter[0], counter[1], counter[2] | level_bit, counter[3]
    count = len(out)
    for pair in range((count + 1) // 2):
        block = np.uint32((first_lane >> 1) + pair)
        w0, w1, w2, w3 = philox4x32(c0, c1, np.uint32(c2 | block), c3, key)
        out[2 * pair] = exponential32(w0, w1)
        if 2 * pair + 1 < count:
            out[2 * pair + 1] = exponential32(w2, w3)
