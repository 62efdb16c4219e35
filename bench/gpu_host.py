"""What a call of `ops.sample` and `ops.verify_chain` costs the host on a GPU, and its checks.

    python bench/gpu_host.py [--rounds N] [--json FILE]

A workspace is given and every argument is on the device. `call` is all that the host does,
`prepare` the same without the launches, and `checks` what `validate=True` adds to that. Rows are
narrow, so that the GPU keeps up and the host never waits. Axes: B requests, K drafts.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from conditions import conditions
from gpu_cases import key_of, verify_inputs
from report import CheckError, finish, refuse
from timing import interleave, seconds_per_call

from fairdraft import ops
from fairdraft.noise import Stream
from fairdraft.ops import DeviceAddress
from fairdraft.ops.triton import sampling, verification
from fairdraft.ops.triton.workspace import Workspace

VOCAB_SIZE, BATCH, NUM_DRAFTS = 2048, 16, 5
#: calls between two waits for the device; its queue holds a thousand launches
CALLS, ROUNDS = 50, 60
CHECKS_MICROSECONDS = 5.0


def main() -> None:
    """Checks that the layouts agree, measures and reports."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="samples of each figure")
    parser.add_argument("--json", type=Path, help="where the raw samples go")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        refuse("gpu_host", CheckError("there is no GPU"))
    device = torch.device("cuda", torch.cuda.current_device())
    calls = calls_of(device)
    try:
        check(calls)
    except CheckError as error:
        refuse("gpu_host", error)
    samples = measure(calls, arguments.rounds, torch.cuda.synchronize)
    document = {
        "benchmark": "gpu_host",
        "is_correct": True,
        "conditions": {
            "device": torch.cuda.get_device_name(device),
            "triton": triton.__version__,
            **conditions(),
        },
        "batch": BATCH,
        "num_drafts": NUM_DRAFTS,
        "rounds": arguments.rounds,
        "wanted_checks_microseconds": CHECKS_MICROSECONDS,
        "microseconds": figures(samples),
    }
    finish(document, samples, arguments.json)


Calls = dict[str, Callable[[bool], Any]]


def calls_of(device: torch.device) -> Calls:
    """Name to a function of `validate`."""
    inputs = verify_inputs(BATCH, VOCAB_SIZE, torch.Generator(device).manual_seed(1), NUM_DRAFTS)
    proposal = inputs.proposals["near"]
    assert proposal.logits is not None
    key, ones = key_of(BATCH, device), torch.ones(BATCH, dtype=torch.int64, device=device)
    temperature = torch.ones(BATCH, device=device)
    workspace = Workspace(device)
    drawn = partial(
        ops.sample,
        inputs.logits[:, 0],
        DeviceAddress(Stream.TARGET, key, ones),
        temperature=temperature,
        impl="triton",
        workspace=workspace,
    )
    common: dict[str, Any] = {
        "key": key,
        "anchor": ones,
        "temperature": temperature,
        "draft_stats": proposal.stats,
        "impl": "triton",
        "workspace": workspace,
    }
    padded = partial(
        ops.verify_chain,
        inputs.logits,
        proposal.token_ids,
        torch.full((BATCH,), NUM_DRAFTS, device=device),
        draft_logits=proposal.logits,
        **common,
    )
    flat = partial(
        ops.verify_chain,
        inputs.logits.view(-1, VOCAB_SIZE),
        proposal.token_ids.flatten(),
        draft_logits=proposal.logits.flatten(0, 1),
        cu_num_logits=torch.arange(BATCH + 1, device=device) * (NUM_DRAFTS + 1),
        max_spec_len=NUM_DRAFTS,
        **common,
    )
    out = drawn()
    return {
        "sample": lambda validate: drawn(out=out, validate=validate),
        "verify_chain": lambda validate: padded(validate=validate),
        "verify_chain, flat": lambda validate: flat(validate=validate),
        "verify_chain, block": lambda validate: padded(rule="block", validate=validate),
    }


def check(calls: Calls) -> None:
    """No speed counts where the layouts or the two paths give different tokens."""
    for name, call in calls.items():
        checked, unchecked = call(True), call(False)
        if not torch.equal(checked.token_ids, unchecked.token_ids):
            raise CheckError(f"{name} gives other tokens without its checks")
    if not torch.equal(
        calls["verify_chain"](True).token_ids, calls["verify_chain, flat"](True).token_ids
    ):
        raise CheckError("flat rows give other tokens than padded ones")


@contextmanager
def no_launches() -> Iterator[None]:
    """Calls that end where the launches would begin."""

    def launch(*args: Any, **options: Any) -> None:
        pass

    saved = sampling.launch_sample, verification.launch_verify
    sampling.launch_sample = verification.launch_verify = launch
    try:
        yield
    finally:
        sampling.launch_sample, verification.launch_verify = saved


def measure(calls: Calls, rounds: int, wait: Callable[[], Any]) -> dict[str, list[float]]:
    """Microseconds a call, of every figure in turn."""

    def timed(call: Callable[[bool], Any], validate: bool) -> float:
        wait()
        return 1e6 * seconds_per_call(lambda _: call(validate), CALLS)

    def prepared(call: Callable[[bool], Any], validate: bool) -> float:
        with no_launches():
            return timed(call, validate)

    subjects: dict[str, Callable[[int], float]] = {}
    for name, call in calls.items():
        for kind, sample in (("call", timed), ("prepare", prepared)):
            for state, validate in (("checked", True), ("unchecked", False)):
                bound = partial(sample, call, validate)
                subjects[f"{name}/{kind}/{state}"] = lambda _, bound=bound: bound()
    return interleave(subjects, rounds, warm_up=2)


def figures(samples: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Medians, and what the checks cost: the median difference of samples of one round."""
    out: dict[str, dict[str, float]] = {}
    for name in sorted({key.split("/")[0] for key in samples}):
        of = {
            (kind, state): samples[f"{name}/{kind}/{state}"]
            for kind in ("call", "prepare")
            for state in ("checked", "unchecked")
        }
        pairs = zip(of["prepare", "checked"], of["prepare", "unchecked"], strict=True)
        checks = statistics.median(a - b for a, b in pairs)
        call = statistics.median(of["call", "checked"])
        out[name] = {
            "call": round(call, 2),
            "call_unchecked": round(statistics.median(of["call", "unchecked"]), 2),
            "prepare": round(statistics.median(of["prepare", "checked"]), 2),
            "prepare_unchecked": round(statistics.median(of["prepare", "unchecked"]), 2),
            "checks": round(checks, 2),
            "share_of_checks": round(checks / call, 4),
        }
    return out


if __name__ == "__main__":
    main()
