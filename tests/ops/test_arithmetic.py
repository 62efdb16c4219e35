"""The portable arithmetic: accuracy, exactness, and independence of order."""

from __future__ import annotations

import numpy as np
import pytest

from fairdraft.noise.fma import fma32
from fairdraft.ops import arithmetic
from fairdraft.ops.arithmetic import TILE


def test_fma_rounds_once() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.normal(size=200_000).astype(np.float32) for _ in range(3))
    c[:100_000] = -(a * b)[:100_000]
    exact = a.astype(np.longdouble) * b + c
    got = fma32(a, b, c)
    assert (np.abs(got - exact) <= np.spacing(np.abs(got)) / 2).all()


@pytest.mark.parametrize("c", [1.0, 1.442695, 0.3, 14.4])
def test_powers_of_two_on_every_remainder(c: float) -> None:
    # 2^17 remainders of each of 101 integer parts
    z = -np.arange(0, 100.9, 2.0**-10)
    d = (z / c).astype(np.float32)
    scale = np.float32(c)
    got = arithmetic.exp2_weights(d, scale).astype(np.float64)
    exact = 2.0 ** (d.astype(np.float64) * np.float64(scale))
    is_kept = d.astype(np.float64) * np.float64(scale) > -99.999
    assert np.abs(got / exact - 1)[is_kept].max() < 1.3e-7
    assert got.max() <= 1.0 and got[z < -100.01].max() == 0


def test_weight_of_the_maximum_is_one_and_of_nothing_is_zero() -> None:
    d = np.array([0.0, -np.inf, -3e38], np.float32)
    assert arithmetic.exp2_weights(d, np.float32(1.44e5)).tolist() == [1.0, 0.0, 0.0]


def test_sums_are_exact_on_their_grid_in_any_order() -> None:
    rng = np.random.default_rng(1)
    weights = np.exp2(-rng.exponential(6, size=(200, TILE))).astype(np.float32)
    weights[0] = 1.0
    sums = arithmetic.exact_sums(weights)
    on_grid = np.round(weights.astype(np.float64) * 2.0**29) * 2.0**-29
    assert np.abs(sums - on_grid.sum(1)).max() <= np.spacing(np.float32(512)) / 2
    for _ in range(3):
        order = rng.permutation(TILE)
        assert (arithmetic.exact_sums(weights[:, order]) == sums).all()


def test_fixed_point_holds_the_largest_vocabulary() -> None:
    full = np.full((1 << 24) // TILE, np.float32(TILE))
    assert arithmetic.fixed_point_sum(full) == 1 << 62


def test_row_law_is_softmax() -> None:
    rng = np.random.default_rng(2)
    row = rng.permutation(-1.5 * np.log(np.arange(1, 50_001))).astype(np.float32)
    law = arithmetic.row_weights(row, np.float32(np.log2(np.e)))
    p = np.exp(row.astype(np.float64))
    p /= p.sum()
    got = law.probabilities()[: len(row)]
    assert np.abs(got / p - 1).max() < 1e-6
    # what the race draws from: tile weight times weight within the tile
    tile = law.tile_weights().astype(np.float64)
    drawn = (tile / tile.sum() / law.tile_sum)[:, None] * law.weights
    assert 0.5 * np.abs(drawn.reshape(-1)[: len(row)] - p).sum() < 2e-7


def test_scaled_weights_keep_relative_precision_of_tiny_tiles() -> None:
    values = np.zeros(3 * TILE)
    values[[0, 700, 701, 1400]] = [0.5, 1e-20, 3e-20, 1e-40]
    scaled = arithmetic.scaled_weights(values)
    assert scaled.weights[1][189] / scaled.weights[1][188] == pytest.approx(3, rel=1e-6)
    drawn = scaled.tile_weights()[1] / scaled.tile_weights()[0]
    assert drawn == pytest.approx(8e-20, rel=1e-6)
    assert scaled.tile_weights()[2] == 0
