"""Sampling and verification on a GPU, with the read floor and other libraries' figures beside them.

    python bench/gpu_ops.py [--quick] [--json FILE]
    python bench/gpu_ops.py --only tree "tree, no statistics" "tree portable"
    python bench/gpu_ops.py --plot FILE.json OUT.svg
    python bench/gpu_ops.py --markdown FILE.json
    python bench/gpu_ops.py --page FILE.json

A CUDA graph calls an op over sets of inputs in turn, so that big inputs come from memory. Nothing
is timed before every kernel agrees with the reference. Axes: B rows or requests, K drafts, V ids.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from conditions import conditions
from gpu_cases import (
    CASES,
    NUM_DRAFTS,
    TREE_CASES,
    Case,
    Inputs,
    call_of,
    make_point_masses,
    rows_needed,
    sample_inputs,
    tree_inputs,
    verify_inputs,
)
from gpu_check import CHECKED, check_all, check_case
from gpu_page import draw, fill_page, table
from report import CheckError, finish, refuse
from torch import Tensor

from fairdraft.ops.triton.workspace import Workspace

VOCAB_SIZE = 151936
BATCHES, QUICK_BATCHES = (1, 8, 64, 256), (1, 64)
#: inputs rotate through this much memory, four times the second-level cache, in so many sets
ROTATION_BYTES, LEAST_SETS, MOST_SETS = 200 << 20, 2, 64
#: least calls in a graph, so that its start is a small part of them
LEAST_CALLS = 16
REPLAYS, WARM_UP = 15, 3
FLOOR_BLOCKS = ((2048, 4), (4096, 4), (8192, 8))


@triton.jit
def read_kernel(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    """The maximum of BLOCK values: what reading costs, and next to nothing else."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < size, other=-float("inf")).to(tl.float32)
    tl.store(out_ptr + tl.program_id(0), tl.max(x, 0))


class Timing(NamedTuple):
    """Microseconds a call of each replay."""

    samples: list[float]

    def summary(self) -> dict[str, float]:
        """Median, least and most."""
        values = (statistics.median(self.samples), min(self.samples), max(self.samples))
        return {n: round(v, 3) for n, v in zip(("median", "min", "max"), values, strict=True)}


def main() -> None:
    """Checks, measures and reports, or draws what was measured."""
    arguments = _arguments()
    if arguments.plot is not None:
        draw(json.loads(Path(arguments.plot[0]).read_text()), Path(arguments.plot[1]))
    elif arguments.markdown is not None:
        print(table(json.loads(arguments.markdown.read_text())), end="")
    elif arguments.page is not None:
        fill_page(json.loads(arguments.page.read_text()))
    else:
        _measure_all(arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="batches 1 and 64 alone")
    names = [case.name for case in (*CASES, *TREE_CASES)]
    parser.add_argument("--only", nargs="+", choices=names, help="cases to time; trees only so")
    parser.add_argument("--most-sets", type=int, default=MOST_SETS, help="of inputs, at most")
    parser.add_argument("--json", type=Path, help="where the raw samples go")
    parser.add_argument("--plot", nargs=2, metavar=("JSON", "SVG"), help="draw a measured file")
    parser.add_argument("--markdown", type=Path, metavar="JSON", help="print a file as a table")
    parser.add_argument("--page", type=Path, metavar="JSON", help="write a file into docs/gpu.md")
    return parser.parse_args()


