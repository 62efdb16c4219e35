"""Sampling one token a row: the race (default), flat Gumbel, and greedy rows in the same call.

Axes: B rows, V vocabulary, T tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from fairdraft.noise import Address, Trace
from fairdraft.noise.trace import digest
from fairdraft.ops import rows
from fairdraft.ops.arithmetic import TILE, flat_weights, row_weights
from fairdraft.ops.device_address import DeviceAddress, check_count
from fairdraft.ops.dispatch import Arithmetic, Impl, device_of, resolve_arithmetic, resolve_impl
from fairdraft.ops.filters import Filters, filter_params, filtered
from fairdraft.ops.race import flat_race, race
from fairdraft.ops.rows import PLACEHOLDER_TOKEN_ID, RowError

if TYPE_CHECKING:
    from fairdraft.ops.triton.workspace import Workspace

Method = Literal["race", "gumbel"]


@dataclass(frozen=True)
class TileStats:
    """Statistics of sampled rows, for whoever needs the row's law after the draw.

    Attributes:
        tile_max: float32 [B, T] largest logit of each tile of 512 ids.
        tile_sum: float32 [B, T] exact sum of 2^((logit - tile_max) c).
        row_max: float32 [B].
        row_sum: int64 [B] sum of tile_sum * 2^((tile_max - row_max) c), unit 2^-38.
    """

    tile_max: Tensor
    tile_sum: Tensor
    row_max: Tensor
    row_sum: Tensor

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All four, in the order above."""
        return self.tile_max, self.tile_sum, self.row_max, self.row_sum


