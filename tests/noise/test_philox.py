"""Random123's published answers, and the fast form beside the readable one."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from fairdraft.noise import jit, philox4x32

# (counter, key, answer), from Random123's known-answer file for philox4x32-10
ZEROS, ONES = " ".join(["00000000"] * 4), " ".join(["ffffffff"] * 4)
KNOWN_ANSWERS = [
    (ZEROS, ZEROS[:17], "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (ONES, ONES[:17], "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@njit
def fast_philox(counter, key):
    return jit.philox4x32(counter[0], counter[1], counter[2], counter[3], key)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers(counter: str, key: str, answer: str) -> None:
    low, high = words(key)
    key64 = np.array([low | high << 32], np.uint64)
    counter32 = np.array(words(counter), np.uint32)
    assert philox4x32(counter32[None], key64)[0].tolist() == words(answer)
    assert list(fast_philox(counter32, key64[0])) == words(answer)


def test_fast_form_has_the_same_bits() -> None:
    rng = np.random.default_rng(1)
    counters = rng.integers(0, 1 << 32, (2_000, 4), dtype=np.uint32)
    keys = rng.integers(0, 1 << 64, 2_000, dtype=np.uint64)
    expected = philox4x32(counters, keys)
    got = [fast_philox(c, k) for c, k in zip(counters, keys, strict=True)]
    assert (np.array(got, np.uint32) == expected).all()
