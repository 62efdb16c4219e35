"""The law of drafts and replacements that share both levels of a two-level race.

Axes: N tokens, C columns, K tiles. p is the target's law, q the draft's, r the residual
max(p - q, 0). Derivation: docs/derivation.md, "Laws of the coupled samplers".
"""

from __future__ import annotations

import numpy as np

from fairdraft.stats.coupled_flat import entry_times, rejection, survival, with_rejections

__all__ = ["TILE_SIZE", "tile_numbers", "tiled_race_law"]

#: consecutive ids that race inside one tile
TILE_SIZE = 512


def tile_numbers(ids: np.ndarray) -> np.ndarray:
    """Numbers the tiles of each row 0, 1, .. in the order of its columns.

    A rest cell (id < 0) has no tile of its own in truth. It joins the tile of its row's other
    ids if they share one, and counts as one more tile if they do not.

    Args:
        ids: int64 [N, C], ascending along a row, the rest cell last.

    Returns:
        int64 [N, C], nondecreasing along a row.
    """
    tile = ids // TILE_SIZE
    is_new = np.zeros(ids.shape, np.int64)
    is_new[:, 1:] = tile[:, 1:] != tile[:, :-1]
    is_alone = is_new.sum(axis=1) == 1
    is_new[is_alone[:, None] & (ids < 0)] = 0
    return np.cumsum(is_new, axis=1)


def tiled_race_law(p: np.ndarray, q: np.ndarray, tile: np.ndarray) -> np.ndarray:
    """Law of the token if the residual is raced with both levels' exponentials of the draft.

    Args:
        p: float64 [N, C], rows sum to 1.
        q: float64 [N, C], rows sum to 1.
        tile: int64 [N, C], as from `tile_numbers`.

    Returns:
        float64 [N, C]; p where nothing is rejected.
    """
    _, rest = rejection(p, q)
    num_tiles = int(tile.max(initial=0)) + 1
    flat = tile + np.arange(len(p))[:, None] * num_tiles

    def tile_sum(x: np.ndarray) -> np.ndarray:
        sums = np.bincount(flat.ravel(), x.ravel(), minlength=len(p) * num_tiles)
        return sums.reshape(len(p), num_tiles)

    weight, start = tile_sum(rest), tile_sum(q)
    other, same = _tile_chances(weight, start, tile_sum(np.maximum(q - p, 0.0)))
    rate = rest * _inverse(weight).ravel()[flat]
    inside = _inside(rate, q * _inverse(start).ravel()[flat], tile)
    total = tile_sum(inside)
    inside = np.where((total > 0).ravel()[flat], inside * _inverse(total).ravel()[flat], rate)
    replacement = other.ravel()[flat] * rate + same.ravel()[flat] * inside
    return with_rejections(p, q, replacement)


def _inverse(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, 1.0 / np.where(x > 0, x, 1.0), 0.0)


def _tile_chances(
    weight: np.ndarray, start: np.ndarray, lost: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Chance that a replacement comes from each tile, if another or if this tile drew the draft.

    Args:
        weight: float64 [N, K], residual weights, rows sum to 1 or 0.
        start: float64 [N, K], the draft's weights.
        lost: float64 [N, K], chance of a rejected draft from each tile.

    Returns:
        float64 [N, K] twice; their sums add up to that of `lost`.
    """
    entry = entry_times(weight, start)
    order = np.argsort(entry, axis=1)
    entry, rate, begin, lose = (
        np.take_along_axis(x, order, axis=1) for x in (entry, weight, start, lost)
    )
    survive = survival(entry, np.cumsum(rate, axis=1), np.cumsum(begin, axis=1))
    reached = np.zeros_like(entry)
    reached[:, 1:] = np.cumsum(np.diff(entry, axis=1) * survive[:, :-1] * survive[:, 1:], axis=1)
    ended = _later(lose * reached) - reached * _later(lose)
    other, same = np.empty_like(entry), np.empty_like(entry)
    np.put_along_axis(other, order, rate * np.maximum(ended, 0.0), axis=1)
    np.put_along_axis(same, order, lose * survive, axis=1)
    return other, same


def _later(x: np.ndarray) -> np.ndarray:
    """Sum of what follows each column."""
    return np.cumsum(x[:, ::-1], axis=1)[:, ::-1] - x


def _inside(rate: np.ndarray, start: np.ndarray, tile: np.ndarray) -> np.ndarray:
    """Who wins inside each tile if it drew the draft: the flat race, tile by tile.

    Args:
        rate: float64 [N, C], the residual, normalized in each tile.
        start: float64 [N, C], the draft's law, normalized in each tile.
        tile: int64 [N, C].

    Returns:
        float64 [N, C], normalized in each tile that can reject a draft, up to rounding.
    """
    entry = entry_times(rate, start)
    # one sort a row keeps each tile's columns where they are
    both = rate + start
    share = np.divide(start, both, out=np.ones_like(start), where=rate > 0)
    order = np.argsort(2.0 * tile + share, axis=1)
    entry, rate, start = (np.take_along_axis(x, order, axis=1) for x in (entry, rate, start))
    column = np.arange(tile.shape[1])
    starts_here = np.ones(tile.shape, np.bool_)
    starts_here[:, 1:] = tile[:, 1:] != tile[:, :-1]
    first = np.maximum.accumulate(np.where(starts_here, column, 0), axis=1)

    def sum_in_tile(x: np.ndarray) -> np.ndarray:
        total = np.cumsum(x, axis=1)
        return total - np.take_along_axis(total - x, first, axis=1)

    survive = survival(entry, np.maximum(sum_in_tile(rate), rate), sum_in_tile(start))
    wins = np.zeros_like(entry)
    wins[:, 1:] = np.diff(entry, axis=1) * survive[:, :-1] * survive[:, 1:]
    wins[starts_here] = 0.0
    before = sum_in_tile(wins)
    last = np.roll(starts_here, -1, axis=1)
    ends = np.minimum.accumulate(np.where(last, column, tile.shape[1])[:, ::-1], axis=1)[:, ::-1]
    after = np.take_along_axis(before, ends, axis=1) - before
    won = np.empty_like(entry)
    np.put_along_axis(won, order, rate * np.maximum(after, 0.0), axis=1)
    return won