def stats_shapes(count: int, num_tiles: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and type of each of the statistics of `count` rows, in the order of `TileStats`."""
    tiles = (count, num_tiles)
    return {
        "tile_max": (tiles, torch.float32),
        "tile_sum": (tiles, torch.float32),
        "row_max": ((count,), torch.float32),
        "row_sum": ((count,), torch.int64),
    }


@dataclass(frozen=True)
class Sampled:
    """One token a row.

    Attributes:
        token_ids: int64 [B]; -1 where `error` is set.
        margin: float64 [B]; second best over best score, minus 1 (greedy: the logit gap).
        error: int64 [B], a `RowError` each.
        stats: TileStats if asked for; greedy and failed rows hold zeros.
    """

    token_ids: Tensor
    margin: Tensor
    error: Tensor
    stats: TileStats | None = None


def sample(
    logits: Tensor,
    address: Address | DeviceAddress,
    *,
    temperature: float | Tensor | np.ndarray = 1.0,
    top_k: int | Tensor | np.ndarray | None = None,
    top_p: float | Tensor | np.ndarray | None = None,
    min_p: float | Tensor | np.ndarray | None = None,
    method: Method = "race",
    impl: Impl = "auto",
    arithmetic: Arithmetic = "auto",
    return_stats: bool = False,
    trace: Trace | None = None,
    out: Sampled | None = None,
    workspace: Workspace | None = None,
    validate: bool = True,
) -> Sampled:
    """Draws one token from each row of logits with the noise at each row's address.

    Args:
        logits: Floating point [B, V]; -inf excludes a token. Not divided by temperature.
        address: B addresses from `fairdraft.noise.address`, or the fields of them on the device.
        temperature: Scalar or [B], 0..1e8; below 1e-5 the row is greedy (ties to the lowest id).
        top_k, top_p, min_p: Filters as in `filter_logits`, a scalar or [B] each; None is off. The
            call draws the token that it would draw from the filtered rows, in `portable`
            arithmetic where a row has a filter. On a GPU [B] may be there, and a value out of
            range is its row's error.
        method: "race" (two levels, the default) or "gumbel" (a number for every token; on a GPU
            without filters).
        impl: "auto", "reference", "cpu" or "triton"; refused if it cannot run. Tensors on a GPU
            are sampled there, and the call does not wait for it.
        arithmetic: "portable" gives the same tokens on every backend; "fast", the GPU's default,
            differs at near ties alone (chance 2e-6 a draw).
        return_stats: Also return the tile statistics of the pass, those of filtered rows.
        trace: Records every address with a digest of what was raced; on a GPU it waits.
        out: Result of an earlier call to write into (GPU).
        workspace: Scratch of earlier calls; with `out` a call allocates nothing (GPU).
        validate: False skips the checks, for calls that were checked before (GPU).

    Returns:
        Sampled, on the device of the logits. A row that holds NaN or +inf, or has no token left,
        gets an error code and token -1; the other rows are untouched.

    Raises:
        ValueError: If a shape, dtype or parameter is out of range.

    Noise:
        The given address, lanes 0..V-1 at token level and 0..T-1 at tile level. Greedy rows: none.

    Law:
        softmax(logits / temperature) for each row, or of what its filters keep, to the arithmetic
        in `docs/derivation.md`.
    """
    if torch.compiler.is_compiling():
        from fairdraft.ops.custom import traced_sample

        refuse_traced(trace=trace, out=out, workspace=workspace)
        named: dict[str, Any] = {"method": method, "impl": impl, "arithmetic": arithmetic}
        named["return_stats"] = return_stats
        return traced_sample(logits, address, temperature, Filters(top_k, top_p, min_p), **named)
    check_method(method)
    filters = Filters(top_k, top_p, min_p)
    backend = resolve_impl(impl, device_of(logits))
    arithmetic = resolve_arithmetic(arithmetic, backend)
    if backend == "triton":
        from fairdraft.ops.triton.sampling import sample_on_device

        drawn = sample_on_device(
            logits,
            address,
            temperature=temperature,
            filters=filters,
            method=method,
            arithmetic=arithmetic,
            return_stats=return_stats,
            out=out,
            workspace=workspace,
            validate=validate,
        )
        if trace is not None:
            _record(trace, logits, address, temperature, filters, drawn)
        return drawn
    if out is not None or workspace is not None:
        raise ValueError("out and workspace are for tensors on a GPU; leave them out on the CPU")
    values = rows.as_rows("logits", logits, dims=2)
    count = len(values)
    if isinstance(address, DeviceAddress):
        address = address.to_host(count)
    check_count(address, count)
    scales = rows.temperature_scales("temperature", temperature, count)
    if not filters.is_off:
        values = filtered(values, filter_params(count, temperature, *filters), backend)
    stats = _empty_stats(count, values.shape[1]) if return_stats else None
    token_ids, margin, error = sample_rows(
        values, scales, address, backend, method=method, stats=stats, trace=trace
    )
    return Sampled(
        torch.from_numpy(token_ids),
        torch.from_numpy(margin),
        torch.from_numpy(error),
        None if stats is None else TileStats(*(torch.from_numpy(part) for part in stats)),
    )


def sample_rows(
    values: np.ndarray,
    scales: np.ndarray,
    address: Address,
    backend: Literal["reference", "cpu"],
    *,
    method: Method = "race",
    stats: Stats | None = None,
    trace: Trace | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`sample` on the host, of arguments that were checked: token_ids, margin and error.

    Args:
        values: From `rows.as_rows` [B, V].
        scales: From `rows.temperature_scales` [B].
        address: B addresses.
        backend: What `resolve_impl` names.
        stats: Filled in.
    """
    if backend == "cpu":
        from fairdraft.ops.cpu.sample import sample_cpu as implementation
    else:
        implementation = sample_reference
    drawn = implementation(values, scales, address, method, stats)
    if trace is not None:
        raced = np.flatnonzero((scales > 0) & (drawn[2] == RowError.NONE))
        trace.record(address[raced], [digest(values[b], scales[b]) for b in raced])
    return drawn


def _record(
    trace: Trace,
    logits: Tensor,
    address: Address | DeviceAddress,
    temperature: Any,
    filters: Filters,
    drawn: Sampled,
) -> None:
    """Records a device's draws, from copies on the host."""
    is_good = drawn.error.cpu().numpy() == RowError.NONE
    values = rows.as_rows("logits", logits.cpu(), dims=2)[is_good]
    at_device = isinstance(address, DeviceAddress)
    address = address.to_host(len(is_good), is_good) if at_device else address[is_good]
    kept = _host_rows(temperature, is_good)
    scales = rows.temperature_scales("temperature", kept, len(values))
    if not filters.is_off:
        own = (None if given is None else _host_rows(given, is_good) for given in filters)
        values = filtered(values, filter_params(len(values), kept, *own), "reference")
    chosen = np.flatnonzero(scales > 0)
    trace.record(address[chosen], [digest(values[b], scales[b]) for b in chosen])


def refuse_traced(**given: Any) -> None:
    """Refuses what a compiled call has no room for."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise ValueError(f"{name} cannot be traced; leave it out of a compiled call")


def _host_rows(given: Any, is_good: np.ndarray) -> np.ndarray:
    """The values of the good rows, of a scalar or one a row."""
    array = given.cpu() if isinstance(given, Tensor) else given
    return np.broadcast_to(np.asarray(array, np.float64), is_good.shape)[is_good]


def check_method(method: Method) -> None:
    """Refuses a method that is not built."""
    if method not in ("race", "gumbel"):
        raise ValueError(f"method = {method!r} is unknown; choose 'race' or 'gumbel'")


Stats = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _empty_stats(count: int, vocab_size: int) -> Stats:
    num_tiles = -(-vocab_size // TILE)
    return (
        np.zeros((count, num_tiles), np.float32),
        np.zeros((count, num_tiles), np.float32),
        np.zeros(count, np.float32),
        np.zeros(count, np.int64),
    )


def sample_reference(
    values: np.ndarray, scales: np.ndarray, at: Address, method: Method, stats: Stats | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The specification of `sample`, row by row: token_ids, margin, error."""
    count = len(values)
    token_ids = np.full(count, PLACEHOLDER_TOKEN_ID, np.int64)
    margin, error = np.zeros(count), np.zeros(count, np.int64)
    for b, row in enumerate(values):
        error[b] = rows.row_error(row)
        if error[b]:
            continue
        if scales[b] == 0:
            token_ids[b], margin[b] = greedy(row)
        elif method == "gumbel":
            token_ids[b], margin[b] = flat_race(flat_weights(row, scales[b]), at, b)
        else:
            law = row_weights(row, scales[b])
            token_ids[b], margin[b] = race(law, at, b)
            if stats is not None:
                stats[0][b], stats[1][b] = law.tile_max, law.tile_sum
                stats[2][b], stats[3][b] = law.row_max, law.total
    return token_ids, margin, error


def greedy(row: np.ndarray) -> tuple[int, float]:
    """The largest logit's id, ties to the lowest, and its lead over the second."""
    best = int(row.argmax())
    rest = np.delete(row, best)
    return best, float(row[best]) - float(rest.max()) if len(rest) else np.inf
