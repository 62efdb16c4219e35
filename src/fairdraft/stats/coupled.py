"""What a sampler emits if draft and replacement share their noise: one law for each sampler.

Axes: N tokens, C columns.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fairdraft.stats.coupled_flat import flat_race_law
from fairdraft.stats.coupled_inverse import inverse_cdf_law, inverse_cdf_test_law
from fairdraft.stats.coupled_tiles import tile_numbers, tiled_race_law

__all__ = ["shared_noise_law", "shared_test_law"]


def shared_noise_law(
    p: np.ndarray, q: np.ndarray, ids: np.ndarray | None, sampler: str
) -> np.ndarray:
    """Law of the token if a rejected draft is replaced with the noise that drew it.

    Args:
        p: float64 [N, C], the target's law, rows sum to 1.
        q: float64 [N, C], the draft's, rows sum to 1.
        ids: int64 [N, C], ids of the columns, negative for a rest cell; None: column j is id j.
        sampler: "gumbel", "race" (two levels, tiles of 512 ids) or "inverse_cdf"; any other word
            gets the flat race.

    Returns:
        float64 [N, C]. Exact without a rest cell, close with one.
    """
    if sampler == "inverse_cdf":
        return _in_id_order(lambda p, q, _: inverse_cdf_law(p, q), p, q, ids)
    if sampler == "race":
        return _in_id_order(_race_law, p, q, ids)
    return flat_race_law(p, q)


def shared_test_law(p: np.ndarray, q: np.ndarray, ids: np.ndarray | None) -> np.ndarray:
    """Law of the token if a draft by inverse CDF is tested with the number that drew it.

    Arguments and result are those of `shared_noise_law`.
    """
    return _in_id_order(lambda p, q, _: inverse_cdf_test_law(p, q), p, q, ids)


def _race_law(p: np.ndarray, q: np.ndarray, ids: np.ndarray) -> np.ndarray:
    tile = tile_numbers(ids)
    is_flat = tile[:, -1] == 0
    if is_flat.all():
        return flat_race_law(p, q)
    if not is_flat.any():
        return tiled_race_law(p, q, tile)
    law = np.empty_like(p)
    law[is_flat] = flat_race_law(p[is_flat], q[is_flat])
    law[~is_flat] = tiled_race_law(p[~is_flat], q[~is_flat], tile[~is_flat])
    return law


def _in_id_order(
    law: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    p: np.ndarray,
    q: np.ndarray,
    ids: np.ndarray | None,
) -> np.ndarray:
    """Applies a law that needs columns in ascending order of ids, the rest cell last."""
    if ids is None:
        return law(p, q, np.broadcast_to(np.arange(p.shape[1]), p.shape))
    key = np.where(ids < 0, np.iinfo(np.int64).max, ids)
    if (key[:, 1:] >= key[:, :-1]).all():
        return law(p, q, ids)
    order = np.argsort(key, axis=1, kind="stable")
    sorted_p, sorted_q, sorted_ids = (np.take_along_axis(x, order, axis=1) for x in (p, q, ids))
    result = np.empty_like(p)
    np.put_along_axis(result, order, law(sorted_p, sorted_q, sorted_ids), axis=1)
    return result
