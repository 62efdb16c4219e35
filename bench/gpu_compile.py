"""Compiles every kernel of the ops for AMD GPUs that are not here, and looks at what comes out.

    python bench/gpu_compile.py [--quick] [--targets gfx942 gfx1100] [--json FILE]

Triton brings the compiler along, so this needs no GPU and runs nothing: it shows that kernels
compile and what their code asks of the hardware, and neither that their numbers are right nor how
fast they are. The last line is JSON; the exit status is 1 if a kernel does not compile or is found
faulty.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

# kernels that are made under the interpreter cannot be compiled
os.environ.pop("TRITON_INTERPRET", None)

import numpy as np
import torch
import triton
from conditions import conditions
from gpu_code import faults, usage
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from fairdraft import ops
from fairdraft.noise import Stream
from fairdraft.ops import DeviceAddress, TileStats, processors
from fairdraft.ops import triton as kernels
from fairdraft.ops.processors import Bitmask, DraftedPaths, Guard, RowParams
from fairdraft.ops.processors.edits import NUM_PROBES
from fairdraft.ops.triton import target as launch_target
from fairdraft.ops.triton.verify import FEW_ROWS

WAVES = {"gfx90a": 64, "gfx942": 64, "gfx950": 64, "gfx1100": 32, "gfx1201": 32}
NUM_DRAFTS, TREE, TILE = 3, (0, 0, 0, 1, 1), 512


class Compiled(NamedTuple):
    """One kernel as a launch would have it; `code` is None where an error says why."""

    kernel: str
    code: Any
    error: str


class _Elsewhere:
    """Stands in for the driver of a GPU that is not here."""

    def __init__(self, arch: str) -> None:
        self.arch = arch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("hip", self.arch, WAVES[self.arch])

    def get_current_device(self) -> str:
        # functions keep by device what was compiled of them
        return self.arch

    def get_current_stream(self, _device: Any) -> int:
        return 0


@contextmanager
def compiling(arch: str) -> Iterator[list[Compiled]]:
    """Launches compile for a target in place of running; yields what they compiled.

    Tensors stay on the host: launches are told that these are AMD's, and the ops that an
    interpreter will run what they launch.
    """
    found: list[Compiled] = []
    launch, asks, active = JITFunction.run, launch_target.is_amd, driver._active

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        try:
            code, error = launch(self, *args, grid=grid, warmup=True, **options), ""
        except Exception as failure:
            code, error = None, f"{type(failure).__name__}: {failure}"
        found.append(Compiled(self.fn.__name__, code, error))

    driver.set_active(_Elsewhere(arch))  # pyright: ignore[reportArgumentType]
    JITFunction.run, launch_target.is_amd = compile_only, lambda _device: True
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        yield found
    finally:
        del os.environ["TRITON_INTERPRET"]
        JITFunction.run, launch_target.is_amd = launch, asks
        driver._active = active


def calls() -> Iterator[tuple[str, Callable[[], object]]]:
    """Calls of the ops that launch every kernel, at the sizes that matter for how it is cut up."""
    for arithmetic in ("fast", "portable"):
        how: dict[str, Any] = {"vocab_size": 151_936, "arithmetic": arithmetic}
        yield f"gumbel {arithmetic}", partial(_sample, 8, method="gumbel", **how)
        yield f"tree {arithmetic}", partial(_verify_tree, **how)
        for count in (2, 64):
            named = f"{arithmetic} B={count}"
            yield f"point masses {named}", partial(_verify, count, has_draft=False, **how)
            marks = torch.zeros(count, NUM_DRAFTS, dtype=torch.bool)
            yield f"forbidden {named}", partial(_verify, count, forbidden=marks, **how)
            yield f"sample {named}", partial(_sample, 4 * count, return_stats=True, **how)
            for rule in ("token", "block"):
                yield f"{rule} {named}", partial(_verify, count, rule=rule, **how)
                call = partial(_verify, count, rule=rule, has_stats=True, **how)
                yield f"{rule} {named} statistics", call
        for lossy in (ops.Typical(), ops.Threshold(), ops.Synthetic((0.5,) * NUM_DRAFTS)):
            yield f"{lossy.name} {arithmetic}", partial(_verify, 2, rule=lossy, **how)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        kind = str(dtype).removeprefix("torch.")
        yield f"sample {kind}", partial(_sample, 8, 151_936, dtype=dtype)
        yield f"processors {kind}", partial(_process, dtype)
    for top_k in (50, 200):
        few = {"top_k": top_k, "top_p": 0.9, "min_p": 0.01}
        yield f"sample top-k {top_k}", partial(_sample, 8, 151_936, **few)
    yield from _other_calls(151_936)


def quick_calls() -> Iterator[tuple[str, Callable[[], object]]]:
    """One of each kind in a small vocabulary, and of the slow filtered kernels none."""
    how: dict[str, Any] = {"vocab_size": 1_000}
    for arithmetic, rule in (("fast", "block"), ("portable", "token")):
        how["arithmetic"] = arithmetic
        yield f"gumbel {arithmetic}", partial(_sample, 8, method="gumbel", **how)
        yield f"{rule} {arithmetic}", partial(_verify, 2, rule=rule, **how)
    yield "many rows", partial(_verify, FEW_ROWS, **how)
    yield "typical", partial(_verify, 2, rule=ops.Typical(), **how)
    yield "tree fast", partial(_verify_tree, 1_000, arithmetic="fast")
    yield "processors", partial(_process, torch.float32)
    yield from _other_calls(1_000)


def _other_calls(vocab_size: int) -> Iterator[tuple[str, Callable[[], object]]]:
    rows, ids = torch.zeros(2, vocab_size), torch.zeros(2, dtype=torch.int64)
    yield "filter_logits", lambda: ops.filter_logits(rows, top_k=50, impl="triton")
    yield "logprobs", lambda: ops.logprobs(rows, ids, impl="triton")


def _sample(
    count: int, vocab_size: int, dtype: torch.dtype = torch.float32, **options: Any
) -> object:
    fields = torch.arange(count)
    at = DeviceAddress(Stream.TARGET, fields, fields)
    return ops.sample(torch.zeros(count, vocab_size, dtype=dtype), at, impl="triton", **options)


def _requests(count: int, size: int, vocab_size: int) -> dict[str, Any]:
    """Verification's arguments for B requests; logits are memory that nothing reads."""
    return {
        "target_logits": torch.empty(count, size + 1, vocab_size),
        "draft_token_ids": torch.zeros(count, size, dtype=torch.int64),
        "num_draft_tokens": torch.full((count,), size),
        "draft_logits": torch.empty(count, size, vocab_size),
        "key": torch.arange(count),
        "anchor": torch.arange(count),
        "impl": "triton",
    }


