"""Philox4x32-10, the one generator (Salmon et al. 2011, "Parallel random numbers", section 3.3).

Stateless: words = philox(counter, key). For one key it is a bijection of the 128-bit counter, so
distinct counters give distinct blocks. This is the readable form; `jit.py` has the fast one.
"""

from __future__ import annotations

import numpy as np

ROUNDS = 10
MULTIPLIER_0, MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Encrypts counters into four random words each.

    Args:
        counter: uint32 [..., 4].
        key: uint64 [...], the low word first.

    Returns:
        uint32 [..., 4].
    """
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = key & _LOW, key >> _HALF
    for _ in range(ROUNDS):
        low = c0 * np.uint64(MULTIPLIER_0)
        high = c2 * np.uint64(MULTIPLIER_1)
        c0, c1, c2, c3 = (
            (high >> _HALF) ^ c1 ^ k0,
            high & _LOW,
            (low >> _HALF) ^ c3 ^ k1,
            low & _LOW,
        )
        k0 = (k0 + np.uint64(WEYL_0)) & _LOW
        k1 = (k1 + np.uint64(WEYL_1)) & _LOW
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)
