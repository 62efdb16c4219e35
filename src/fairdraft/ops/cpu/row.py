"""One row's statistics and the race over it: numba twins of `ops/arithmetic.py`, `ops/race.py`."""

from __future__ import annotations

import numpy as np
from numba import njit

from fairdraft.noise.address import LEVEL_SHIFT
from fairdraft.noise.jit import bits_float, fill_exponentials, float_bits
from fairdraft.ops.cpu import arithmetic
from fairdraft.ops.cpu.arithmetic import KEY_INF, KEY_MINUS_INF, TILE
from fairdraft.ops.rows import RowError

_f = np.float32
TOKEN_LEVEL, TILE_LEVEL = np.uint32(0), np.uint32(1 << LEVEL_SHIFT)
_NAN, _INFINITE, _EMPTY = int(RowError.NAN), int(RowError.INFINITE), int(RowError.EMPTY)
_ZERO = _f(0)
_MINUS_INF = _f(-np.inf)


@njit
def scan_maxima(row, tile_max):
    """Writes each tile's maximum; returns the row's maximum and a RowError."""
    top, bottom = KEY_MINUS_INF, KEY_INF
    for t in range(len(tile_max)):
        high, low = arithmetic.extreme_keys(row[t * TILE : (t + 1) * TILE])
        tile_max[t] = arithmetic.key_value(high)
        top, bottom = max(top, high), min(bottom, low)
    if top > KEY_INF or bottom < KEY_MINUS_INF:
        return _MINUS_INF, _NAN
    if top == KEY_INF:
        return _MINUS_INF, _INFINITE
    if top == KEY_MINUS_INF:
        return _MINUS_INF, _EMPTY
    return arithmetic.key_value(top), 0


@njit
def tile_base(tile_max):
    """What a tile's logits are taken relative to: its maximum, or 0 for an empty tile."""
    return tile_max if tile_max > _MINUS_INF else _ZERO


@njit
def scan_sums(row, c, row_max, tiles):
    """Writes tile sums and scales; returns the row's total in fixed point."""
    tile_max, tile_sum, tile_scale = tiles
    total = np.int64(0)
    for t in range(len(tile_max)):
        base = tile_base(tile_max[t])
        tile_sum[t] = arithmetic.weight_sum(row[t * TILE : (t + 1) * TILE], base, c)
        tile_scale[t] = arithmetic.exp2_weight(tile_max[t] - row_max, c)
        total += np.int64(np.float64(tile_sum[t] * tile_scale[t]) * arithmetic.FIXED_POINT)
    return total


@njit
def scan(row, c, tiles):
    """One pass over a row: its law (row, c, tiles, total) and a RowError.

    tiles = (tile_max, tile_sum, tile_scale), float32 [T] each, are written.
    """
    row_max, error = scan_maxima(row, tiles[0])
    total = scan_sums(row, c, row_max, tiles) if error == 0 and c > 0 else np.int64(0)
    return (row, c, tiles, total), error


@njit(inline="always")
def probability_scale(law, t):
    """What the weights of tile t are multiplied by to give probabilities."""
    _, _, tiles, total = law
    return np.float64(tiles[2][t]) * (arithmetic.FIXED_POINT / np.float64(total))


@njit
def probability(law, token):
    """P(token) in float64, from the same numbers that the row's race uses; 0 outside."""
    row, c, tiles, _ = law
    if token < 0 or token >= len(row):
        return 0.0
    t = token // TILE
    weight = arithmetic.exp2_weight(row[token] - tile_base(tiles[0][t]), c)
    return np.float64(weight) * probability_scale(law, t)


@njit(error_model="numpy")
def first(weights, scores, key, counter, first_lane, level_bit):
    """Runs one race; returns the winner's index and the margin. `scores` is scratch."""
    count = len(weights)
    fill_exponentials(key, counter, first_lane, level_bit, scores[:count])
    # a weight of 0 scores infinity, since no exponential is 0; positive floats order as integers
    best = KEY_INF
    for j in range(count):
        scores[j] = scores[j] / weights[j]
        best = min(best, float_bits(scores[j]))
    winner = 0
    while float_bits(scores[winner]) != best:
        winner += 1
    scores[winner] = np.inf
    second = KEY_INF
    for j in range(count):
        second = min(second, float_bits(scores[j]))
    return winner, np.float64(bits_float(second)) / np.float64(bits_float(best)) - 1.0


@njit
def race_tiles(tile_sum, tile_scale, scratch, key, counter):
    """The race of tiles; scratch is float32 [2, >= T]."""
    count = len(tile_sum)
    weights = scratch[0, :count]
    for t in range(count):
        weights[t] = tile_sum[t] * tile_scale[t]
    return first(weights, scratch[1], key, counter, 0, TILE_LEVEL)


@njit
def race(law, scratch, key, counter):
    """Draws a token of a law; scratch is float32 [2, max(T, TILE)]. Returns id and margin."""
    row, c, tiles, _ = law
    tile, tile_margin = race_tiles(tiles[1], tiles[2], scratch, key, counter)
    logits = row[tile * TILE : (tile + 1) * TILE]
    weights = scratch[0, : len(logits)]
    arithmetic.fill_weights(logits, tile_base(tiles[0][tile]), c, weights)
    token, margin = first(weights, scratch[1], key, counter, tile * TILE, TOKEN_LEVEL)
    return tile * TILE + token, min(tile_margin, margin)


@njit
def race_flat(row, c, row_max, weights, scores, key, counter):
    """Draws a token with a number for each; both scratch vectors are float32 [V]."""
    arithmetic.fill_weights(row, row_max, c, weights)
    return first(weights, scores, key, counter, 0, TOKEN_LEVEL)


@njit
def draw(law, is_flat, scratch, key, counter):
    """Draws a token of a law by either method; scratch is float32 [2, max(V, TILE)] if flat."""
    if not is_flat:
        return race(law, scratch, key, counter)
    row, c, tiles, _ = law
    return race_flat(row, c, tiles[0].max(), scratch[0, : len(row)], scratch[1], key, counter)


@njit
def greedy(row):
    """The largest logit's id, ties to the lowest, and its lead over the second."""
    best, second, winner = row[0], _MINUS_INF, 0
    for j in range(1, len(row)):
        if row[j] > best:
            second, best, winner = best, row[j], j
        elif row[j] > second:
            second = row[j]
    gap = np.inf if len(row) == 1 else np.float64(best) - np.float64(second)
    return winner, gap
