"""`ops.sample` on the CPU: numba twin of `sample_reference`, same tokens."""

from __future__ import annotations

import numpy as np
from numba import njit

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
    has_stats = len(stats[2]) == len(values)
    tiles, scratch = _scratch(values.shape[1], is_race)
    for b in range(len(values)):
        total, token_ids[b], margin[b], error[b] = _draw(
            values[b], scales[b], key[b], counter[b], is_race, tiles, scratch
        )
        if total > 0 and has_stats:
            stats[0][b], stats[1][b] = tiles[0], tiles[1]
            stats[2][b], stats[3][b] = tiles[0].max(), total


@kernel
def draw_step(values, scales, key, counter, first, is_race):
    """Token and error of each row [B], as `sample_cpu` draws them, from a round's addresses.

    Args:
        values: float32 [B, V].
        scales: float32 [B].
        key, counter: Of all draws of the round; row b's is the one at `first` + b.
        first: Of the step.
        is_race: Whether by two levels.
    """
    token_ids, error = np.empty(len(values), np.int64), np.empty(len(values), np.int64)
    tiles, scratch = _scratch(values.shape[1], is_race)
    for b in range(len(values)):
        _, token_ids[b], _, error[b] = _draw(
            values[b], scales[b], key[first + b], counter[first + b], is_race, tiles, scratch
        )
    return token_ids, error


@njit
def _scratch(vocab_size, is_race):
    num_tiles = (vocab_size + TILE - 1) // TILE
    memory = np.empty((3, num_tiles), np.float32)
    longest = max(num_tiles if is_race else vocab_size, TILE)
    return (memory[0], memory[1], memory[2]), np.empty((2, longest), np.float32)


@njit
def _draw(row, c, key, counter, is_race, tiles, scratch):
    """One row's total if its tiles hold its law, else 0; then token, margin and error."""
    if c > 0 and is_race:
        law, error = rows.scan(row, c, tiles)
        if error != 0:
            return np.int64(0), -1, 0.0, error
        token, margin = rows.race(law, scratch, key, counter)
        return law[3], token, margin, error
    row_max, error = rows.scan_maxima(row, tiles[0])
    if error != 0:
        return np.int64(0), -1, 0.0, error
    if c == 0:
        token, margin = rows.greedy(row)
    else:
        token, margin = rows.race_flat(
            row, c, row_max, scratch[0, : len(row)], scratch[1], key, counter
        )
    return np.int64(0), token, margin, error
