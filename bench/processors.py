"""What each processor costs a round, and how many drafts stand with and without it.

    python bench/processors.py [--quick] [--device cuda]

Times the production pipeline on B sequences of K + 1 rows after L tokens of history; the last line
of stdout is JSON. `--device cuda` times rows on a GPU instead (see `processors_gpu`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from conditions import conditions
from grammar_case import GrammarRound
from grammar_masks import KIND
from processor_cases import KINDS, Shape, plan_of, text_of
from report import CheckError, refuse
from timing import interleave, seconds_per_call, spread

from fairdraft import LLM, SamplingParams, pocket
from fairdraft.engine.processing.order import process


def timed(kind: str, shape: Shape) -> Callable[[int], float]:
    """Milliseconds of one call of the pipeline on the host, paths included."""
    plan, text = plan_of(kind, shape.vocab_size), text_of(shape)
    logits = torch.randn(shape.logits)

    def call(number: int) -> None:
        process(logits, text.paths(shape), [plan] * shape.batch, [None] * shape.batch)

    return lambda number: 1e3 * seconds_per_call(call, 3)


def timed_grammar(shape: Shape) -> Callable[[int], float]:
    """Milliseconds of one call of the pipeline under a grammar."""
    own, logits = GrammarRound(shape), torch.randn(shape.logits)
    if process(logits, own.paths(), own.plans, own.grammars):
        raise AssertionError("the text is none of the grammar's")

    def call(number: int) -> None:
        process(logits, own.paths(), own.plans, own.grammars)

    return lambda number: 1e3 * seconds_per_call(call, 3)


def copied(shape: Shape) -> Callable[[int], float]:
    """Milliseconds of a plain copy of the same rows, for scale."""
    logits = torch.randn(shape.logits)
    return lambda number: 1e3 * seconds_per_call(lambda number: logits.clone(), 3)


def acceptance(kind: str, num_tokens: int) -> dict[str, float]:
    """Share of drafts of the pocket pair that stand, processed and not, over the same prompts."""
    rates = {}
    for name, on_drafts in (("target only", False), ("drafts too", True)):
        config = {"model": str(pocket.path("draft")), "process_draft_logits": on_drafts}
        llm = LLM(str(pocket.path("target")), speculative_config=config)
        params = SamplingParams(**{"seed": 1, "n": 8, "max_tokens": num_tokens, **KINDS[kind]})
        outputs = llm.generate(["Once upon a time", "The sun was", "One day"], params)
        drafted = sum(o.metrics.num_draft_tokens for o in outputs if o.metrics)
        rates[name] = sum(o.metrics.num_accepted_tokens for o in outputs if o.metrics) / drafted
    return rates


def on_host(is_quick: bool) -> dict[str, Any]:
    """Times every kind on the host and counts drafts that stand; prints a line each."""
    shapes = [Shape(2, 2, 100, 4096)] if is_quick else [Shape(1, 4, 1000), Shape(16, 4, 1000)]
    results = []
    for shape in shapes:
        subjects = {kind: timed(kind, shape) for kind in KINDS}
        if find_spec("llguidance") is None:
            print(f"left out: {KIND}, llguidance is not installed", file=sys.stderr)
        else:
            subjects[KIND] = timed_grammar(shape)
        subjects["copy of the rows"] = copied(shape)
        for kind, samples in interleave(subjects, 3 if is_quick else 15).items():
            found = spread(samples)
            results.append({"kind": kind, "shape": shape._asdict(), "ms": found._asdict()})
            per_row = 1e3 * found.median / shape.num_rows
            print(f"B={shape.batch:3} {kind:28} {found.median:8.3f} ms  {per_row:8.1f} us a row")
    rates = {}
    if not is_quick:
        for kind in ("repetition_penalty", "presence, frequency", "logit_bias, 300 ids"):
            rates[kind] = acceptance(kind, 120)
            print(f"acceptance, {kind}: {rates[kind]}")
    return {"conditions": conditions(), "results": results, "acceptance": rates}


def main() -> None:
    """Prints a table of the costs and one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="toy size")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    if options.device == "cpu":
        print(json.dumps(on_host(options.quick)))
        return
    import processors_gpu

    try:
        print(json.dumps(processors_gpu.measure(options.quick)))
    except CheckError as error:
        refuse("processors", error)


if __name__ == "__main__":
    main()
