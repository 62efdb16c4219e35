"""Filters of a row's support: top-k, top-p and min-p, in the Hugging Face order and definitions.

Dropped tokens become -inf; kept logits are not scaled, so the filtered row is sampled at the same
temperature that the filters were given. Axes: B rows, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairdraft.ops import rows
from fairdraft.ops.arithmetic import FIXED_POINT, exp2_weights
from fairdraft.ops.dispatch import Impl, device_of, resolve_impl
from fairdraft.ops.rows import RowError

HostImpl = Literal["reference", "cpu"]


class Filters(NamedTuple):
    """Parameters as they were given: None, a number, or one value a row."""

    top_k: Any = None
    top_p: Any = None
    min_p: Any = None

    @property
    def is_off(self) -> bool:
        """Whether plain numbers, or nothing, say that no row is filtered."""
        offs = ((None, 0, -1), (None, 1), (None, 0))
        pairs = zip(self, offs, strict=True)
        return all((v is None or isinstance(v, int | float)) and v in off for v, off in pairs)


class FilterParams(NamedTuple):
    """Checked parameters of B rows; scale 0 marks greedy rows, which are left alone."""

    scale: np.ndarray  # float32 [B]
    top_k: np.ndarray  # int64 [B], 0 is off
    top_p: np.ndarray  # float64 [B], 1 is off
    min_p: np.ndarray  # float64 [B], 0 is off


def filter_logits(
    logits: Tensor,
    *,
    temperature: Any = 1.0,
    top_k: Any = None,
    top_p: Any = None,
    min_p: Any = None,
    impl: Impl = "auto",
) -> Tensor:
    """Masks what top-k, top-p and min-p drop, in this order, at each row's temperature.

    Args:
        logits: Floating point [B, V], not divided by temperature.
        temperature: Scalar or [B]; top-p and min-p see softmax(logits / temperature). Greedy rows
            (below 1e-5) come back as they are.
        top_k: Keep the k largest logits and all that equal the k-th; 0, -1 or None is off.
        top_p: Keep the fewest tokens whose mass reaches top_p, by (probability descending, id
            ascending), at least one; 1 or None is off.
        min_p: Keep tokens of at least min_p times the largest probability; 0 or None is off.
        impl: "auto", "reference", "cpu" or "triton"; refused if it cannot run. Tensors on a GPU
            are filtered there; their parameters come from the host.

    Returns:
        float32 [B, V], dropped tokens at -inf. Rows with NaN, +inf or no token come back as they
        are: the sampler reports them.

    Raises:
        ValueError: If a shape, dtype or parameter is out of range.

    Noise:
        None.
    """
    backend = resolve_impl(impl, device_of(logits))
    if backend == "triton":
        from fairdraft.ops.triton.filters import filter_on_device
        from fairdraft.ops.triton.sampling import check_logits

        check_logits("logits", logits, dims=2)
        params = filter_params(len(logits), temperature, top_k, top_p, min_p)
        return filter_on_device(logits, params)
    values = rows.as_rows("logits", logits, dims=2)
    params = filter_params(len(values), temperature, top_k, top_p, min_p)
    return torch.from_numpy(filtered(values, params, backend))


def filtered(values: np.ndarray, params: FilterParams, backend: HostImpl) -> np.ndarray:
    """Rows float32 [B, V] on the host with what the filters drop at -inf."""
    if backend == "cpu":
        from fairdraft.ops.cpu.filters import keep_cpu as keep
    else:
        keep = keep_reference
    return np.where(keep(values, params), values, np.float32(-np.inf))


def filter_params(
    count: int, temperature: Any, top_k: Any = None, top_p: Any = None, min_p: Any = None
) -> FilterParams:
    """Checks filter parameters of `count` rows; the messages name the bad value."""
    k = rows.as_vector("top_k", 0 if top_k is None else top_k, count, np.int64)
    p = rows.as_vector("top_p", 1.0 if top_p is None else top_p, count, np.float64)
    m = rows.as_vector("min_p", 0.0 if min_p is None else min_p, count, np.float64)
    for name, values, is_good, rule in (
        ("top_k", k, k >= -1, "at least 1, or 0 or -1 for off"),
        ("top_p", p, (p > 0) & (p <= 1), "in (0, 1]; 1 is off"),
        ("min_p", m, (m >= 0) & (m <= 1), "in [0, 1]; 0 is off"),
    ):
        if not is_good.all():
            raise ValueError(f"{name} = {values[~is_good][0]} must be {rule}")
    scales = rows.temperature_scales("temperature", temperature, count)
    return FilterParams(scales, np.maximum(k, 0), p, m)


def keep_reference(values: np.ndarray, params: FilterParams) -> np.ndarray:
    """The specification: bool [B, V], true for tokens that stay."""
    kept = np.ones(values.shape, np.bool_)
    for b, row in enumerate(values):
        c, top_k, top_p, min_p = (field[b] for field in params)
        if c == 0 or rows.row_error(row) != RowError.NONE:
            continue
        with np.errstate(over="ignore"):
            weights = exp2_weights(row - row.max(), c)
        kept[b] = row > -np.inf
        if 0 < top_k < len(row):
            kept[b] &= row >= np.sort(row)[-top_k]
        if top_p < 1:
            kept[b] &= _nucleus(np.where(kept[b], row, -np.inf), weights, top_p)
        if min_p > 0:
            kept[b] &= weights >= min_p
    return kept


def _nucleus(row: np.ndarray, weights: np.ndarray, top_p: float) -> np.ndarray:
    """Tokens before which less than top_p of the mass lies; exact integer sums of unit 2^-38."""
    order = np.argsort(-row, kind="stable")
    mass = (weights.astype(np.float64) * FIXED_POINT).astype(np.int64)
    mass[row == -np.inf] = 0
    before = np.cumsum(mass[order]) - mass[order]
    kept = np.zeros(len(row), np.bool_)
    kept[order] = before.astype(np.float64) < top_p * np.float64(mass.sum())
    return kept
