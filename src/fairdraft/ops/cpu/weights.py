"""The race over a stored row of float64 weights (numba).

Twin of `arithmetic.scaled_weights` followed by `race.race`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fairdraft.ops.cpu import arithmetic
from fairdraft.ops.cpu import row as rows
from fairdraft.ops.cpu.arithmetic import TILE

_f = np.float32
_NO_EXPONENT = np.int64(-4096)
_SMALLEST = -100
_ONE_BITS = np.int64(np.float64(1).view(np.int64))
_ULP_OF_ONE = 2.0**-52


@njit
def subtract_law(values, law):
    """Turns r into max(r - q, 0), the twin of `rules.residual`."""
    for j in range(len(values)):
        values[j] = max(values[j] - rows.probability(law, j), 0.0)


@njit
def mass(values):
    """Twin of `rules.residual_mass`: v + 1 rounds v to 2^-52, and mantissas add as integers."""
    total = np.int64(0)
    for j in range(len(values)):
        total += arithmetic.double_bits(values[j] + 1.0) - _ONE_BITS
    return np.float64(total) * _ULP_OF_ONE


@njit
def race_weights(values, tiles, exponent, scratch, key, counter):
    """Draws from weights [V]; (-1, 0.0) if none is positive.

    Scratch: tiles float32 [T] twice, exponent int64 [T], scratch float32 [2, max(T, TILE)].
    """
    tile_sum, tile_scale = tiles
    top = _NO_EXPONENT
    for t in range(len(exponent)):
        part = values[t * TILE : (t + 1) * TILE]
        largest = part.max()
        exponent[t], tile_sum[t] = _NO_EXPONENT, _f(0)
        if largest > 0.0:
            exponent[t] = arithmetic.binary_exponent(largest)
            top = max(top, exponent[t])
            weights = scratch[0, : len(part)]
            arithmetic.scale_weights(part, exponent[t], weights)
            tile_sum[t] = arithmetic.exact_sum(weights)
    if top == _NO_EXPONENT:
        return -1, 0.0
    for t in range(len(exponent)):
        distance = exponent[t] - top
        is_kept = exponent[t] > _NO_EXPONENT and distance > _SMALLEST
        tile_scale[t] = _f(arithmetic.power_of_two(distance)) if is_kept else _f(0)
    tile, tile_margin = rows.race_tiles(tile_sum, tile_scale, scratch, key, counter)
    part = values[tile * TILE : (tile + 1) * TILE]
    weights = scratch[0, : len(part)]
    arithmetic.scale_weights(part, exponent[tile], weights)
    token, margin = rows.first(weights, scratch[1], key, counter, tile * TILE, rows.TOKEN_LEVEL)
    return tile * TILE + token, min(tile_margin, margin)
