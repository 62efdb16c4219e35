"""Uniforms and exponentials: range, tail, accuracy, and equality of the two forms."""

from __future__ import annotations

import numpy as np
from numba import njit

from fairdraft import noise
from fairdraft.noise import Level, Stream, exponential, jit


@njit
def fast_exponentials(high, low, out):
    for i in range(len(high)):
        out[i] = jit.exponential32(high[i], low[i])


@njit
def fast_uniforms(high, low, out):
    for i in range(len(high)):
        out[i] = jit.accept_uniform(high[i], low[i])


def words_of_every_exponent() -> tuple[np.ndarray, np.ndarray]:
    """Random 64-bit words at every bit length, and the edges, as (high, low)."""
    rng = np.random.default_rng(2)
    word = rng.integers(0, 1 << 64, 64 * 2_000, dtype=np.uint64)
    word >>= np.repeat(np.arange(64, dtype=np.uint64), 2_000)
    edges = np.array([0, 1, 2, (1 << 32) - 1, 1 << 32, 1 << 63, (1 << 64) - 1], np.uint64)
    word = np.concatenate([word, ~word, edges])
    return (word >> np.uint64(32)).astype(np.uint32), word.astype(np.uint32)


def exact(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    u = (high.astype(np.longdouble) * 2**32 + low + 0.5) / np.longdouble(2) ** 64
    with np.errstate(divide="ignore"):
        return np.asarray(-np.log1p(-u), np.float64)


def test_fast_form_has_the_same_bits() -> None:
    high, low = words_of_every_exponent()
    out = np.empty(len(high), np.float32)
    fast_exponentials(high, low, out)
    assert (out == exponential.exponential32(high, low)).all()
    uniforms = np.empty(len(high))
    fast_uniforms(high, low, uniforms)
    assert (uniforms == exponential.accept_uniform(high, low)).all()


def test_small_side_is_accurate_and_resolved_to_two_to_the_minus_64() -> None:
    high, low = words_of_every_exponent()
    got, expected = exponential.exponential32(high, low).astype(np.float64), exact(high, low)
    is_small = expected < 0.34
    assert np.abs(got / expected - 1)[is_small].max() < 2.2e-7
    assert np.abs(got / expected - 1)[expected < 10].max() < 1e-4
    assert got.min() == 2.0**-65


def test_neither_end_is_reached() -> None:
    high, low = words_of_every_exponent()
    u = exponential.uniform32(high, low)
    assert u.min() > 0 and u.max() == np.float32(1 - 2.0**-24)
    accept = exponential.accept_uniform(high, low)
    assert accept.min() == 2.0**-53 and accept.max() == 1 - 2.0**-53


def test_lanes_are_halves_of_blocks_and_levels_are_apart() -> None:
    at = noise.address(Stream.TARGET, key=3, position=9)
    lanes = np.arange(10)
    whole = exponential.exponentials(at, 0, lanes, Level.TOKEN)
    assert (exponential.exponentials(at, 0, lanes[3:7], Level.TOKEN) == whole[3:7]).all()
    counter = at.counter.copy()
    counter[0, 2] |= 2
    words = noise.philox4x32(counter, at.key)[0]
    assert whole[4] == exponential.exponential32(words[:1], words[1:2])[0]
    assert whole[5] == exponential.exponential32(words[2:3], words[3:4])[0]
    assert not set(whole) & set(exponential.exponentials(at, 0, lanes, Level.TILE))


def test_filled_lanes_equal_single_ones() -> None:
    at = noise.address(Stream.DRAFT, key=123, position=4, anchor=2, node=3, sample=1)
    for first, count in ((0, 1), (512, 512), (1024, 33)):
        out = np.empty(count, np.float32)
        jit.fill_exponentials(at.key[0], at.counter[0], first, np.uint32(1 << 23), out)
        lanes = first + np.arange(count)
        assert (out == exponential.exponentials(at, 0, lanes, Level.TILE)).all()
