"""The law of drafts and replacements that share both levels of a two-level race.

Axes: N tokens, C columns, K tiles. p is the target's law, q the draft's, r the residual
max(p - q, 0). Derivation: docs/derivation.md, "Laws of the coupled samplers".
"""

from __future__ import annotations

import numpy as np

from fairdraft.stats.coupled_flat import (
    TINY,
    entry_times,
    from_here,
    quotient,
    sort_rows,
    survival,
    wins_by_rate,
    with_replacements,
)

__all__ = ["TILE_SIZE", "tile_numbers", "tiled_race_law"]

#: consecutive ids that race inside one tile
TILE_SIZE = 512


def tile_numbers(ids: np.ndarray) -> np.ndarray:
    """Numbers the tiles of each row 0, 1, .. in the order of its columns.

    A rest cell (id < 0) lies in many tiles in truth. It joins the tile of its row's other ids if
    they share one, and counts as one more tile if they do not.

    Args:
        ids: int64 [N, C], ascending along a row, the rest cell last.

    Returns:
        int64 [N, C], nondecreasing along a row.
    """
    tile = ids // TILE_SIZE
    is_new = np.zeros(ids.shape, np.bool_)
    np.not_equal(tile[:, 1:], tile[:, :-1], out=is_new[:, 1:])
    is_one = is_new.sum(axis=1) == 1
    if is_one.any():
        is_new[is_one[:, None] & (ids < 0)] = False
    return is_new.cumsum(axis=1)


def tiled_race_law(p: np.ndarray, q: np.ndarray, tile: np.ndarray) -> np.ndarray:
    """Law of the token if the residual is raced with both levels' exponentials of the draft.

    Args:
        p: float64 [N, C], rows sum to 1.
        q: float64 [N, C], rows sum to 1.
        tile: int64 [N, C], as from `tile_numbers`.

    Returns:
        float64 [N, C], rows sum to 1; p where nothing is rejected.
    """
    num_tiles = int(tile.max(initial=0)) + 1
    place = tile + np.arange(len(p))[:, None] * num_tiles

    def tile_sum(x: np.ndarray) -> np.ndarray:
        sums = np.bincount(place.ravel(), x.ravel(), minlength=len(p) * num_tiles)
        return sums.reshape(len(p), num_tiles)

    gain = p - q
    rest = np.maximum(gain, 0.0)
    weight, start = tile_sum(rest), tile_sum(q)
    other, same = _tile_chances(weight, start, tile_sum(rest - gain))
    rate = rest * _inverse(weight).take(place)
    inside = _inside(rate, q * _inverse(start).take(place), tile)
    replacement = rate * other.take(place)
    replacement += inside * (same * _inverse(tile_sum(inside))).take(place)
    return with_replacements(p, q, replacement)


def _inverse(x: np.ndarray) -> np.ndarray:
    """1 / x, and 0 where x is 0 or nearly so."""
    return 1.0 / np.where(x > TINY, x, np.inf)


def _tile_chances(
    weight: np.ndarray, start: np.ndarray, lost: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Chance that a replacement comes from each tile, if another or if this tile drew the draft.

    Args:
        weight: float64 [N, K], residual weights.
        start: float64 [N, K], the draft's weights, rows sum to 1.
        lost: float64 [N, K], chance of a rejected draft from each tile.

    Returns:
        float64 [N, K] twice; their sums add up to that of `lost`.
    """
    entry = entry_times(weight, start)
    # stable, so that a row's bits do not depend on how many tiles other rows have
    order = sort_rows(entry, kind="stable")
    entry, rate, lose = entry.take(order), weight.take(order), lost.take(order)
    survive = survival(entry, rate.cumsum(axis=1), start.take(order).cumsum(axis=1))
    wins = wins_by_rate(entry, survive)
    # between entries k and k + 1 the race is open if the draft's tile enters later
    wins *= from_here(lose) - lose
    other, same = np.empty_like(entry), np.empty_like(entry)
    other.ravel()[order] = rate * from_here(wins)
    same.ravel()[order] = lose * survive
    return other, same


def _inside(rate: np.ndarray, start: np.ndarray, tile: np.ndarray) -> np.ndarray:
    """Who wins inside each tile if it drew the draft: the flat race, tile by tile.

    Args:
        rate: float64 [N, C], the residual, normalized in each tile.
        start: float64 [N, C], the draft's law, normalized in each tile.
        tile: int64 [N, C], nondecreasing along a row.

    Returns:
        float64 [N, C], normalized in each tile that can reject a draft, up to rounding.
    """
    # one sort a row, by tile and then by entry b, as b / (1 + b): who never enters comes last, and
    # entries too near for 53 bits to part can change places
    order = sort_rows(2.0 * tile + np.where(rate > 0, quotient(start, start + rate), 1.0))
    rate, start = rate.take(order), start.take(order)
    entry = entry_times(rate, start)
    width = tile.shape[1]
    is_first = np.ones(tile.shape, np.bool_)
    np.not_equal(tile[:, 1:], tile[:, :-1], out=is_first[:, 1:])
    begins = np.flatnonzero(is_first)
    sizes = np.diff(begins, append=is_first.size)

    def sum_in_tile(x: np.ndarray) -> np.ndarray:
        total = x.cumsum(axis=1)
        total -= np.repeat((total - x).take(begins), sizes).reshape(-1, width)
        return total

    survive = survival(entry, np.maximum(sum_in_tile(rate), rate), sum_in_tile(start))
    wins = wins_by_rate(entry, survive)
    # nothing follows the last of a tile, who never enters: his draft was rejected
    wins.ravel()[begins[1:] - 1] = 0.0
    before = sum_in_tile(wins)
    after = np.repeat(before.take(begins + sizes - 1), sizes).reshape(-1, width) - before + wins
    won = np.empty_like(rate)
    won.ravel()[order] = rate * np.maximum(after, 0.0)
    return won