def _verify(
    count: int, vocab_size: int, has_draft: bool = True, has_stats: bool = False, **options: Any
) -> object:
    call = _requests(count, NUM_DRAFTS, vocab_size)
    if not has_draft:
        call["draft_logits"] = None
    if has_stats:
        rows, num_tiles = count * NUM_DRAFTS, -(-vocab_size // TILE)
        tiles, sums = torch.zeros(2, rows, num_tiles), torch.zeros(rows, dtype=torch.int64)
        call["draft_stats"] = TileStats(tiles[0], tiles[1], torch.zeros(rows), sums)
    return ops.verify_chain(**call, **options)


def _verify_tree(vocab_size: int, **options: Any) -> object:
    return ops.verify_tree(**_requests(2, len(TREE), vocab_size), parents=list(TREE), **options)


def _process(dtype: torch.dtype) -> None:
    vocab_size, one = 100, np.array([1])
    nothing = np.zeros((1, 4), np.int64)
    paths = DraftedPaths.of_round(nothing, one, 2 * one, nothing[:, :1], one, vocab_size=vocab_size)
    params = RowParams(vocab_size=vocab_size, bias_ids=one, bias=np.ones(1), repetition=1.3)
    mask = Bitmask(0, 0, np.zeros(-(-vocab_size // 8), np.uint8))
    guard = Guard(0, np.zeros(NUM_PROBES, np.int64))
    edits = processors.pack_edits(paths, [params], dtype=dtype, bitmasks=[mask], guards=[guard])
    logits = torch.zeros(1, 2, vocab_size, dtype=dtype)
    processors.edit_rows(logits, edits)
    processors.guard_rows(logits, edits)
    processors.guard_rows(logits, edits, stand_in=logits.clone())


def every_kernel() -> set[str]:
    """Names of the kernels in `fairdraft.ops.triton`."""
    names: set[str] = set()
    for module in pkgutil.iter_modules(kernels.__path__, f"{kernels.__name__}."):
        members = vars(importlib.import_module(module.name))
        names |= {
            n for n, m in members.items() if n.endswith("_kernel") and isinstance(m, JITFunction)
        }
    return names


def compile_all(arch: str, is_quick: bool) -> dict[str, Any]:
    """Compiles for one target: every version of every kernel, what is wrong, what was left out."""
    # what is imported later, while the ops believe in an interpreter, would be made for one
    left_out = every_kernel()
    begin, bad = time.perf_counter(), []
    versions: dict[str, dict[str, Any]] = {}
    with compiling(arch) as found:
        for name, call in quick_calls() if is_quick else calls():
            del found[:]
            call()
            for one in found:
                left_out.discard(one.kernel)
                where = {"call": name, "kernel": one.kernel}
                if one.code is None:
                    bad.append(where | {"fault": one.error})
                elif one.code.hash not in versions:
                    versions[one.code.hash] = where | usage(one.code)
                    bad += [where | {"fault": fault} for fault in faults(one.code)]
    return {
        "target": arch,
        "versions": list(versions.values()),
        "kernels": len({version["kernel"] for version in versions.values()}),
        "left_out": sorted(left_out),
        "faults": bad,
        "seconds": round(time.perf_counter() - begin, 1),
    }


def main() -> int:
    """Compiles for every target asked for and prints what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer shapes and options")
    parser.add_argument("--targets", nargs="+", choices=WAVES, default=["gfx942", "gfx1100"])
    parser.add_argument("--json", type=Path, help="also write every version of every kernel here")
    arguments = parser.parse_args()
    results = [compile_all(arch, arguments.quick) for arch in arguments.targets]
    is_correct = not any(r["faults"] or (r["left_out"] and not arguments.quick) for r in results)
    document = {"is_correct": is_correct, "triton": triton.__version__}
    for result in results:
        versions = result["versions"]
        print(
            f"{result['target']}: {result['kernels']} kernels in {len(versions)} versions, "
            f"{len(result['faults'])} faults, {sum(v['spilled'] > 0 for v in versions)} versions "
            f"that spill, {len(result['left_out'])} kernels left out, {result['seconds']} s"
        )
        for fault in result["faults"]:
            print(f"  {fault['kernel']} ({fault['call']}): {fault['fault']}")
    if arguments.json:
        arguments.json.write_text(json.dumps(document | {"results": results}, indent=1) + "\n")
    short = [r | {"versions": len(r["versions"])} for r in results]
    print(json.dumps(document | {"conditions": conditions(), "results": short}))
    return 0 if is_correct else 1


if __name__ == "__main__":
    sys.exit(main())
