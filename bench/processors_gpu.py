"""What processors of rows cost on a GPU: the device's time, the host's, and what both wait for.

Device time comes from CUDA events around a replayed graph, over sets of rows that do not fit in the
second-level cache. The host's time ends when a round is submitted. Waiting is apart from both: how
long a synchronization takes is the machine's, and one after another the processors wait for every
list that they send. Masks of a grammar were recorded before (`grammar_masks`, whose file also says
what matching takes): what is timed is to pack, send and apply them, so llguidance is not needed.

Axes: B requests, K drafts, V ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gpu_ops import _conditions as device_conditions
from gpu_ops import time_graph
from grammar_masks import KIND as GRAMMAR
from grammar_masks import recorded_round
from processor_cases import KINDS as MADE
from processor_cases import Round, Shape
from processor_cases import round_of as made_round
from report import CheckError
from timing import Spread, interleave, spread
from torch import Tensor

from fairdraft.engine.processing.device import process_on_device
from fairdraft.engine.processing.grammar import match_grammar
from fairdraft.engine.processing.order import probes_of, process
from fairdraft.ops import processors
from fairdraft.ops.processors import Bitmask, Edits, Guard

SHAPES = [Shape(1, 3, 1000), Shape(16, 3, 1000), Shape(16, 3, 8000), Shape(64, 3, 1000)]
QUICK_SHAPES = [Shape(2, 3, 100)]
#: a custom processor waits twice a row
CUSTOM_SHAPES = [*SHAPES[:2], *QUICK_SHAPES]
KINDS = (*MADE, GRAMMAR)
ROTATION_BYTES, LEAST_SETS, MOST_SETS = 200 << 20, 2, 64
#: samples of the host's time, and of processors one after another
HOST_ROUNDS, SLOW_ROUNDS = 25, 5
DEVICE = "cuda"
#: what is timed of a round, each in microseconds
COLUMNS = ("device_us", "submit_us", "whole_us", "one_after_another_us")


def measure(is_quick: bool) -> dict[str, Any]:
    """Checks every kind against the host, then times it; prints a line each.

    Raises:
        CheckError: If there is no GPU, a number differs, or a round waits for the device.
    """
    if not torch.cuda.is_available():
        raise CheckError("there is no GPU")
    for kind in KINDS:
        _check(kind, Shape(3, 3, 300))
    results = []
    for shape in QUICK_SHAPES if is_quick else SHAPES:
        size = shape.num_rows * shape.vocab_size * 4
        count = min(MOST_SETS, max(LEAST_SETS, ROTATION_BYTES // size + 1))
        sets = [torch.randn(shape.logits, device=DEVICE) for _ in range(count)]
        floors = _floors(sets)
        for kind in ("nothing", *KINDS):
            if kind.startswith("custom") and shape not in CUSTOM_SHAPES:
                continue
            result = {"kind": kind, "shape": shape._asdict(), **_measure(kind, shape, sets)}
            results.append(result)
            print(_line(result, shape), flush=True)
        for name, found in floors.items():
            results.append({"kind": name, "shape": shape._asdict(), "device_us": found._asdict()})
            print(_line(results[-1], shape), flush=True)
    waits = _waits()
    for name, found in waits.items():
        print(f"{name}: {found.median:.1f} us ({found.p25:.1f} to {found.p75:.1f})")
    for shape in QUICK_SHAPES if is_quick else SHAPES:
        print(f"\n{shape}\n{_markdown(results, shape)}")
    return {
        "benchmark": "processors",
        "is_correct": True,
        "conditions": device_conditions(torch.device(DEVICE, torch.cuda.current_device())),
        "results": results,
        "waits_us": {name: found._asdict() for name, found in waits.items()},
    }


def round_of(kind: str, shape: Shape) -> Round:
    """A round of one kind; the masks of a grammar were recorded."""
    return recorded_round(shape) if kind == GRAMMAR else made_round(kind, shape)


def _packed(own: Round) -> Edits:
    guards = [
        Guard(c, probes_of(plan, own.paths.vocab_size))
        for c, plan in enumerate(own.plans)
        if plan.mask_names
    ]
    bitmasks = []
    for c, grammar in enumerate(own.grammars):
        if grammar is not None:
            matched = match_grammar(own.paths, c, grammar)
            pairs = zip(matched.rows, matched.masks, strict=True)
            bitmasks += [Bitmask(c, row, bits) for row, bits in pairs]
    params = [plan.row_params for plan in own.plans]
    return processors.pack_edits(
        own.paths, params, device=DEVICE, tallies=own.tallies, bitmasks=bitmasks, guards=guards
    )


def _apply(logits: Tensor, edits: Edits) -> None:
    processors.edit_rows(logits, edits)
    processors.guard_rows(logits, edits)


def _process(own: Round, logits: Tensor) -> None:
    process_on_device(logits, own.paths, own.plans, own.grammars, own.tallies)


def _check(kind: str, shape: Shape) -> None:
    """The kernels' numbers are the host's; only a custom processor may wait."""
    own = round_of(kind, shape)
    expected = torch.randn(shape.logits, generator=torch.Generator().manual_seed(1))
    logits = expected.to(DEVICE)
    process(expected, own.paths, own.plans, own.grammars)
    _process(own, logits)
    if not torch.equal(logits.cpu(), expected):
        raise CheckError(f"{kind}: rows differ from the host's")
    if own.plans[0].processors:
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        _process(own, logits)
    except RuntimeError as error:
        raise CheckError(f"{kind}: a round waits for the device: {error}") from None
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _measure(kind: str, shape: Shape, sets: list[Tensor]) -> dict[str, Any]:
    """Microseconds of a round: on the device, to submit, to the end, and one after another."""
    own = round_of(kind, shape)
    found: dict[str, Any] = {}
    is_custom = bool(own.plans[0].processors)
    # what was masked before would be looked for in whole rows
    for logits in sets:
        logits.normal_()
    if not is_custom:
        edits = _packed(own)
        found["words"] = len(edits.words)
        calls = [lambda logits=logits: _apply(logits, edits) for logits in sets]
        found["device_us"] = spread(time_graph(calls)[0].samples)._asdict()
    logits = sets[0]
    subjects: dict[str, Callable[[int], float]] = {
        "submit_us": lambda _: _microseconds(lambda: _process(own, logits), waits=False),
        "whole_us": lambda _: _microseconds(lambda: _process(own, logits), waits=True),
    }
    slow = {
        "one_after_another_us": lambda _: _microseconds(
            lambda: process(logits, own.paths, own.plans, own.grammars), waits=True
        )
    }
    fast_rounds = SLOW_ROUNDS if is_custom else HOST_ROUNDS
    for names, rounds in ((subjects, fast_rounds), (slow, SLOW_ROUNDS)):
        for name, samples in interleave(names, rounds, warm_up=2).items():
            found[name] = spread(samples)._asdict()
    return found


def _floors(sets: list[Tensor]) -> dict[str, Spread]:
    """Reading and writing every row, and writing it alone."""
    out = torch.empty_like(sets[0])
    calls = {
        "a copy of the rows": [lambda logits=logits: out.copy_(logits) for logits in sets],
        "one write of the rows": [lambda logits=logits: logits.fill_(0.5) for logits in sets],
    }
    found = {name: spread(time_graph(own)[0].samples) for name, own in calls.items()}
    return found


def _waits() -> dict[str, Spread]:
    """What it costs the host to wait, whatever for."""
    word = torch.zeros(1, device=DEVICE)
    ids = torch.from_numpy(np.arange(1000))
    subjects = {
        "a synchronization with nothing to wait for": lambda: None,
        "an addition of one number and a synchronization": lambda: word.add_(1),
        "a list of 1,000 ids sent from memory that is not pinned": lambda: ids.to(DEVICE),
    }
    timed = {
        name: lambda _, call=call: _microseconds(call, waits=True)
        for name, call in subjects.items()
    }
    return {name: spread(samples) for name, samples in interleave(timed, HOST_ROUNDS).items()}


def _microseconds(call: Callable[[], object], *, waits: bool) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    if waits:
        torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - begin)


def _markdown(results: list[dict[str, Any]], shape: Shape) -> str:
    """Medians of one shape as a table of `docs/processors.md`, quartiles of the device's time."""
    lines = [
        "| parameter | device, us | us a row | to submit, us | to the end, us | one by one, us |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        if result["shape"] != shape._asdict():
            continue
        medians = [result[n]["median"] if n in result else None for n in COLUMNS]
        cells = [result["kind"], *("-" if m is None else f"{m:,.1f}" for m in medians)]
        if medians[0] is not None:
            device = result["device_us"]
            cells[1] += f" ({device['p25']:.1f} to {device['p75']:.1f})"
        cells.insert(2, "-" if medians[0] is None else f"{medians[0] / shape.num_rows:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _line(result: dict[str, Any], shape: Shape) -> str:
    parts = [f"B={shape.batch:3} L={shape.length:5} {result['kind']:26}"]
    for name in COLUMNS:
        found = result.get(name)
        parts.append(f"{name} {found['median']:9.1f}" if found else " " * (len(name) + 10))
    device = result.get("device_us")
    parts.append(f"a row {device['median'] / shape.num_rows:.3f} us" if device else "")
    return "  ".join(parts)