def _measure_all(arguments: argparse.Namespace) -> None:
    begin = time.perf_counter()
    if not torch.cuda.is_available():
        refuse("gpu_ops", CheckError("there is no GPU"))
    device = torch.device("cuda", torch.cuda.current_device())
    batches = QUICK_BATCHES if arguments.quick else BATCHES
    cases: list[Case] = list(CASES)
    if arguments.only is not None:
        cases = [c for c in (*CASES, *TREE_CASES) if c.name in arguments.only]
    trees = [case for case in cases if case.op == "tree"]
    _compile_ahead(cases, batches, trees)
    try:
        _note(begin, "checking against the reference")
        ties = check_all(VOCAB_SIZE, device, trees)
        results, raw = [], {}
        for batch in batches:
            for result, samples in _measure_batch(cases, batch, device, arguments.most_sets):
                results.append(result)
                raw[f"{result['case']}/{batch}"] = samples
                _note(begin, _line(result))
    except CheckError as error:
        refuse("gpu_ops", error)
    document = {
        "benchmark": "gpu_ops",
        "is_correct": True,
        "near_ties_in_check": ties,
        "conditions": _conditions(device),
        "vocab_size": VOCAB_SIZE,
        "num_drafts": NUM_DRAFTS,
        "replays": REPLAYS,
        "seconds": round(time.perf_counter() - begin, 1),
        "results": results,
    }
    print(table(document))
    finish(document, raw, arguments.json)


def _conditions(device: torch.device) -> dict[str, Any]:
    card = torch.cuda.get_device_properties(device)
    return {
        "device": card.name,
        "memory_gib": round(card.total_memory / 2**30),
        "multiprocessors": card.multi_processor_count,
        "l2_mib": round(card.L2_cache_size / 2**20),
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        **{name: conditions()[name] for name in ("python", "torch", "numpy", "commit")},
    }


def _note(begin: float, text: str) -> None:
    print(f"{time.perf_counter() - begin:6.1f} s  {text}", file=sys.stderr, flush=True)


def _compile_ahead(cases: Sequence[Case], batches: Sequence[int], more: Sequence[Case]) -> None:
    """Fills Triton's cache from several processes; what fails here fails again in the open."""
    # 256 rows are cut up as 64 are
    jobs: list[tuple[Case, int]] = [(c, b) for c in cases for b in batches if b < 256]
    jobs += [(case, 0) for case in (*CHECKED, *more)]
    context = multiprocessing.get_context("spawn")
    workers = max(1, min(16, (os.cpu_count() or 2) - 1))
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        for job in [pool.submit(_compile, *job) for job in jobs]:
            if job.exception() is not None:
                print(f"compiling ahead: {job.exception()}", file=sys.stderr)


def _compile(case: Case, batch: int) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    if not batch:
        check_case(case, VOCAB_SIZE, device)
        return
    inputs = _inputs(case, batch, torch.Generator(device).manual_seed(1))
    if case.drafts == "point mass":
        inputs = make_point_masses(inputs)
    call_of(case, inputs, Workspace(device))()
    torch.cuda.synchronize()


def _inputs(case: Case, batch: int, generator: torch.Generator) -> Inputs:
    if case.op == "sample":
        return sample_inputs(batch, VOCAB_SIZE, case.dtype, generator)
    if case.op == "tree":
        return tree_inputs(batch, VOCAB_SIZE, generator)
    return verify_inputs(batch, VOCAB_SIZE, generator)


