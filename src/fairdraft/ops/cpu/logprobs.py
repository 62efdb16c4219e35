"""`ops.logprobs` on the CPU: numba twin of `measure_reference`, in tiles.

With statistics a row is read only in tiles that hold a logit above the token's.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from fairdraft.ops.arithmetic import GREEDY_TEMPERATURE
from fairdraft.ops.cpu import row as rows
from fairdraft.ops.cpu.arithmetic import TILE
from fairdraft.ops.cpu.kernel import kernel
from fairdraft.ops.logprobs import Known, Measured, empty_measured

_NO_TILES = np.empty((0, 0), np.float32)


def measure_cpu(
    values: np.ndarray, ids: np.ndarray, temperatures: np.ndarray, known: Known | None
) -> Measured:
    """See `logprobs.measure_reference`; sums are taken in another order."""
    count = len(values)
    found = empty_measured(count)
    log_total = np.full(count, np.nan) if known is None else known.log_total
    tile_max = _NO_TILES if known is None else np.ascontiguousarray(known.tile_max)
    _measure(values, ids, temperatures, log_total, tile_max, tuple(found))
    return found


@kernel
def _measure(values, ids, temperatures, known_total, known_max, out):
    logprobs, ranks, row_max, log_total, error = out
    num_tiles = (values.shape[1] + TILE - 1) // TILE
    own_max = np.empty(num_tiles, np.float32)
    for b in range(len(values)):
        row, t, token = values[b], temperatures[b], ids[b]
        if math.isnan(known_total[b]):
            tile_max = own_max
            _, error[b] = rows.scan_maxima(row, tile_max)
            if error[b] != 0:
                continue
        else:
            tile_max = known_max[b]
        top = np.float64(tile_max.max())
        row_max[b], log_total[b] = top, known_total[b]
        if math.isnan(log_total[b]) and t >= GREEDY_TEMPERATURE:
            log_total[b] = _log_total(row, tile_max, top, t)
        if token < 0:
            continue
        x = row[token]
        ranks[b] = 1 + _num_above(row, tile_max, x)
        if t >= GREEDY_TEMPERATURE:
            logprobs[b] = (np.float64(x) - top) / t - log_total[b]
        else:
            logprobs[b] = 0.0 if token == rows.greedy(row)[0] else -np.inf


@njit
def _log_total(row, tile_max, top, t):
    """log of the sum of exp((x - top) / t), tile by tile."""
    total = 0.0
    for i in range(len(tile_max)):
        part = 0.0
        for x in row[i * TILE : (i + 1) * TILE]:
            part += math.exp((np.float64(x) - top) / t)
        total += part
    return math.log(total)


@njit
def _num_above(row, tile_max, x):
    """How many logits are larger than x."""
    count = 0
    for i in range(len(tile_max)):
        if tile_max[i] > x:
            for y in row[i * TILE : (i + 1) * TILE]:
                count += y > x
    return count
