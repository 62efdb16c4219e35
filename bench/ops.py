"""Sampling and verification on the CPU against plain torch, with the read floor beside them.

    python bench/ops.py [--quick] [--threads 1 2] [--json FILE] [--picture FILE]

Subjects take turns on the same inputs; big inputs rotate through more memory than a cache holds.
Nothing is timed before both implementations of the ops agree on every token.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import baselines
import numpy as np
import torch
from conditions import conditions, describe, thread_counts
from report import (
    CheckError,
    Target,
    finish,
    refuse,
    show_table,
    show_targets,
    targets_json,
)
from timing import calls_for, interleave, paired_ratio, seconds_per_call, spread
from torch import Tensor

from fairdraft import noise, ops
from fairdraft.noise import Stream

NUM_DRAFTS = 4
#: inputs above this size rotate, so that none is still in a cache when its turn comes
ROTATED_BYTES = 1 << 20
ROTATION_BYTES = 128 << 20
FAR_ELEMENTS = 131072
OURS = {"sample": ("race", "gumbel"), "verify": ("verify_chain",)}
BASELINES = {"sample": ("inverse CDF", "exponential_"), "verify": ("torch",)}


class Case(NamedTuple):
    """One shape of one op."""

    op: str
    threads: int
    dtype: str
    vocab_size: int
    num_rows: int

    @property
    def is_far(self) -> bool:
        """Whether the op has to be ahead here, not only near."""
        return self.num_rows * self.vocab_size >= FAR_ELEMENTS


class Inputs(NamedTuple):
    """Logits of a verification and drafts drawn from the draft's law."""

    target: Tensor  # [B, K + 1, V]
    draft: Tensor  # [B, K, V]
    token_ids: Tensor  # int64 [B, K]


def main() -> None:
    """Checks, measures and reports."""
    arguments = _arguments()
    before = conditions()
    print(describe(before))
    cases = list(_cases(arguments))
    try:
        for vocab_size in arguments.vocabulary:
            check_tokens(vocab_size)
    except CheckError as error:
        refuse("ops", error)
    results = [_measure(case, arguments) for case in cases]
    _show(results)
    targets = list(_targets(results))
    show_targets(targets)
    document = {
        "benchmark": "ops",
        "is_correct": True,
        "conditions": before,
        "load_average_after": conditions()["load_average"],
        "num_drafts": NUM_DRAFTS,
        "rounds": arguments.rounds,
        "targets": targets_json(targets),
        "results": [{k: v for k, v in result.items() if k != "samples"} for result in results],
    }
    if arguments.picture is not None:
        from picture import draw_ops

        draw_ops(results, describe(before), arguments.picture)
    raw = {_key(result): result["samples"] for result in results}
    finish(document, raw, arguments.json)


def check_tokens(vocab_size: int) -> None:
    """Refuses to go on unless the fast path and the reference draw the same tokens."""
    inputs = _inputs(2, vocab_size, torch.Generator().manual_seed(vocab_size))
    logits = inputs.target[:, 0]
    at = _addresses(len(logits), 1)[0]
    for method in ("race", "gumbel"):
        drawn = [ops.sample(logits, at, method=method, impl=i) for i in ("cpu", "reference")]
        if not torch.equal(drawn[0].token_ids, drawn[1].token_ids):
            raise CheckError(f"sample({method!r}) differs from its reference at V = {vocab_size}")
    verdicts = [_verify(inputs, 0, impl) for impl in ("cpu", "reference")]
    if not torch.equal(verdicts[0].token_ids, verdicts[1].token_ids):
        raise CheckError(f"verify_chain differs from its reference at V = {vocab_size}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[4096, 32768, 131072])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--threads", type=int, nargs="+", help="of torch; default 1 and all")
    parser.add_argument("--rounds", type=int, default=20, help="samples of each subject")
    parser.add_argument("--seconds", type=float, default=0.01, help="least length of a sample")
    parser.add_argument("--quick", action="store_true", help="toy sizes, in seconds")
    parser.add_argument("--json", type=Path, help="where the raw samples go")
    parser.add_argument("--picture", type=Path, help="where a chart goes; needs matplotlib")
    arguments = parser.parse_args()
    arguments.threads = thread_counts(arguments.threads)
    if arguments.quick:
        arguments.vocabulary, arguments.batch, arguments.threads = [1000], [1, 2], [1]
        arguments.rounds, arguments.seconds = 2, 0.001
    return arguments


def _cases(arguments: argparse.Namespace) -> Iterator[Case]:
    for threads, vocab_size, num_rows in product(
        arguments.threads, arguments.vocabulary, arguments.batch
    ):
        yield Case("sample", threads, "float32", vocab_size, num_rows)
        yield Case("verify", threads, "float32", vocab_size, num_rows)
    for threads, vocab_size in product(arguments.threads, arguments.vocabulary):
        yield Case("sample", threads, "bfloat16", vocab_size, arguments.batch[-1])


