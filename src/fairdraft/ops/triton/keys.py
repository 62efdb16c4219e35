"""Keys that order logits as integers, and the integer masses of their weights."""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.ops import arithmetic as reference

#: the key of -inf; a smaller one belongs to NaN
EXCLUDED_KEY = tl.constexpr(-0x7F800001)
_SIGNS = tl.constexpr(0x7FFFFFFF)
_FIXED_POINT = tl.constexpr(reference.FIXED_POINT)


@triton.jit
def ordered_key(x):
    """int32 that compares as float32 x does; -0 and 0 have one key, NaN none of use."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ _SIGNS)


@triton.jit
def key_value(key):
    """The float32 that a key stands for."""
    return tl.where(key >= 0, key, key ^ _SIGNS).to(tl.float32, bitcast=True)


@triton.jit
def mass_of(weights):
    """Masses of weights in [0, 1]: int64 of unit 2^-38."""
    return (weights.to(tl.float64) * _FIXED_POINT).to(tl.int64)
