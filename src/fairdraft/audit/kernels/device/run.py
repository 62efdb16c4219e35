"""Runs rows through the kernels of a device, and says what they show together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from fairdraft.audit.device_layouts import (
    DEVICE_LAYOUTS,
    device_counters,
    host_twin,
    planted,
)
from fairdraft.audit.kernels.claims import Claim, claims_of
from fairdraft.audit.kernels.device.rows import DEVICE_ROWS, DeviceRow
from fairdraft.audit.kernels.device.setting import checked_device
from fairdraft.audit.kernels.device.streams import check_streams, stream_claim
from fairdraft.audit.kernels.device.trials import compile_row, run_row
from fairdraft.audit.kernels.judging import closed_form, judge
from fairdraft.audit.kernels.result import RowResult, first_key, measured_acceptance
from fairdraft.audit.kernels.run import KernelAudit
from fairdraft.audit.kernels.trials import trace_texts
from fairdraft.audit.processes import Progress, completed, num_processors
from fairdraft.noise import Stream, request_key
from fairdraft.ops import DeviceAddress

__all__ = ["address_claim", "regression_claim", "run_on_device"]

#: limit of the public test of 65,536 samples
PUBLIC_TV = 0.008
MAX_JOBS = 12
_BITS = {"key": 62, "position": 32, "anchor": 32, "node": 16, "sample": 16}


def run_on_device(
    rows: Sequence[DeviceRow] = DEVICE_ROWS,
    *,
    device: str = "cuda",
    seed: int = 0,
    jobs: int | None = None,
    has_streams: bool = True,
    on_progress: Callable[[Progress[RowResult]], None] | None = None,
) -> KernelAudit:
    """Runs, judges and traces rows whose texts go through the kernels of a device.

    Args:
        rows: Which; names choose the samples.
        device: "cuda", or "cpu" under Triton's interpreter.
        seed: Any integer; another one gives other samples.
        jobs: Processes that compile kernels ahead; None for one a processor, up to 12, and 1 for
            none. With more than one, the caller's main module must be importable.
        has_streams: Also make the stream check of a wide vocabulary.
        on_progress: Called after each row.

    Raises:
        ValueError: If the device cannot run kernels, or a name comes twice.
    """
    if len({row.name for row in rows}) < len(rows):
        raise ValueError("two rows have the same name; names choose the samples, so rename one")
    where = checked_device(device)
    begin = time.perf_counter()
    jobs = jobs or min(num_processors(), MAX_JOBS)
    if jobs > 1:
        _compile_ahead(rows, device, jobs)
    claims = [address_claim(where)]
    total, done, results = sum(row.experiment.num_trials for row in rows), 0, []
    for row in rows:
        results.append(carry_out(row, seed, where))
        done += row.experiment.num_trials
        if on_progress is not None:
            seconds = time.perf_counter() - begin
            step = Progress(results[-1], len(results), len(rows), done / total, seconds)
            on_progress(step)
    claims += [claim for claim in (regression_claim(results),) if claim is not None]
    claims += claims_of(results)
    if has_streams:
        names = ("ours", "salted", "coupled")
        key = request_key(seed)
        claims += [stream_claim(check_streams(name, where, key=key)) for name in names]
    seconds = time.perf_counter() - begin
    return KernelAudit(tuple(results), tuple(claims), seed, seconds, device)


def carry_out(row: DeviceRow, seed: int, device: torch.device) -> RowResult:
    """Runs and judges one row; the trace is the host's, of the same layout."""
    begin = time.perf_counter()
    key = first_key(row, seed)
    trials, replay = run_row(row, key, device)
    traced = trace_texts(row.experiment, row.maker(key), key)
    has_fit = row.layout == "coupled" and row.call.declares_law
    return RowResult(
        row,
        judge(row.experiment, trials),
        traced,
        measured_acceptance(trials, row.acceptance),
        closed_form(row.experiment, trials) if has_fit else None,
        trials.num_trials,
        time.perf_counter() - begin,
        replay,
    )


def address_claim(device: torch.device, count: int = 240) -> Claim:
    """Whether kernels form the addresses that the host's layouts form."""
    rng = np.random.default_rng(0)
    fields = {name: rng.integers(0, 1 << bits, count) for name, bits in _BITS.items()}
    fields["stream"] = rng.choice([int(stream) for stream in Stream], count)
    at = DeviceAddress(**{k: torch.from_numpy(v).to(device) for k, v in fields.items()})
    unlike = []
    for name in DEVICE_LAYOUTS:
        with host_twin(name):
            # the fields named on the host, by whatever is in place there
            wanted = at.to_host(count).counter
        with planted(name):
            got = device_counters(at, count, device)
        unlike += [name] * (not np.array_equal(got, wanted))
    return Claim(
        f"kernels form the addresses that the host forms, under each of {len(DEVICE_LAYOUTS)} "
        f"layouts, at {count} places" + (f"; not under {', '.join(unlike)}" if unlike else ""),
        not unlike,
    )


def regression_claim(results: Sequence[RowResult]) -> Claim | None:
    """The public regression test: its limit parts the layouts."""
    named = {r.row.layout: r for r in results if r.row.name.startswith("regression ")}
    if "coupled" not in named or len(named) < 2:
        return None
    found = {name: r.judgment.distance.observed for name, r in named.items()}
    others = [tv for name, tv in found.items() if name != "coupled"]
    told = ", ".join(f"{name} {tv:.5f}" for name, tv in found.items())
    return Claim(
        f"the public limit of {PUBLIC_TV} on the total variation of 65,536 samples parts them: "
        f"{told}",
        max(others) < PUBLIC_TV < found["coupled"],
    )


def _compile_ahead(rows: Sequence[DeviceRow], device: str, jobs: int) -> None:
    """Fills Triton's cache from several processes; what fails here fails again in its row."""
    chosen = {row.kernels: row for row in rows}
    calls = [(row, device) for row in chosen.values()]
    for _ in completed(compile_row, calls, min(jobs, len(calls))):
        pass