def _measure(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(case.threads)
    torch.manual_seed(0)
    calls, extra = (_sample_calls if case.op == "sample" else _verify_calls)(case)
    subjects = {}
    for name, call in calls.items():
        count = calls_for(call, arguments.seconds)
        subjects[name] = lambda number, call=call, count=count: seconds_per_call(
            lambda i: call(number * count + i), count
        )
    samples = interleave(subjects, arguments.rounds)
    ratios = {
        f"{base} / {ours}": paired_ratio(samples[base], samples[ours])
        for ours in OURS[case.op]
        for base in BASELINES[case.op]
    }
    return {
        **case._asdict(),
        **extra,
        "microseconds": {n: _rounded(spread([1e6 * x for x in s])) for n, s in samples.items()},
        "ratios": {name: _rounded(ratio) for name, ratio in ratios.items()},
        "samples": samples,
    }


Calls = dict[str, Callable[[int], object]]


def _sample_calls(case: Case) -> tuple[Calls, dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    dtype = getattr(torch, case.dtype)
    shape = (case.num_rows, case.vocab_size)
    num_bytes = case.num_rows * case.vocab_size * dtype.itemsize
    inputs = [
        (2.5 * torch.randn(shape, generator=generator)).to(dtype) for _ in range(_copies(num_bytes))
    ]
    at = _addresses(case.num_rows, 64)

    def ours(method: Any) -> Callable[[int], object]:
        return lambda i: ops.sample(inputs[i % len(inputs)], at[i % 64], method=method)

    def theirs(function: Callable[[Tensor], Tensor]) -> Callable[[int], object]:
        return lambda i: function(inputs[i % len(inputs)])

    calls = {
        "race": ours("race"),
        "inverse CDF": theirs(baselines.inverse_cdf),
        "gumbel": ours("gumbel"),
        "exponential_": theirs(baselines.gumbel),
        "multinomial": theirs(baselines.multinomial),
        "read": theirs(baselines.read),
    }
    return calls, {"inputs": len(inputs)}


def _verify_calls(case: Case) -> tuple[Calls, dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    num_bytes = case.num_rows * case.vocab_size * 4 * (2 * NUM_DRAFTS + 1)
    inputs = [_inputs(case.num_rows, case.vocab_size, generator) for _ in range(_copies(num_bytes))]
    count = len(inputs)
    accepted = [
        float(_verify(inputs[i % count], i).num_accepted_tokens.double().mean()) for i in range(16)
    ]
    calls: Calls = {
        "verify_chain": lambda i: _verify(inputs[i % count], i),
        "torch": lambda i: baselines.verify(*inputs[i % count]),
        "read": lambda i: [baselines.read(rows) for rows in inputs[i % count][:2]],
    }
    return calls, {"inputs": count, "mean_accepted": round(sum(accepted) / 16, 2)}


def _inputs(num_rows: int, vocab_size: int, generator: torch.Generator) -> Inputs:
    """A draft near its target, as a good one is, and tokens drawn from it."""
    target = 2.5 * torch.randn(num_rows, NUM_DRAFTS + 1, vocab_size, generator=generator)
    draft = target[:, :-1] + 0.7 * torch.randn(
        num_rows, NUM_DRAFTS, vocab_size, generator=generator
    )
    token_ids = baselines.inverse_cdf(draft.flatten(0, 1)).view(num_rows, NUM_DRAFTS)
    return Inputs(target, draft, token_ids)


def _verify(inputs: Inputs, anchor: int, impl: Any = "auto") -> ops.Verdict:
    num_rows = len(inputs.target)
    return ops.verify_chain(
        inputs.target,
        inputs.token_ids,
        np.full(num_rows, NUM_DRAFTS),
        draft_logits=inputs.draft,
        key=np.arange(num_rows, dtype=np.uint64),
        anchor=abs(anchor),
        impl=impl,
    )


def _addresses(num_rows: int, count: int) -> list[noise.Address]:
    keys = np.arange(num_rows, dtype=np.uint64)
    return [noise.address(Stream.TARGET, key=keys, position=i) for i in range(count)]


def _copies(num_bytes: int) -> int:
    return 1 if num_bytes < ROTATED_BYTES else max(2, -(-ROTATION_BYTES // num_bytes))


def _rounded(values: Any) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in values._asdict().items()}


def _mark(result: dict[str, Any]) -> str:
    return " bf16" if result["dtype"] == "bfloat16" else ""


def _with_spread(time: dict[str, float]) -> str:
    return f"{time['median']:.4g} ±{50 * (time['p75'] - time['p25']) / time['median']:.0f}%"


def _key(result: dict[str, Any]) -> str:
    return "/".join(str(result[name]) for name in Case._fields)


def _targets(results: list[dict[str, Any]]) -> Iterator[Target]:
    """The worst case on either side of the border, against the faster baseline."""
    for op, is_far in product(OURS, (True, False)):
        worst = [
            min(result["ratios"][f"{base} / {OURS[op][0]}"]["median"] for base in BASELINES[op])
            for result in results
            if result["op"] == op
            and result["dtype"] == "float32"
            and (result["num_rows"] * result["vocab_size"] >= FAR_ELEMENTS) == is_far
        ]
        if worst:
            where = "from" if is_far else "below"
            name = f"{op}: fastest torch time over ours, worst case {where} B x V = {FAR_ELEMENTS}"
            yield Target(name, min(worst), 1.0 if is_far else 1 / 1.5)


def _show(results: list[dict[str, Any]]) -> None:
    for op in OURS:
        chosen = [result for result in results if result["op"] == op]
        names = list(chosen[0]["microseconds"])
        ratios = [f"{base} / {OURS[op][0]}" for base in BASELINES[op]]
        rows = []
        for result in chosen:
            times = [result["microseconds"][name] for name in names]
            rows.append(
                (
                    f"{result['num_rows']} x {result['vocab_size']}{_mark(result)}",
                    str(result["threads"]),
                    *(_with_spread(time) for time in times),
                    *(f"{result['ratios'][name]['median']:.2f}" for name in ratios),
                )
            )
        show_table(
            f"{op}: microseconds a call, median and half the interquartile range",
            ("B x V", "threads", *names, *ratios),
            rows,
        )


if __name__ == "__main__":
    main()
