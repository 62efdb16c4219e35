"""What an audit costs a token, on one core: laws to evidence.

    python bench/audit.py [--quick] [--json FILE]

"statistics" is everything after compaction: families, templates, evidence. "pipeline" begins with
dense float32 laws of target and draft over the whole vocabulary, as an engine hands them over.
Times are CPU seconds of the process, all on one core, so that a busy machine adds little.
Nothing is timed before the evidence has passed a correct decoder by and failed a planted fault.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from conditions import conditions, describe
from report import CheckError, Target, finish, refuse, show_table, show_targets, targets_json
from simulate import RULES, Pair, simulate
from timing import interleave, spread

from fairdraft.stats import Evidence, EvidenceSettings, ScoredTokens, VerdictState
from fairdraft.stats.families import FAMILIES
from fairdraft.stats.intake import MAX_COLUMNS, take_in
from fairdraft.stats.templates import TEMPLATES
from fairdraft.stats.view import View

SETTINGS = EvidenceSettings(alpha=1e-6, sampler="gumbel", rule="token")
#: tokens a text and drafts a round of the batches that are timed
LENGTH, NUM_DRAFTS = 64, 4
MOST_MICROSECONDS = 150.0
LEAST_TOKENS_PER_SECOND = 300.0


def main() -> None:
    """Checks, measures and reports."""
    arguments = _arguments()
    before = conditions()
    print(describe(before))
    try:
        check_verdicts()
    except CheckError as error:
        refuse("audit", error)
    results = [
        _measure(vocab_size, sampler, arguments)
        for vocab_size, sampler in itertools.product(arguments.vocabulary, arguments.sampler)
    ]
    _show(results)
    targets = _targets(results)
    show_targets(targets)
    document = {
        "benchmark": "audit",
        "is_correct": True,
        "conditions": before,
        "load_average_after": conditions()["load_average"],
        "columns": MAX_COLUMNS,
        "rounds": arguments.rounds,
        "targets": targets_json(targets),
        "results": [{k: v for k, v in result.items() if k != "samples"} for result in results],
    }
    raw = {f"{r['vocab_size']}/{r['sampler']}": r["samples"] for r in results}
    finish(document, raw, arguments.json)


def check_verdicts() -> None:
    """Refuses to go on unless a planted fault fails, by name, and a correct decoder does not."""
    pair = Pair.random(16, seed=3)
    wanted = {"token rule": None, "shared noise": "draft and residual share noise"}
    for name, diagnosis in wanted.items():
        texts = simulate(
            pair,
            num_texts=1024,
            length=32,
            num_drafts=3,
            generator=np.random.default_rng(7),
            rule=RULES[name],
        )
        evidence = Evidence(SETTINGS)
        evidence.add(texts.scored(pair))
        verdict = evidence.verdict()
        state = VerdictState.FAIL if diagnosis else VerdictState.INCONCLUSIVE
        if (verdict.state, verdict.diagnosis) != (state, diagnosis):
            raise CheckError(f"{name}: {verdict.sentence} ({verdict.diagnosis})")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[4096, 150_000])
    parser.add_argument("--sampler", nargs="+", default=["gumbel", "inverse_cdf", "race"])
    parser.add_argument("--tokens", type=int, default=1024, help="a batch, at most 2^26 / V")
    parser.add_argument("--rounds", type=int, default=7, help="samples of each subject")
    parser.add_argument("--quick", action="store_true", help="toy sizes, in seconds")
    parser.add_argument("--json", type=Path, help="where the raw samples go")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.vocabulary, arguments.sampler = [600], ["gumbel"]
        arguments.tokens, arguments.rounds = 128, 2
    return arguments


def _measure(vocab_size: int, sampler: str, arguments: argparse.Namespace) -> dict[str, Any]:
    settings = replace(SETTINGS, sampler=sampler)
    tokens = _tokens(vocab_size, min(arguments.tokens, (1 << 26) // vocab_size))
    narrow = take_in(tokens).tokens
    allowed = [family for family in FAMILIES if not family.rules or "token" in family.rules]

    def families() -> None:
        view = View(narrow)
        for family in allowed:
            family.cells(view)

    def templates() -> None:
        for template in TEMPLATES:
            template.law(narrow, sampler)

    calls = {
        "intake": lambda: take_in(tokens),
        "families": families,
        "templates": templates,
        "statistics": lambda: Evidence(settings).add(narrow),
        "pipeline": lambda: Evidence(settings).add(tokens),
    }
    subjects = {
        name: lambda _, call=call: _cpu_seconds(call) / len(tokens) for name, call in calls.items()
    }
    samples = interleave(subjects, arguments.rounds)
    return {
        "vocab_size": vocab_size,
        "sampler": sampler,
        "tokens": len(tokens),
        "threads": 1,
        "microseconds": {
            name: {k: float(f"{1e6 * v:.4g}") for k, v in spread(values)._asdict().items()}
            for name, values in samples.items()
        },
        "tokens_per_second": float(f"{1.0 / spread(samples['pipeline']).median:.4g}"),
        "samples": samples,
    }


def _cpu_seconds(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def _tokens(vocab_size: int, num_tokens: int) -> ScoredTokens:
    """Zipf-like laws and a draft near them; the tokens follow the target."""
    generator = np.random.default_rng(1)
    rank = np.log(np.arange(1, vocab_size + 1, dtype=np.float32))
    shape = (num_tokens, vocab_size)
    laws = []
    logits = -1.2 * np.stack([generator.permutation(rank) for _ in range(num_tokens)])
    for noise in (0.0, 0.7):
        law = logits + np.float32(noise) * generator.standard_normal(shape, np.float32)
        np.exp(law, out=law)
        law /= law.sum(axis=1, keepdims=True)
        laws.append(law)
    goal = generator.random(num_tokens)[:, None]
    column = np.minimum((np.cumsum(laws[0], axis=1) < goal).sum(axis=1), vocab_size - 1)
    at = np.arange(num_tokens)
    previous = np.stack([np.roll(column, 1), np.roll(column, 2)], axis=1)
    slot = at % (NUM_DRAFTS + 1)
    return ScoredTokens(
        column=column,
        target=laws[0],
        ids=None,
        draft=laws[1],
        text=at // LENGTH,
        position=at % LENGTH,
        slot=slot,
        source=np.where(slot == NUM_DRAFTS, 2, 1).astype(np.int8),
        drafted=column,
        previous=previous,
    )


def _targets(results: list[dict[str, Any]]) -> list[Target]:
    narrow = min(result["vocab_size"] for result in results)
    wide = max(result["vocab_size"] for result in results)
    cost = max(
        result["microseconds"]["statistics"]["median"]
        for result in results
        if result["vocab_size"] == narrow
    )
    speed = min(r["tokens_per_second"] for r in results if r["vocab_size"] == wide)
    return [
        Target(
            f"families and templates: CPU microseconds a token at V = {narrow}, slowest sampler",
            cost,
            MOST_MICROSECONDS,
            at_least=False,
        ),
        Target(
            f"pipeline: tokens a CPU second at V = {wide}, slowest sampler",
            speed,
            LEAST_TOKENS_PER_SECOND,
        ),
    ]


def _show(results: list[dict[str, Any]]) -> None:
    names = list(results[0]["microseconds"])
    rows = []
    for result in results:
        times = result["microseconds"]
        rows.append(
            (
                f"{result['vocab_size']}, {result['sampler']}",
                str(result["tokens"]),
                *(f"{times[name]['median']:.4g}" for name in names),
                f"{result['tokens_per_second']:.4g}",
            )
        )
    show_table(
        "audit: CPU microseconds a token, median",
        ("V, sampler", "tokens", *names, "tokens/s"),
        rows,
    )


if __name__ == "__main__":
    main()
