"""The two-level race and the greedy choice inside Triton kernels; twin of `ops/race.py`.

Axes: T tiles padded to MAX_TILES, C ids of the winning tile.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from fairdraft.noise.device import TILE_LEVEL, TOKEN_LEVEL, exponentials
from fairdraft.ops.rows import RowError
from fairdraft.ops.triton.arithmetic import TILE, exp2_weight
from fairdraft.ops.triton.reading import load_masked_tiles

_NAN_ERROR = tl.constexpr(int(RowError.NAN))
_INFINITE_ERROR = tl.constexpr(int(RowError.INFINITE))
_EMPTY_ERROR = tl.constexpr(int(RowError.EMPTY))
_PARAMETER_ERROR = tl.constexpr(int(RowError.PARAMETER))
_ADDRESS_ERROR = tl.constexpr(int(RowError.ADDRESS))
_INF = tl.constexpr(float("inf"))


@triton.jit
def row_error(tile_max, tile_sum):
    """Twin of `rows.row_error`, from a row's statistics; also returns the row's maximum."""
    row_max = tl.max(tile_max, 0)
    is_nan = tl.max((tile_sum != tile_sum).to(tl.int32), 0) > 0
    error = tl.where(row_max == _INF, _INFINITE_ERROR, 0)
    error = tl.where(row_max == -_INF, _EMPTY_ERROR, error)
    return tl.where(is_nan, _NAN_ERROR, error), row_max


@triton.jit
def call_error(error, is_addressed, has_parameters):
    """A row's error, or that of what its request was called with."""
    error = tl.where(is_addressed, error, _ADDRESS_ERROR)
    return tl.where(has_parameters, error, _PARAMETER_ERROR)


@triton.jit
def scores(times, weights):
    """Times over weights, by IEEE division; +inf where there is no weight."""
    safe = tl.where(weights > 0.0, weights, 1.0)
    return tl.where(weights > 0.0, tl.div_rn(times, safe), _INF)


@triton.jit
def _nearer(best, second, winner, other_best, other_second, other):
    """The first two of two fields together; ties go to the lower lane."""
    is_ours = (best < other_best) | ((best == other_best) & (winner < other))
    loser = tl.where(is_ours, other_best, best)
    return (
        tl.where(is_ours, best, other_best),
        tl.minimum(loser, tl.minimum(second, other_second)),
        tl.where(is_ours, winner, other),
    )


@triton.jit
def first(times, weights):
    """The entrant with the smallest score, and its margin; ties go to the lowest."""
    entrants = scores(times, weights)
    lane = tl.arange(0, times.shape[0])
    none = tl.full([times.shape[0]], _INF, tl.float32)
    # all at once: a reduction across warps is a trip of its own
    best, second, winner = tl.reduce((entrants, none, lane), 0, _nearer)
    return winner, second.to(tl.float64) / best.to(tl.float64) - 1.0


@triton.jit
def race_tokens(weights, tile, key, counter):
    """The race of one tile's tokens: the winner's id and its margin."""
    times = exponentials(key, counter, tile * TILE, TOKEN_LEVEL, TILE)
    winner, margin = first(times, weights)
    return tile * TILE + winner, margin


@triton.jit
def race_in_tile(row_ptr, vocab_size, masked_id, c, tile, key, counter):
    """Draws a token of one tile of a row: id and margin."""
    x = load_masked_tiles(row_ptr, vocab_size, tile, masked_id, 1)
    return race_loaded(x, c, tile, key, counter)


@triton.jit
def race_loaded(x, c, tile, key, counter):
    """Draws a token of one tile [TILE] of a row: id and margin."""
    # the tile's own maximum again: cheaper than finding it among the statistics
    return race_tokens(exp2_weight(x - tl.max(x, 0), c), tile, key, counter)


@triton.jit
def race(row_ptr, vocab_size, masked_id, c, tile_weights, key, counter, MAX_TILES: tl.constexpr):
    """Draws a token of a row from the weights of its tiles: id and margin."""
    times = exponentials(key, counter, 0, TILE_LEVEL, MAX_TILES)
    tile, tile_margin = first(times, tile_weights)
    token, margin = race_in_tile(row_ptr, vocab_size, masked_id, c, tile, key, counter)
    return token, tl.minimum(tile_margin, margin)


@triton.jit
def greedy(row_ptr, vocab_size, masked_id, tile_max):
    """The largest logit's id, ties to the lowest, and its lead over the second."""
    tile = tl.argmax(tile_max, 0)
    x = load_masked_tiles(row_ptr, vocab_size, tile, masked_id, 1)
    return greedy_loaded(x, tile, tile_max)


@triton.jit
def greedy_loaded(x, tile, tile_max):
    """The same from the tile [TILE] that holds the largest logit."""
    lane = tl.arange(0, tile_max.shape[0])
    other = tl.max(tl.where(lane == tile, -_INF, tile_max), 0)
    at = tl.arange(0, TILE)
    winner = tl.argmax(x, 0)
    second = tl.maximum(other, tl.max(tl.where(at == winner, -_INF, x), 0))
    best = tl.max(x, 0).to(tl.float64)
    return tile * TILE + winner, best - second.to(tl.float64)
