"""The `portable` arithmetic: weights and sums with the same bits on every backend.

2^x is an explicit-fma polynomial, sums of weights are exact in two parts whatever the order, and
divisions are IEEE. This NumPy form is the definition; `cpu/arithmetic.py` is its fast twin.
Axes: V vocabulary, T tiles of TILE consecutive ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairdraft.noise.fma import fma32

TILE = 512
#: below it a row is greedy, for target and draft alike
GREEDY_TEMPERATURE = 1e-5
MAX_TEMPERATURE = 1e8
#: weights below 2^-100 of their maximum are excluded: they would be drawn once in 10^30 draws
SMALLEST_EXPONENT = -100.0
ROUND_TO_INTEGER = 12582912.0  # 1.5 * 2^23: adding it rounds a float32 to an integer
# 2^f on [-1/2, 1/2], highest power first; relative error 1.0e-7
EXP2_COEFFICIENTS = (
    0.0001534581242594868,
    0.0013399930903688073,
    0.009618489071726799,
    0.05550328642129898,
    0.24022646248340607,
    0.6931471824645996,
    1.0,
)
# adding and subtracting these splits a weight on grids of 2^-14 and 2^-29, on which
# sums of TILE weights are exact in float32
SPLIT_HIGH = 1.5 * 2.0**9
SPLIT_LOW = 1.5 * 2.0**-6
FIXED_POINT = 2.0**38

_f = np.float32


def power_of_two(value: int) -> int:
    """The smallest power of two that is not below value; 1 for all below it."""
    return 1 << max(value - 1, 0).bit_length()


def exp2_weights(d: np.ndarray, c: np.float32) -> np.ndarray:
    """Weights 2^(d c) in [0, 1] for float32 differences d <= 0; 0 below 2^-100."""
    with np.errstate(over="ignore", invalid="ignore"):
        is_kept = (d * c).astype(_f) > _f(SMALLEST_EXPONENT)
        clamped = np.where(is_kept, d, _f(0))
    shifted = fma32(clamped, c, _f(ROUND_TO_INTEGER))
    whole = shifted - _f(ROUND_TO_INTEGER)
    fraction = fma32(clamped, c, -whole)
    power = np.full_like(fraction, _f(EXP2_COEFFICIENTS[0]))
    for coefficient in EXP2_COEFFICIENTS[1:]:
        power = fma32(power, fraction, _f(coefficient))
    weights = (power.view(np.int32) + (shifted.view(np.int32) << 23)).view(_f)
    return np.where(is_kept, weights, _f(0))


def exact_sums(weights: np.ndarray) -> np.ndarray:
    """Sums of tiles of weights in [0, 1], each rounded to a multiple of 2^-29, in any order.

    The two partial sums are free of rounding; their total is rounded to float32 once.

    Args:
        weights: float32 [T, TILE].

    Returns:
        float32 [T].
    """
    high = (weights + _f(SPLIT_HIGH)) - _f(SPLIT_HIGH)
    low = ((weights - high) + _f(SPLIT_LOW)) - _f(SPLIT_LOW)
    return high.astype(np.float64).sum(-1).astype(_f) + low.astype(np.float64).sum(-1).astype(_f)


def fixed_point_sum(weights: np.ndarray) -> int:
    """Sum of float32 weights as an integer of unit 2^-38: exact order, no overflow to 2^24."""
    return int((weights.astype(np.float64) * FIXED_POINT).astype(np.int64).sum())


def as_tiles(row: np.ndarray, fill: float) -> np.ndarray:
    """Cuts a row [V] into [T, TILE], padded with `fill`."""
    tiles = np.full((-(-len(row) // TILE), TILE), fill, row.dtype)
    tiles.reshape(-1)[: len(row)] = row
    return tiles


@dataclass(frozen=True)
class RowWeights:
    """The law of one row: P(j) = weights_j * tile_scale_t / total for j in tile t.

    Attributes:
        weights: float32 [T, TILE] in [0, 1], relative to the tile's maximum.
        tile_max: float32 [T] largest logit, -inf for an empty tile.
        tile_sum: float32 [T] exact sums of `weights`.
        tile_scale: float32 [T] in [0, 1], the tile's maximum relative to the row's.
        row_max: float32, the largest logit.
        total: Integer of unit 2^-38, the sum of tile_sum * tile_scale.
    """

    weights: np.ndarray
    tile_max: np.ndarray
    tile_sum: np.ndarray
    tile_scale: np.ndarray
    row_max: np.float32
    total: int

    def tile_weights(self) -> np.ndarray:
        """float32 [T], what the race of tiles is run on."""
        return self.tile_sum * self.tile_scale

    def probabilities(self) -> np.ndarray:
        """float64 [T * TILE], the row's law; its numbers are those that tests and sums use."""
        scale = self.tile_scale.astype(np.float64) * (FIXED_POINT / np.float64(self.total))
        return (self.weights.astype(np.float64) * scale[:, None]).reshape(-1)


def row_weights(logits: np.ndarray, c: np.float32) -> RowWeights:
    """Turns a float32 row [V] with a finite maximum into weights; c = log2(e) / T."""
    tiles = as_tiles(logits, -np.inf)
    tile_max = tiles.max(1) + _f(0)
    row_max = tile_max.max()
    base = np.where(tile_max == -np.inf, _f(0), tile_max)
    with np.errstate(over="ignore"):
        weights = exp2_weights(tiles - base[:, None], c)
        tile_scale = exp2_weights(tile_max - row_max, c)
    tile_sum = exact_sums(weights)
    total = fixed_point_sum(tile_sum * tile_scale)
    return RowWeights(weights, tile_max, tile_sum, tile_scale, row_max, total)


def flat_weights(logits: np.ndarray, c: np.float32) -> np.ndarray:
    """Weights float32 [V] relative to a finite maximum of the row, for a flat race."""
    with np.errstate(over="ignore"):
        return exp2_weights(logits - logits.max(), c)


@dataclass(frozen=True)
class ScaledWeights:
    """Nonnegative float64 weights scaled to float32 by a power of two per tile, for a race."""

    weights: np.ndarray
    tile_sum: np.ndarray
    tile_scale: np.ndarray

    def tile_weights(self) -> np.ndarray:
        """float32 [T], what the race of tiles is run on."""
        return self.tile_sum * self.tile_scale


def scaled_weights(values: np.ndarray) -> ScaledWeights:
    """Scales float64 weights [V] tile by tile, so that float32 keeps their relative precision."""
    tiles = as_tiles(values, 0.0)
    tile_max = tiles.max(1)
    _, exponent = np.frexp(tile_max)
    exponent = np.where(tile_max > 0, exponent, -4096)
    with np.errstate(under="ignore"):
        scaled = np.ldexp(tiles, -exponent[:, None].clip(-1022))
    weights = np.where(scaled < 2.0**SMALLEST_EXPONENT, 0.0, scaled).astype(_f)
    distance = exponent - exponent.max()
    kept = (tile_max > 0) & (distance > SMALLEST_EXPONENT)
    tile_scale = np.where(kept, np.ldexp(1.0, distance.clip(-1022)), 0.0).astype(_f)
    return ScaledWeights(weights, exact_sums(weights), tile_scale)


def flat_scaled_weights(values: np.ndarray) -> np.ndarray:
    """Float64 weights [V], not all 0, times one power of two, as float32 for a flat race."""
    _, exponent = np.frexp(values.max())
    with np.errstate(under="ignore"):
        scaled = np.ldexp(values, -exponent)
    return np.where(scaled < 2.0**SMALLEST_EXPONENT, 0.0, scaled).astype(_f)