def _num_sets(case: Case, batch: int, most: int) -> tuple[int, int]:
    """Sets of inputs of a case, and the bytes of one that every call may read."""
    # of a verification only the target's rows: a draft's may not be read; of a tree the root's
    rows = batch * (NUM_DRAFTS + 1) if case.op == "verify" else batch
    num_bytes = rows * VOCAB_SIZE * getattr(torch, case.dtype).itemsize
    return min(most, max(LEAST_SETS, ROTATION_BYTES // num_bytes + 1)), num_bytes


def _measure_batch(cases: Sequence[Case], batch: int, device: torch.device, most_sets: int):
    """Results of one batch size; cases on the same inputs share them and their read floor."""
    floors: dict[tuple[str, str], tuple[Timing, str]] = {}
    sets: list[Inputs] = []
    shared: tuple[str, str] | None = None
    for case in cases:
        count, set_bytes = _num_sets(case, batch, most_sets)
        kind = (case.op, case.dtype)
        if shared != kind:
            shared = kind
            sets.clear()
            generator = torch.Generator(device).manual_seed(batch)
            sets.extend(_inputs(case, batch, generator) for _ in range(count))
        if case.drafts == "point mass":
            sets[:] = [make_point_masses(inputs) for inputs in sets]
        timing, accepted, read_rows = _measure(case, sets, device)
        if kind not in floors:
            floors[kind] = _floor(read_rows)
        floor, floor_shape = floors[kind]
        read = read_rows[0].numel() * read_rows[0].element_size()
        result = {
            **case._asdict(),
            "case": case.name,
            "batch": batch,
            "bytes": read,
            "sets": count,
            "is_cold": count * set_bytes > 2 * _l2_bytes(device),
            "accepted": accepted,
            "microseconds": timing.summary(),
            "floor": {**floor.summary(), "shape": floor_shape},
            "over_floor": round(timing.summary()["median"] / floor.summary()["median"], 3),
        }
        yield result, {"op": timing.samples, "floor": floor.samples}


def _l2_bytes(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).L2_cache_size


def _measure(
    case: Case, sets: Sequence[Inputs], device: torch.device
) -> tuple[Timing, float | None, list[Tensor]]:
    """Times a case; what the graph left behind must be what a plain call gives.

    Also returns the drafts that stood, and of each set the rows that its floor reads.
    """
    workspace = Workspace(device)
    calls = [call_of(case, inputs, workspace) for inputs in sets]
    wanted = [call().token_ids.clone() for call in calls]
    timing, last = time_graph(calls)
    for number, (got, ids) in enumerate(zip(last, wanted, strict=True)):
        if not torch.equal(got.token_ids, ids):
            raise CheckError(f"{case.name}: a graph's tokens differ from a call's, set {number}")
        if got.error.any():
            raise CheckError(f"{case.name}: errors {got.error.unique().tolist()}, set {number}")
    rows = [inputs.logits for inputs in sets]
    if case.op == "sample":
        return timing, None, rows
    if case.op == "tree":
        # as many rows as walks need, of p and q together
        counts = map(rows_needed, last)
        rows = [x.flatten(0, 1)[:count] for x, count in zip(rows, counts, strict=True)]
    accepted = torch.cat([verdict.num_accepted_tokens for verdict in last])
    return timing, round(float(accepted.double().mean()), 3), rows


def _floor(rows: Sequence[Tensor]) -> tuple[Timing, str]:
    """Reading the same rows once, with the best of a few block sizes."""
    most = max(x.numel() for x in rows)
    out = torch.empty(triton.cdiv(most, FLOOR_BLOCKS[0][0]), device=rows[0].device)
    best = None
    for block, warps in FLOOR_BLOCKS:

        def read(x: Tensor, block=block, warps=warps) -> None:
            launch: Any = read_kernel[(triton.cdiv(x.numel(), block),)]
            launch(x, out, x.numel(), BLOCK=block, num_warps=warps)

        timing, _ = time_graph([lambda x=x, read=read: read(x) for x in rows])
        shape = f"{block} values, {warps} warps"
        if best is None or timing.summary()["median"] < best[0].summary()["median"]:
            best = timing, shape
    assert best is not None
    return best


def time_graph(calls: Sequence[Callable[[], Any]]) -> tuple[Timing, list[Any]]:
    """Times a graph of the calls in turn; also returns what the last turn's calls wrote to."""
    for call in calls:  # compiles, and allocates what is kept
        call()
    torch.cuda.synchronize()
    turns = -(-LEAST_CALLS // len(calls))
    graph = torch.cuda.CUDAGraph()
    last: list[Any] = []
    with torch.cuda.graph(graph):
        for _ in range(turns):
            last = [call() for call in calls]
    samples = []
    for number in range(-WARM_UP, REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if number >= 0:
            samples.append(1e3 * start.elapsed_time(end) / (turns * len(calls)))
    return Timing(samples), last


def _line(result: dict[str, Any]) -> str:
    time_us, floor = result["microseconds"]["median"], result["floor"]["median"]
    return f"{result['case']}, B = {result['batch']}: {time_us:.1f} us, floor {floor:.1f} us"


if __name__ == "__main__":
    main()
