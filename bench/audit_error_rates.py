"""The auditor audits itself: how often it is wrong about simulated decoders.

    python bench/audit_error_rates.py [--quick] [--runs 5000] [--json FILE]

Every run goes through the production `Evidence`, looked at after every batch, and any look counts:
the rates are those of somebody who stops whenever it suits him. Four kinds of decoder:

- null: the token rule with drafts, exact; nothing may reach 1 / alpha more often than alpha.
- edge of eps0: every token's law is off by eps0 in total variation, always in one direction; with
  the tolerance eps0 that is no fault.
- edge of eps, two laws: every token's law is off by eps on the q/p octiles; PASS would be false.

Rates come with Clopper-Pearson limits of 95% (each side 2.5%).
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from conditions import conditions, describe
from report import Target, finish, show_table, show_targets, targets_json
from simulate import Pair, direct, simulate, tilted

from fairdraft.stats import (
    FAMILIES,
    TEMPLATES,
    Evidence,
    EvidenceSettings,
    VerdictState,
    clopper_pearson,
)

ALPHAS = (0.05, 0.01, 0.001)
#: laws of the edge of eps: octiles that gain
EDGES = {"upper half": (4, 5, 6, 7), "every second": (1, 3, 5, 7)}
SAMPLERS = ("gumbel", "race", "inverse_cdf")
Seed = int | tuple[int, int]
VOCAB_SIZE, NUM_DRAFTS, LENGTH = 16, 3, 32
NULL_EPS, EDGE_EPS, EDGE_EPS0 = 0.01, 0.1, 0.02
#: runs that are simulated in step
RUNS_AT_ONCE = 50


@dataclass(frozen=True)
class Scale:
    """How much is run.

    Attributes:
        runs: Null runs.
        eps0_runs: Runs at the edge of eps0.
        eps_runs: Runs at the edge of eps, for each law.
        exact_runs: Exact runs with the same settings.
        tokens: Tokens of a null run.
        edge_tokens: Tokens of a run at the edge of eps; enough for an exact decoder to PASS.
        batch: Tokens between looks.
        edge_batch: The same at the edge of eps.
    """

    runs: int = 5000
    eps0_runs: int = 1000
    eps_runs: int = 600
    exact_runs: int = 100
    tokens: int = 2048
    edge_tokens: int = 4608
    batch: int = 256
    edge_batch: int = 1536


@dataclass(frozen=True)
class Run:
    """One run: natural logs of the most each process reached, and the states seen.

    Attributes:
        merged: Most merged evidence.
        parts: Most evidence of each process, diagnostic ones too.
        states: States of the verdict, one a look.
    """

    merged: float
    parts: dict[str, float]
    states: tuple[VerdictState, ...]


def main() -> None:
    """Runs everything and reports."""
    arguments = _arguments()
    scale = Scale(runs=arguments.runs)
    if arguments.quick:
        scale = Scale(8, 4, 2, 2, tokens=512, edge_tokens=1024)
    before = conditions()
    print(describe(before))
    begin = time.perf_counter()
    with ProcessPoolExecutor(arguments.workers, get_context("spawn")) as pool:
        null = _spread(pool, scale, "null", seed=1)
        edge0 = _spread(pool, scale, "edge of eps0", seed=2)
        edges = {name: _spread(pool, scale, name, seed=3 + i) for i, name in enumerate(EDGES)}
        exact = _spread(pool, scale, "exact", seed=9)
    seconds = time.perf_counter() - begin
    alarms = false_alarms(null)
    robust = false_alarms(edge0)
    passes = {name: false_passes(runs) for name, runs in edges.items()}
    power = rate(sum(VerdictState.PASS in run.states for run in exact), len(exact))
    targets = _targets(alarms, robust, passes)
    _show(alarms, robust, passes, power)
    show_targets(targets)
    document = {
        "benchmark": "audit_error_rates",
        "is_correct": all(target.is_met for target in targets if "lower limit" in target.name),
        "conditions": before,
        "seconds": round(seconds, 1),
        "workers": arguments.workers,
        "scale": {**scale.__dict__, "length": LENGTH, "num_drafts": NUM_DRAFTS},
        "vocab_size": VOCAB_SIZE,
        "eps": EDGE_EPS,
        "eps0": EDGE_EPS0,
        "delta": EvidenceSettings().delta,
        "targets": targets_json(targets),
        "false_alarms": alarms,
        "false_alarms_at_eps0": robust,
        "false_passes": passes,
        "passes_when_exact": power,
    }
    raw = {
        "null": [_log10(run.merged) for run in null],
        "eps0": [_log10(run.merged) for run in edge0],
    }
    finish(document, raw, arguments.json)


def null_runs(scale: Scale, seed: Seed) -> Iterator[Run]:
    """Exact decoders; samplers, for the templates' sake, in turn."""
    pair = Pair.random(VOCAB_SIZE, seed=3)
    generator = np.random.default_rng(seed)
    number = 0
    while number < scale.runs:
        count = min(RUNS_AT_ONCE, scale.runs - number)
        texts = scale.tokens // LENGTH
        played = simulate(
            pair,
            num_texts=count * texts,
            length=LENGTH,
            num_drafts=NUM_DRAFTS,
            generator=generator,
        )
        for run in range(count):
            settings = EvidenceSettings(
                eps=NULL_EPS, sampler=SAMPLERS[(number + run) % 3], rule="token"
            )
            part = played.take(slice(run * texts, (run + 1) * texts))
            yield _followed(settings, pair, part, scale.batch)
        number += count


