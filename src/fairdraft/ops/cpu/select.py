"""Radix selection on order keys: where a running total over a row in descending order crosses.

Ten to eleven bits a pass, the highest first: each pass sums the amounts of the tokens that still
share all higher bits, so that a whole row is never sorted. Amounts are integers, so every partial
sum is exact and the result is that of a full sort.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fairdraft.ops.cpu import arithmetic

_ZERO = np.float32(0)
#: (shift, bits) of each pass over a 32-bit key
PASSES = ((21, 11), (10, 11), (0, 10))
NUM_BUCKETS = 1 << 11


@njit
def fill_keys(row, keys):
    """Writes unsigned keys in the order of the values; -0.0 and 0.0 are one key."""
    for j in range(len(row)):
        signed = arithmetic.order_key(row[j] + _ZERO)
        keys[j] = np.uint32(signed) ^ np.uint32(0x80000000)


@njit
def crossing(keys, amounts, stays, limit, buckets):
    """Finds the key at which the total of larger amounts reaches a limit.

    Args:
        keys: uint32 [V] from `fill_keys`.
        amounts: int64 [V], at least 0; their total over `stays` must reach the limit.
        stays: bool [V], the tokens that count.
        limit: float64, above 0.
        buckets: int64 [NUM_BUCKETS], scratch.

    Returns:
        (key, before): the largest key such that float64(total of keys at or above it) >= limit,
        and the total of the keys above it.
    """
    prefix, before = np.uint32(0), np.int64(0)
    mask = np.uint32(0)
    for shift, bits in PASSES:
        buckets[:] = 0
        low = np.uint32((1 << bits) - 1)
        for j in range(len(keys)):
            if stays[j] and (keys[j] & mask) == prefix:
                buckets[(keys[j] >> np.uint32(shift)) & low] += amounts[j]
        bucket = (1 << bits) - 1
        while bucket > 0 and np.float64(before + buckets[bucket]) < limit:
            before += buckets[bucket]
            bucket -= 1
        prefix |= np.uint32(bucket) << np.uint32(shift)
        mask |= low << np.uint32(shift)
    return prefix, before
