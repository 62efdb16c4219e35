"""`ops.sample` on the CPU: numba twin of `sample_reference`, same tokens."""

from __future__ import annotations

import numpy as np

from fairdraft.noise import Address
from fairdraft.ops.cpu import row as rows
from fairdraft.ops.cpu.arithmetic import TILE
from fairdraft.ops.cpu.kernel import kernel

#: what the kernel gets when nobody asked for statistics: no row of them
_NO_STATS = (
    np.empty((0, 0), np.float32),
    np.empty((0, 0), np.float32),
    np.empty(0, np.float32),
    np.empty(0, np.int64),
)


def sample_cpu(values: np.ndarray, scales: np.ndarray, at: Address, method: str, stats) -> tuple:
    """Draws one token a row: token_ids, margin, error (see `sample_reference`)."""
    count = len(values)
    out = np.empty(count, np.int64), np.empty(count), np.empty(count, np.int64)
    is_race = method == "race"
    _sample(values, scales, at.key, at.counter, is_race, stats or _NO_STATS, out)
    return out


@kernel
def _sample(values, scales, key, counter, is_race, stats, out):
    token_ids, margin, error = out
    token_ids[:], margin[:], error[:] = -1, 0.0, 0
    has_stats = len(stats[2]) == len(values)
    vocab_size = values.shape[1]
    num_tiles = (vocab_size + TILE - 1) // TILE
    memory = np.empty((3, num_tiles), np.float32)
    tiles = (memory[0], memory[1], memory[2])
    scratch = np.empty((2, max(num_tiles if is_race else vocab_size, TILE)), np.float32)
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
