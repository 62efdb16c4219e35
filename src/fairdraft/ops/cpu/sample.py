"""`ops.sample` on the CPU: numba twin of `sample_reference`, same tokens."""

from __future__ import annotations

import numpy as np
from numba import njit

from fairdraft.noise import Address
from fairdraft.ops.cpu import row as rows
from fairdraft.ops.cpu.arithmetic import TILE


def sample_cpu(values: np.ndarray, scales: np.ndarray, at: Address, method: str, stats) -> tuple:
    """Draws one token a row: token_ids, margin, error (see `sample_reference`)."""
    count, vocab_size = values.shape
    token_ids, margin = np.full(count, -1, np.int64), np.zeros(count)
    error = np.zeros(count, np.int64)
    width = max(-(-vocab_size // TILE), TILE) if method == "race" else max(vocab_size, TILE)
    scratch = np.empty((2, width), np.float32)
    if stats is None:
        stats = (scratch[:0], scratch[:0], scratch[0, :0], np.empty(0, np.int64))
    _sample(
        values,
        scales,
        at.key,
        at.counter,
        method == "race",
        stats,
        scratch,
        (token_ids, margin, error),
    )
    return token_ids, margin, error


@njit(cache=True, nogil=True, error_model="numpy")
def _sample(values, scales, key, counter, is_race, stats, scratch, out):
    token_ids, margin, error = out
    has_stats = len(stats[0]) == len(values)
    num_tiles = (values.shape[1] + TILE - 1) // TILE
    memory = np.empty((3, num_tiles), np.float32)
    tiles = (memory[0], memory[1], memory[2])
    for b in range(len(values)):
        row, c = values[b], scales[b]
        if c > 0 and is_race:
            law, error[b] = rows.scan(row, c, tiles)
            if error[b] == 0:
                token_ids[b], margin[b] = rows.race(law, scratch, key[b], counter[b])
            if error[b] == 0 and has_stats:
                stats[0][b], stats[1][b] = tiles[0], tiles[1]
                stats[2][b], stats[3][b] = tiles[0].max(), law[3]
            continue
        row_max, error[b] = rows.scan_maxima(row, tiles[0])
        if error[b] == 0 and c == 0:
            token_ids[b], margin[b] = rows.greedy(row)
        elif error[b] == 0:
            token_ids[b], margin[b] = rows.race_flat(
                row, c, row_max, scratch[0, : len(row)], scratch[1], key[b], counter[b]
            )
