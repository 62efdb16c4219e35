"""`ops.filter_logits` on the CPU: numba twin of `filters.keep_reference`, same tokens."""

from __future__ import annotations

import numpy as np
from numba import njit

from fairdraft.ops.cpu import arithmetic, select
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
    keys = np.empty(vocab_size, np.uint32)
    amounts = np.empty(vocab_size, np.int64)
    buckets = np.empty(select.NUM_BUCKETS, np.int64)
    for b in range(len(values)):
        row, c, stays = values[b], scales[b], kept[b]
        row_max, error = rows.scan_maxima(row, tile_max)
        if c == 0 or error != 0:
            continue
        for j in range(vocab_size):
            stays[j] = row[j] > _MINUS_INF
        is_ranked = top_p[b] < 1 or 0 < top_k[b] < vocab_size
        if is_ranked:
            select.fill_keys(row, keys)
        if top_p[b] < 1 or min_p[b] > 0:
            arithmetic.fill_weights(row, row_max, c, weights)
        if 0 < top_k[b] < vocab_size:
            _keep_largest(keys, amounts, stays, top_k[b], buckets)
        if top_p[b] < 1:
            _keep_nucleus(keys, weights, amounts, stays, top_p[b], buckets)
        if min_p[b] > 0:
            for j in range(vocab_size):
                stays[j] = stays[j] and weights[j] >= min_p[b]


@njit
def _keep_largest(keys, amounts, stays, top_k, buckets):
    """Narrows `stays` to the k largest and all that equal the k-th."""
    count = np.int64(0)
    for j in range(len(keys)):
        amounts[j] = 1
        count += stays[j]
    if count <= top_k:
        return
    limit, _ = select.crossing(keys, amounts, stays, np.float64(top_k), buckets)
    for j in range(len(keys)):
        stays[j] = stays[j] and keys[j] >= limit


@njit
def _keep_nucleus(keys, weights, amounts, stays, top_p, buckets):
    """Narrows `stays` to the tokens before which less than top_p of its mass lies."""
    total = np.int64(0)
    for j in range(len(keys)):
        amounts[j] = np.int64(np.float64(weights[j]) * arithmetic.FIXED_POINT)
        if stays[j]:
            total += amounts[j]
    limit = top_p * np.float64(total)
    key, before = select.crossing(keys, amounts, stays, limit, buckets)
    for j in range(len(keys)):
        if stays[j] and keys[j] == key:
            # equal logits are taken by id
            stays[j] = np.float64(before) < limit
            before += amounts[j]
        else:
            stays[j] = stays[j] and keys[j] > key