def eps0_runs(scale: Scale, seed: Seed) -> Iterator[Run]:
    """Decoders whose every law is off by eps0, which is tolerated."""
    settings = EvidenceSettings(eps=NULL_EPS, eps0=EDGE_EPS0)
    law = (EDGES["upper half"], EDGE_EPS0)
    yield from _edge_runs(settings, law, scale.eps0_runs, scale.tokens, scale.batch, seed)


def eps_runs(scale: Scale, name: str, seed: Seed) -> Iterator[Run]:
    """Decoders whose every law is off by eps on the octiles, which no PASS may cover."""
    law = (EDGES[name], EDGE_EPS)
    size = (scale.edge_tokens, scale.edge_batch)
    yield from _edge_runs(EvidenceSettings(eps=EDGE_EPS), law, scale.eps_runs, *size, seed)


def exact_runs(scale: Scale, seed: Seed) -> Iterator[Run]:
    """Exact decoders with the settings of `eps_runs`: what PASS is planned for."""
    law = (EDGES["upper half"], 0.0)
    size = (scale.edge_tokens, scale.edge_batch)
    yield from _edge_runs(EvidenceSettings(eps=EDGE_EPS), law, scale.exact_runs, *size, seed)


def _edge_runs(
    settings: EvidenceSettings,
    law: tuple[tuple[int, ...], float],
    num_runs: int,
    num_tokens: int,
    batch: int,
    seed: Seed,
) -> Iterator[Run]:
    pair = Pair.random(VOCAB_SIZE, seed=3)
    off = tilted(pair, *law)
    generator = np.random.default_rng(seed)
    for _ in range(num_runs):
        played = simulate(
            off,
            num_texts=num_tokens // LENGTH,
            length=LENGTH,
            num_drafts=NUM_DRAFTS,
            generator=generator,
            rule=direct,
        )
        yield _followed(settings, pair, played, batch)


