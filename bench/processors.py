"""What each processor costs a round, on the host, and how many drafts stand with and without it.

Times the production pipeline on B sequences of K + 1 rows after L tokens of history; the last line
of stdout is JSON. `--device cuda` times rows that live on a GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from conditions import conditions
from timing import interleave, seconds_per_call, spread

from fairdraft import LLM, SamplingParams, pocket
from fairdraft.engine.processing.order import process
from fairdraft.engine.processing.plan import compile_plan
from fairdraft.ops.processors import DraftedPaths

#: what a request asks for, for a vocabulary of at least 4,096
KINDS: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.2},
    "presence, frequency": {"presence_penalty": 0.5, "frequency_penalty": 0.5},
    "logit_bias, 300 ids": {"logit_bias": {3 * i: 1.0 for i in range(300)}},
    "allowed_token_ids, 1,000": {"allowed_token_ids": list(range(0, 4000, 4))},
    "bad_words_ids, 100": {"bad_words_ids": [[i, i + 1, i + 2] for i in range(100)]},
    "no_repeat_ngram_size 3": {"no_repeat_ngram_size": 3},
    "min_tokens": {"min_tokens": 4000, "max_tokens": 5000},
    "custom, by path": {"logits_processors": [lambda ids, scores: scores]},
}


def timed(kind: str, shape: tuple[int, int, int, int], device: str) -> Callable[[int], float]:
    """Milliseconds of one call of the pipeline, paths included."""
    count, depth, length, vocab_size = shape
    generator = np.random.default_rng(0)
    target: Any = SimpleNamespace(
        vocab_size=vocab_size, eos_token_ids=frozenset({2}), tokenizer=None, name="bench"
    )
    plan = compile_plan(SamplingParams(**KINDS[kind]), target, "bench")
    assert plan is not None
    # half of the history is distinct, as in text
    text = generator.integers(0, length // 2, (count, length))
    drafts = generator.integers(0, length // 2, (count, depth))
    logits = torch.randn(count, depth + 1, vocab_size, device=device)
    decided = np.full(count, length)

    def call(number: int) -> None:
        paths = DraftedPaths.of_round(
            text, decided // 4, decided, drafts, np.full(count, depth), vocab_size=vocab_size
        )
        process(logits, paths, [plan] * count, [None] * count)
        if device != "cpu":
            torch.cuda.synchronize()

    return lambda number: 1e3 * seconds_per_call(call, 3)


def copied(shape: tuple[int, int, int, int], device: str) -> Callable[[int], float]:
    """Milliseconds of a plain copy of the same rows, for scale."""
    logits = torch.randn(shape[0], shape[1] + 1, shape[3], device=device)

    def call(number: int) -> None:
        logits.clone()
        if device != "cpu":
            torch.cuda.synchronize()

    return lambda number: 1e3 * seconds_per_call(call, 3)


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


def main() -> None:
    """Prints a table of the costs and one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="toy size")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    shapes = [(1, 4, 1000, 151_936), (16, 4, 1000, 151_936)]
    if options.quick:
        shapes = [(2, 2, 100, 4096)]
    results = []
    for shape in shapes:
        subjects = {kind: timed(kind, shape, options.device) for kind in KINDS}
        subjects["copy of the rows"] = copied(shape, options.device)
        for kind, samples in interleave(subjects, 3 if options.quick else 15).items():
            found = spread(samples)
            results.append({"kind": kind, "shape": shape, "ms": found._asdict()})
            per_row = 1e3 * found.median / (shape[0] * (shape[1] + 1))
            print(f"B={shape[0]:3} {kind:28} {found.median:8.3f} ms  {per_row:8.1f} us a row")
    rates = {}
    if not options.quick:
        for kind in ("repetition_penalty", "presence, frequency", "logit_bias, 300 ids"):
            rates[kind] = acceptance(kind, 120)
            print(f"acceptance, {kind}: {rates[kind]}")
    document = {"conditions": conditions(), "results": results, "acceptance": rates}
    print(json.dumps(document))


if __name__ == "__main__":
    main()
