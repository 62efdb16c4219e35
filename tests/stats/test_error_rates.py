"""The auditor's error rates, short; `bench/audit_error_rates.py` is the long form.

Rates count runs in which any look would have been wrong. A bound on hits is the smallest that a
right auditor exceeds with probability 1e-9.
"""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fairdraft.stats import TiltProcess, VerdictState, binomial_log_tails

BENCH = Path(__file__).resolve().parent.parent.parent / "bench"
ALPHA, DELTA = 0.05, 0.01
LONG = {"tokens": 1024, "edge_tokens": 5120, "batch": 256, "edge_batch": 2560}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("audit_error_rates")


def most_hits(num_runs: int, rate: float) -> int:
    hits = range(num_runs + 1)
    return next(h for h in hits if binomial_log_tails(h + 1, num_runs, rate)[1] < math.log(1e-9))


def alarms(runs: list[Any]) -> dict[str, int]:
    """Runs in which the merged evidence, or a process, ever reached 1 / alpha."""
    limit = -math.log(ALPHA)
    counts = {"merged": sum(run.merged >= limit for run in runs)}
    for name in runs[0].parts:
        counts[name] = sum(run.parts[name] >= limit for run in runs)
    return counts


def test_false_alarms_stay_below_alpha(bench: ModuleType) -> None:
    """120 runs of 1,024 tokens; at most 25 may alarm at alpha .05."""
    runs = list(bench.null_runs(bench.Scale(runs=120, **LONG), seed=101))
    counts = alarms(runs)
    assert len(runs) == 120 and len(counts) > 15
    assert max(counts.values()) <= most_hits(120, ALPHA), counts


def test_tolerated_laws_do_not_alarm(bench: ModuleType) -> None:
    """Every law is off by eps0 = .02, in one direction."""
    runs = list(bench.eps0_runs(bench.Scale(eps0_runs=30, **LONG), seed=102))
    counts = alarms(runs)
    assert len(runs) == 30 and max(counts.values()) <= most_hits(30, ALPHA), counts


def test_bets_that_know_the_batch_are_refused(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: a batch is counted before it is bet on."""
    add, calls = TiltProcess.add, []

    def add_late(
        self: TiltProcess,
        observed: np.ndarray,
        expected: np.ndarray,
        reachable: np.ndarray | None = None,
    ) -> None:
        calls.append(len(observed))
        self.observed += np.bincount(observed, minlength=len(self.observed))
        self.expected += expected.sum(axis=0)
        add(self, observed, expected, reachable)

    monkeypatch.setattr(TiltProcess, "add", add_late)
    counts = alarms(list(bench.null_runs(bench.Scale(runs=80, **LONG), seed=103)))
    assert calls and counts["merged"] > most_hits(80, ALPHA), counts


@pytest.mark.parametrize("law", ["upper half", "every second"])
def test_edge_of_eps_does_not_pass(bench: ModuleType, law: str) -> None:
    """Every law is off by eps = .1; at most 5 of 10 runs may PASS at delta .01."""
    runs = list(bench.eps_runs(bench.Scale(eps_runs=10, **LONG), law, seed=104))
    hits = int(bench.false_passes(runs)["hits"])
    assert len(runs) == 10 and hits <= most_hits(10, DELTA)


def test_exact_decoder_passes_where_the_edge_does_not(bench: ModuleType) -> None:
    """The same number of tokens; the plan says nine of ten: none of ten is a chance of 1e-10."""
    runs = list(bench.exact_runs(bench.Scale(exact_runs=10, **LONG), seed=105))
    assert sum(run.states[-1] is VerdictState.PASS for run in runs) > 0


def test_bounds_of_the_wrong_sign_are_refused(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: the half-width is subtracted from the upper bound."""
    module = importlib.import_module("fairdraft.stats.equivalence")
    width = module.equivalence_width
    monkeypatch.setattr(module, "equivalence_width", lambda *a: -width(*a))
    runs = list(bench.eps_runs(bench.Scale(eps_runs=10, **LONG), "upper half", seed=106))
    assert bench.false_passes(runs)["hits"] > most_hits(10, DELTA)


def test_page_holds_the_recorded_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    page = importlib.import_module("audit_page")
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text) == text, "run python bench/audit_page.py"
