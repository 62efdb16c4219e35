"""Log-probabilities of tokens, their ranks, and the most probable ones of a row.

Axes: N rows, V vocabulary, T tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairdraft.ops import rows
from fairdraft.ops.arithmetic import FIXED_POINT, GREEDY_TEMPERATURE, TILE
from fairdraft.ops.dispatch import Impl, device_of, resolve_impl
from fairdraft.ops.rows import PLACEHOLDER_TOKEN_ID, RowError
from fairdraft.ops.sample import TileStats

_LARGEST_ID, _NO_TOKEN = (1 << 32) - 1, -(1 << 63)


@dataclass(frozen=True)
class Logprobs:
    """Natural logarithms of probabilities.

    Attributes:
        logprobs: float64 [N], of the given tokens; -inf for one that is excluded, NaN where there
            is no token (-1) or `error` is set.
        ranks: int64 [N], 1 for the largest logit; equal logits share the best rank; 0 where
            `logprobs` is NaN.
        top_ids: int64 [N, n], the largest logits in order, ties by id; -1 where `error` is set.
        top_logprobs: float64 [N, n].
        top_ranks: int64 [N, n].
        error: int64 [N], a `RowError` each.
    """

    logprobs: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor
    top_ranks: Tensor
    error: Tensor


def logprobs(
    logits: Tensor,
    token_ids: Tensor,
    *,
    temperature: Any = 1.0,
    top_n: int = 0,
    stats: TileStats | None = None,
    impl: Impl = "auto",
    validate: bool = True,
) -> Logprobs:
    """Log-probabilities of one token a row under softmax(logits / temperature).

    At the default temperature and with logits before any filter these are an engine's raw logprobs;
    with filtered logits and the row's temperature they are its processed ones.

    Args:
        logits: Floating point [N, V]; -inf excludes a token. Not divided by temperature.
        token_ids: int64 [N], -1 where a row has no token, as `Verdict.token_ids` pads.
        temperature: Scalar or [N], 0..1e8. Below 1e-5 the law is the row's argmax: 0 or -inf.
        top_n: How many of the most probable tokens to add, at most V.
        stats: TileStats that `ops.sample` returned for these rows at these temperatures: then a row
            is read only where its logits exceed the token's, and where its first ones are.
        impl: "auto", "reference", "cpu" or "triton"; refused if it cannot run. The call does not
            wait for a GPU.
        validate: False skips the checks (GPU).

    Returns:
        Logprobs, on the device of the logits. On the host without `stats` they are float64
        throughout, within 1e-12 of the exact ones; with `stats` and on a GPU they come from the
        sums that the row is sampled by, within 4e-6.

    Raises:
        ValueError: If a shape, dtype or parameter is out of range. An id outside the vocabulary
            that only a device can see is an error of its row instead.

    Noise:
        None.
    """
    if isinstance(top_n, bool) or not isinstance(top_n, int) or top_n < 0:
        raise ValueError(f"top_n = {top_n!r} is no count; give 0 or more")
    backend = resolve_impl(impl, device_of(logits))
    if backend == "triton":
        from fairdraft.ops.triton.logprobs import logprobs_on_device

        return logprobs_on_device(logits, token_ids, temperature, top_n, stats, validate)
    values = rows.as_rows("logits", logits, dims=2)
    count, vocab_size = values.shape
    ids = _token_ids(token_ids, count, vocab_size)
    rows.temperature_scales("temperature", temperature, count)
    temperatures = rows.as_vector("temperature", temperature, count, np.float64)
    known = None if stats is None else _known(stats, count, vocab_size)
    if backend == "cpu":
        from fairdraft.ops.cpu.logprobs import measure_cpu as measure
    else:
        measure = measure_reference
    found = Measured(*map(torch.from_numpy, measure(values, ids, temperatures, known)))
    # a row that the statistics say nothing of has zeros for maxima
    is_complete = known is not None and not np.isnan(known.log_total).any()
    tile_max = torch.from_numpy(known.tile_max) if known is not None and is_complete else None
    top = top_of(torch.from_numpy(values), tile_max, found, torch.from_numpy(temperatures), top_n)
    return Logprobs(found.logprobs, found.ranks, *top, found.error)


class Measured(NamedTuple):
    """What is found of each row; arrays or tensors [N].

    The law is exp((logit - row_max) / temperature - log_total), all float64; greedy rows and those
    with an error have no `log_total`.
    """

    logprobs: Any
    ranks: Any
    row_max: Any
    log_total: Any
    error: Any


class Known(NamedTuple):
    """What statistics say: tile_max [N, T], row_max [N] and log_total [N], NaN where nothing."""

    tile_max: np.ndarray
    row_max: np.ndarray
    log_total: np.ndarray


def measure_reference(
    values: np.ndarray, ids: np.ndarray, temperatures: np.ndarray, known: Known | None
) -> Measured:
    """The specification, row by row in float64."""
    count = len(values)
    found = empty_measured(count)
    for b, row in enumerate(values):
        found.error[b] = rows.row_error(row)
        if found.error[b]:
            continue
        x, t = row.astype(np.float64), temperatures[b]
        found.row_max[b] = x.max()
        if known is not None and not np.isnan(known.log_total[b]):
            found.log_total[b] = known.log_total[b]
        elif t >= GREEDY_TEMPERATURE:
            found.log_total[b] = np.log(np.exp((x - x.max()) / t).sum())
        j = ids[b]
        if j < 0:
            continue
        found.ranks[b] = 1 + (x > x[j]).sum()
        if t < GREEDY_TEMPERATURE:
            found.logprobs[b] = 0.0 if j == x.argmax() else -np.inf
        else:
            found.logprobs[b] = (x[j] - x.max()) / t - found.log_total[b]
    return found


def empty_measured(count: int) -> Measured:
    """Room for `count` rows, of which nothing is known."""
    unknown = np.full((3, count), np.nan)
    counts = np.zeros((2, count), np.int64)
    return Measured(unknown[0], counts[0], unknown[1], unknown[2], counts[1])


def top_of(
    values: Tensor, tile_max: Tensor | None, found: Measured, temperatures: Tensor, top_n: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, logprobs and ranks [N, n] of the largest logits, ties by id.

    The n first tokens lie in the n first tiles by (maximum, tile), so no other tile is read.
    """
    count, vocab_size = values.shape
    top_n = min(top_n, vocab_size)
    if not top_n:
        ids = found.ranks.new_empty((count, 0))
        return ids, found.row_max.new_empty((count, 0)), ids.clone()
    if tile_max is None:
        num_tiles = -(-vocab_size // TILE)
        padding = (0, num_tiles * TILE - vocab_size)
        padded = torch.nn.functional.pad(values, padding, value=-torch.inf)
        tile_max = padded.view(count, num_tiles, TILE).amax(-1)
    tiles = tile_max.sort(dim=-1, descending=True, stable=True).indices[:, :top_n]
    lanes = torch.arange(TILE, device=values.device)
    ids = (tiles[:, :, None] * TILE + lanes).flatten(1)
    # -0.0 equals 0.0
    x = values.gather(1, ids.clamp(max=vocab_size - 1)).float() + 0.0
    bits = x.view(torch.int32)
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    # one integer orders by logit and then by id, lowest first
    order = torch.where(ids < vocab_size, (order << 32) + (_LARGEST_ID - ids), _NO_TOKEN)
    ids = _LARGEST_ID - (order.topk(top_n, dim=-1).values & _LARGEST_ID)
    x = values.gather(1, ids).double()
    ranks = (x[:, None, :] > x[:, :, None]).sum(-1) + 1
    logprobs = (x - found.row_max[:, None]) / temperatures[:, None] - found.log_total[:, None]
    is_first = torch.arange(top_n, device=x.device) == 0
    point_mass = torch.where(is_first, 0.0, -torch.inf).double()
    is_greedy = temperatures < GREEDY_TEMPERATURE
    logprobs = torch.where(is_greedy[:, None], point_mass, logprobs)
    is_bad = (found.error != RowError.NONE)[:, None]
    return (
        ids.masked_fill(is_bad, PLACEHOLDER_TOKEN_ID),
        logprobs.masked_fill(is_bad, torch.nan),
        ranks.masked_fill(is_bad, 0),
    )


def _known(stats: TileStats, count: int, vocab_size: int) -> Known:
    tiles = (count, -(-vocab_size // TILE))
    for name, need in (("tile_max", tiles), ("row_max", (count,)), ("row_sum", (count,))):
        shape = tuple(getattr(stats, name).shape)
        if shape != need:
            raise ValueError(f"stats.{name} has shape {shape}, not {need}: those of these rows")
    if not stats.row_sum.is_cpu:
        raise ValueError(
            f"stats are on {stats.row_sum.device}, the logits on the host: .cpu() them"
        )
    row_sum = stats.row_sum.numpy().astype(np.float64)
    # greedy rows and rows with an error hold zeros
    is_known = row_sum > 0
    log_total = np.full(count, np.nan)
    log_total[is_known] = np.log(row_sum[is_known] / FIXED_POINT)
    return Known(stats.tile_max.numpy(), stats.row_max.numpy(), log_total)


def _token_ids(token_ids: Any, count: int, vocab_size: int) -> np.ndarray:
    ids = np.asarray(token_ids)
    if ids.shape != (count,) or ids.dtype.kind not in "iu":
        raise ValueError(
            f"token_ids has shape {ids.shape} and dtype {ids.dtype}; give int64 ({count},), one a "
            "row of logits"
        )
    is_bad = (ids < PLACEHOLDER_TOKEN_ID) | (ids >= vocab_size)
    if is_bad.any():
        raise ValueError(
            f"token_ids has {ids[is_bad][0]}, outside a vocabulary of {vocab_size}; "
            f"use {PLACEHOLDER_TOKEN_ID} for a row without a token"
        )
    return np.ascontiguousarray(ids, np.int64)