def _followed(settings: EvidenceSettings, pair: Pair, played: Any, batch: int) -> Run:
    """One run with a look after every batch."""
    evidence = Evidence(settings)
    parts: dict[str, float] = {}
    states = []
    step = max(1, batch // LENGTH)
    for text in range(0, len(played.token), step):
        evidence.add(played.take(slice(text, text + step)).scored(pair, text))
        for name, process in {**evidence.tilts, **evidence.bets}.items():
            parts[name] = max(parts.get(name, 0.0), process.log_e)
        # a verdict is dear and says nothing new before any bound can be low enough
        if settings.eps > NULL_EPS:
            states.append(evidence.verdict().state)
    return Run(evidence.merge.sup_log_e, parts, tuple(states))


def false_alarms(runs: list[Run]) -> dict[str, dict[str, dict[str, float]]]:
    """Rates at which processes, and the merge first of all, ever reached 1 / alpha."""
    names = [*(f.name for f in FAMILIES), *(t.name for t in TEMPLATES)]
    reached = {"merged": [run.merged for run in runs]}
    reached |= {name: [run.parts[name] for run in runs] for name in names if name in runs[0].parts}
    return {
        name: {
            str(alpha): rate(sum(v >= -math.log(alpha) for v in values), len(values))
            for alpha in ALPHAS
        }
        for name, values in reached.items()
        # a template that never bets has no error rate
        if any(values)
    }


def false_passes(runs: list[Run]) -> dict[str, float]:
    """Rate of runs in which some look said that the deviation is at most eps."""
    said = {VerdictState.PASS, VerdictState.BIASED_WITHIN_TOLERANCE}
    return rate(sum(bool(said & set(run.states)) for run in runs), len(runs))


def rate(hits: int, trials: int) -> dict[str, float]:
    """A rate with its Clopper-Pearson limits."""
    lower, upper = clopper_pearson(hits, trials)
    return {"hits": hits, "trials": trials, "rate": hits / trials, "lower": lower, "upper": upper}


def _targets(alarms: Any, robust: Any, passes: Any) -> list[Target]:
    targets = []
    for title, table in (("null", alarms), ("edge of eps0", robust)):
        for alpha in ALPHAS:
            worst = max(table, key=lambda name: table[name][str(alpha)]["lower"])
            entry = table[worst][str(alpha)]
            name = f"{title}: lower limit of the worst process ({worst}) at alpha {alpha:g}"
            targets.append(Target(name, entry["lower"], alpha, at_least=False))
        merged = table["merged"][str(ALPHAS[0])]
        name = f"{title}: upper limit of the merged rate at alpha {ALPHAS[0]:g}"
        targets.append(Target(name, merged["upper"], ALPHAS[0], at_least=False))
    delta = EvidenceSettings().delta
    for law, entry in passes.items():
        name = f"edge of eps, {law}: upper limit of the rate of PASS"
        targets.append(Target(name, entry["upper"], delta, at_least=False))
    return targets


def _spread(pool: Executor, scale: Scale, kind: str, seed: int) -> list[Run]:
    """All runs of a kind, in pieces with seeds of their own, whoever computes them."""
    total = getattr(scale, _TOTALS.get(kind, "eps_runs"))
    counts = [min(RUNS_AT_ONCE, total - done) for done in range(0, total, RUNS_AT_ONCE)]
    pieces = [(scale, kind, count, (seed, piece)) for piece, count in enumerate(counts)]
    runs: list[Run] = []
    for found in pool.map(_piece, pieces):
        runs += found
        print(f"{kind}: {len(runs)} of {total} runs", file=sys.stderr, flush=True)
    return runs


_TOTALS = {"null": "runs", "edge of eps0": "eps0_runs", "exact": "exact_runs"}


def _piece(piece: tuple[Scale, str, int, tuple[int, int]]) -> list[Run]:
    scale, kind, count, seed = piece
    scale = replace(scale, **{_TOTALS.get(kind, "eps_runs"): count})
    if kind == "null":
        return list(null_runs(scale, seed))
    if kind == "edge of eps0":
        return list(eps0_runs(scale, seed))
    return list(exact_runs(scale, seed) if kind == "exact" else eps_runs(scale, kind, seed))


def _log10(log: float) -> float:
    return float(f"{log / math.log(10.0):.4g}")


def _show(alarms: Any, robust: Any, passes: Any, power: dict[str, float]) -> None:
    for title, table in (("null", alarms), ("edge of eps0", robust)):
        rows = [(name, *(_cell(entry[str(a)]) for a in ALPHAS)) for name, entry in table.items()]
        columns = ("process", *(f"alpha {alpha:g}" for alpha in ALPHAS))
        show_table(f"{title}: anytime false alarms", columns, rows)
    rows = [(f"edge of eps, {name}", _cell(entry)) for name, entry in passes.items()]
    rows.append(("exact", _cell(power)))
    show_table(f"PASS at eps = {EDGE_EPS:g}", ("law", "rate"), rows)


def _cell(entry: dict[str, float]) -> str:
    hits, trials = int(entry["hits"]), int(entry["trials"])
    limits = f"[{entry['lower']:.4f}, {entry['upper']:.4f}]"
    return f"{entry['rate']:.4f} {limits} {hits}/{trials}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5000, help="null runs")
    cores = os.cpu_count() or 1
    parser.add_argument("--workers", type=int, default=cores, help="processes; default all cores")
    parser.add_argument("--quick", action="store_true", help="toy sizes, in seconds")
    parser.add_argument(
        "--json",
        type=Path,
        help="where the results go, with the most that the merged evidence reached in each run",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
