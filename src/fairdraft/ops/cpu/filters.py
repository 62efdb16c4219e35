"""`ops.filter_logits` on the CPU: numba twin of `filters.keep_reference`, same tokens."""

from __future__ import annotations

import numpy as np
from numba import njit

from fairdraft.ops.cpu import arithmetic
from fairdraft.ops.cpu import row as rows
from fairdraft.ops.cpu.arithmetic import TILE
from fairdraft.ops.cpu.kernel import kernel
from fairdraft.ops.filters import FilterParams

_MINUS_INF = np.float32(-np.inf)


def keep_cpu(values: np.ndarray, params: FilterParams) -> np.ndarray:
    """Which tokens stay: bool [B, V] (see `keep_reference`)."""
    kept = np.ones(values.shape, np.bool_)
    _keep(values, *params, kept)
    return kept


@kernel
def _keep(values, scales, top_k, top_p, min_p, kept):
    vocab_size = values.shape[1]
    tile_max = np.empty((vocab_size + TILE - 1) // TILE, np.float32)
    weights = np.empty(vocab_size, np.float32)
    for b in range(len(values)):
        row, c, stays = values[b], scales[b], kept[b]
        row_max, error = rows.scan_maxima(row, tile_max)
        if c == 0 or error != 0:
            continue
        arithmetic.fill_weights(row, row_max, c, weights)
        limit = _MINUS_INF
        if 0 < top_k[b] < vocab_size:
            limit = np.partition(row, vocab_size - top_k[b])[vocab_size - top_k[b]]
        for j in range(vocab_size):
            stays[j] = row[j] > _MINUS_INF and row[j] >= limit
        if top_p[b] < 1:
            _nucleus(row, weights, stays, top_p[b])
        if min_p[b] > 0:
            for j in range(vocab_size):
                stays[j] = stays[j] and weights[j] >= min_p[b]


@njit
def _nucleus(row, weights, stays, top_p):
    """Narrows `stays` to the tokens before which less than top_p of its mass lies."""
    entrants = np.flatnonzero(stays)
    total = np.int64(0)
    for j in entrants:
        total += _mass(weights[j])
    limit = top_p * np.float64(total)
    order = np.argsort(-row[entrants], kind="mergesort")
    before = np.int64(0)
    for rank in order:
        j = entrants[rank]
        stays[j] = np.float64(before) < limit
        before += _mass(weights[j])


@njit(inline="always")
def _mass(weight):
    return np.int64(np.float64(weight) * arithmetic.FIXED_POINT)
