"""The race over max(rho p - q, 0) without storing a row of probabilities (numba).

Tile by tile in float64, scaled by a power of two to float32: the twin of `rules.residual` followed
by `arithmetic.scaled_weights`. rho is 1 under rule `token`.
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
def fill_residual(p_law, q_law, rho, t, out):
    """Writes max(rho p - q, 0) of tile t in float64; returns how many tokens and the largest."""
    p_row, p_c, p_tiles, _ = p_law
    q_row, q_c, q_tiles, _ = q_law
    p_base, q_base = rows.tile_base(p_tiles[0][t]), rows.tile_base(q_tiles[0][t])
    p_scale, q_scale = rows.probability_scale(p_law, t), rows.probability_scale(q_law, t)
    p_tile = p_row[t * TILE : (t + 1) * TILE]
    q_tile = q_row[t * TILE : (t + 1) * TILE]
    count = len(p_tile)
    for j in range(count):
        p = np.float64(arithmetic.exp2_weight(p_tile[j] - p_base, p_c)) * p_scale
        q = np.float64(arithmetic.exp2_weight(q_tile[j] - q_base, q_c)) * q_scale
        out[j] = max(rho * p - q, 0.0)
    largest = 0.0
    for j in range(count):
        largest = max(largest, out[j])
    return count, largest


@njit
def largest_residual(p_law, q_law, rho, values):
    """The largest number of max(rho p - q, 0); 0.0 where it is empty."""
    top = 0.0
    for t in range(len(p_law[2][0])):
        top = max(top, fill_residual(p_law, q_law, rho, t, values)[1])
    return top


@njit
def scan_residual(p_law, q_law, rho, residual_tiles, exponent, values, scratch):
    """Writes the residual's tile sums and scales; returns whether it holds anything."""
    tile_sum, tile_scale = residual_tiles
    top = _NO_EXPONENT
    for t in range(len(exponent)):
        count, largest = fill_residual(p_law, q_law, rho, t, values)
        exponent[t], tile_sum[t] = _NO_EXPONENT, _f(0)
        if largest > 0.0:
            exponent[t] = arithmetic.binary_exponent(largest)
            top = max(top, exponent[t])
            weights = scratch[0, :count]
            arithmetic.scale_weights(values[:count], exponent[t], weights)
            tile_sum[t] = arithmetic.exact_sum(weights)
    for t in range(len(exponent)):
        distance = exponent[t] - top
        is_kept = exponent[t] > _NO_EXPONENT and distance > _SMALLEST
        tile_scale[t] = _f(arithmetic.power_of_two(distance)) if is_kept else _f(0)
    return top > _NO_EXPONENT


@njit
def race_residual(p_law, q_law, rho, residual_tiles, exponent, values, scratch, key, counter):
    """Draws from max(rho p - q, 0); (-1, 0.0) if it is empty.

    Scratch: residual_tiles float32 [T] twice, exponent int64 [T], values float64 [TILE],
    scratch float32 [2, max(T, TILE)].
    """
    if not scan_residual(p_law, q_law, rho, residual_tiles, exponent, values, scratch):
        return -1, 0.0
    tile_sum, tile_scale = residual_tiles
    tile, tile_margin = rows.race_tiles(tile_sum, tile_scale, scratch, key, counter)
    count, _ = fill_residual(p_law, q_law, rho, tile, values)
    weights = scratch[0, :count]
    arithmetic.scale_weights(values[:count], exponent[tile], weights)
    token, margin = rows.first(weights, scratch[1], key, counter, tile * TILE, rows.TOKEN_LEVEL)
    return tile * TILE + token, min(tile_margin, margin)


@njit
def race_residual_flat(p_law, q_law, rho, values, scratch, key, counter):
    """Draws from max(rho p - q, 0) with a number for every token; (-1, 0.0) if it is empty.

    Scratch: values float64 [TILE], scratch float32 [2, max(V, TILE)].
    """
    top = largest_residual(p_law, q_law, rho, values)
    if top == 0.0:
        return -1, 0.0
    exponent = arithmetic.binary_exponent(top)
    for t in range(len(p_law[2][0])):
        count, _ = fill_residual(p_law, q_law, rho, t, values)
        weights = scratch[0, t * TILE : t * TILE + count]
        arithmetic.scale_weights(values[:count], exponent, weights)
    weights = scratch[0, : len(p_law[0])]
    return rows.first(weights, scratch[1], key, counter, 0, rows.TOKEN_LEVEL)


@njit
def residual_mass(p_law, q_law, rho, values):
    """Twin of `rules.residual_mass`: v + 1 rounds v to 2^-52, and mantissas add as integers."""
    total = np.int64(0)
    for t in range(len(p_law[2][0])):
        count, _ = fill_residual(p_law, q_law, rho, t, values)
        for j in range(count):
            total += arithmetic.double_bits(values[j] + 1.0) - _ONE_BITS
    return np.float64(total) * _ULP_OF_ONE


@njit
def draw_replacement(p_law, q_law, rho, is_flat, work, key, counter):
    """Draws from max(rho p - q, 0), or from p where that is empty; `work` as `workspace` gives."""
    _, _, residual_tiles, exponent, values, scratch = work
    if is_flat:
        token, margin = race_residual_flat(p_law, q_law, rho, values, scratch, key, counter)
    else:
        token, margin = race_residual(
            p_law, q_law, rho, residual_tiles, exponent, values, scratch, key, counter
        )
    if token < 0:
        return rows.draw(p_law, is_flat, scratch, key, counter)
    return token, margin
