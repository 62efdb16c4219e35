"""Bounds that hold at every n, the plan, and e-BH."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fairdraft.stats import bounds, e_bh, equivalence_width, mixture_weight, plan_tokens
from fairdraft.stats.equivalence import expected_distance
from fairdraft.stats.planner import tokens_to_pass

RHO = mixture_weight(0.05)


def ever_outside(width_factor: float, num_cells: int, delta: float, seed: int) -> float:
    """Share of 2,000 streams whose distance ever leaves the width over n = 1 .. 3,000."""
    generator = np.random.default_rng(seed)
    law = np.full(num_cells, 1.0 / num_cells)
    num_tokens, runs = np.arange(1, 3001), 2000
    width = np.array([equivalence_width(n, num_cells, delta, RHO) for n in num_tokens.tolist()])
    hits = 0
    for _ in range(runs):
        cells = generator.integers(num_cells, size=3000)
        counts = np.cumsum(np.eye(num_cells)[cells], axis=0)
        tv = 0.5 * np.abs(counts / num_tokens[:, None] - law).sum(axis=1)
        hits += bool((tv > width_factor * width).any())
    return hits / runs


def test_width_follows_the_formula() -> None:
    level = math.log(2.0**7 - 1.0) + math.log(1.0 / 0.01) + 0.5 * math.log1p(1000 / RHO)
    expected = math.sqrt((1000 + RHO) / 2.0 * level) / 1000
    assert equivalence_width(1000, 8, 0.01, RHO) == pytest.approx(expected)
    # two cells have one set, up to its complement
    pair = math.log(1.0 / 0.01) + 0.5 * math.log1p(1000 / RHO)
    assert equivalence_width(1000, 2, 0.01, RHO) == pytest.approx(
        math.sqrt((1000 + RHO) / 2.0 * pair) / 1000
    )


@pytest.mark.parametrize("num_cells", [2, 8])
def test_width_holds_at_every_n_at_once(num_cells: int) -> None:
    """At delta .2 it fails in at most 400 of 2,000 streams; 1e-9 above needs 512."""
    assert ever_outside(1.0, num_cells, 0.2, seed=num_cells) < 512 / 2000


def test_half_the_width_does_not_hold() -> None:
    assert ever_outside(0.5, 2, 0.2, seed=4) > 512 / 2000


def test_bounds_of_exact_and_shifted_counts() -> None:
    expected = np.full(8, 12_500.0)
    same = bounds(expected.astype(np.int64), expected, 0.01, mixture_weight(0.01))
    assert same.tv == 0.0 and same.lower == 0.0 and 0.005 < same.upper < 0.02
    assert same.debiased == 0.0 < same.floor
    shift = np.where(np.arange(8) < 4, 1250, -1250)
    moved = bounds(expected.astype(np.int64) + shift, expected, 0.01, mixture_weight(0.01))
    assert moved.tv == pytest.approx(0.05) and moved.lower > 0.03 and moved.upper < 0.07
    assert moved.debiased == pytest.approx(0.05 - moved.floor)
    nothing = bounds(np.zeros(8, np.int64), np.zeros(8), 0.01, mixture_weight(0.01))
    assert (nothing.lower, nothing.upper) == (0.0, 1.0)


@pytest.mark.parametrize("tv", [0.0, 0.02, 0.1])
def test_expected_distance_is_that_of_simulation(tv: float) -> None:
    generator = np.random.default_rng(1)
    law = np.full(8, 0.125)
    true = law + np.where(np.arange(8) % 2, 1, -1) * tv / 4.0
    counts = generator.multinomial(2000, true, size=4000)
    seen = 0.5 * np.abs(counts / 2000 - law).sum(axis=1).mean()
    assert expected_distance(tv, law, 2000) == pytest.approx(seen, rel=0.02)


def test_planned_tokens_pass_nine_times_in_ten() -> None:
    """Miss of the plan: fewer than 330 of 400 exact streams pass; .9 gives 360, so 30 spare."""
    generator = np.random.default_rng(2)
    law = np.full(8, 0.125)
    planned = tokens_to_pass(law, eps=0.05, delta=0.00125)
    assert planned is not None

    def passes(num_tokens: int) -> int:
        counts = generator.multinomial(num_tokens, law, size=400)
        expected = law * num_tokens
        return sum(bounds(c, expected, 0.00125, RHO).upper <= 0.05 for c in counts)

    assert passes(planned) >= 330
    # planted: a third fewer
    assert passes(planned * 2 // 3) < 100


def test_plan_grows_as_it_should() -> None:
    plain = plan_tokens(eps=0.01, alpha=1e-3, delta=0.01, num_cells=24)
    assert plain.to_fail is None and plain.to_pass is not None
    assert 250_000 < plain.to_pass < 450_000
    finer = plan_tokens(eps=0.005, num_cells=24)
    assert finer.to_pass == pytest.approx(4 * plain.to_pass, rel=0.02)
    for weak, strong in ((0.02, 0.05), (0.005, 0.01)):
        slow, fast = (plan_tokens(tv=tv, num_cells=8).to_fail for tv in (weak, strong))
        assert slow is not None and fast is not None and slow > fast
    assert plan_tokens(eps=0.01, tv=0.01).to_pass is None
    assert plan_tokens(eps=1e-7).to_pass is None
    assert plan_tokens(tv=1e-9).to_fail is None


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"eps": 0.0}, "eps lies strictly between 0 and 1, got 0"),
        ({"alpha": 1.0}, "alpha lies"),
        ({"delta": -1.0}, "delta lies"),
        ({"tv": 1.0}, "tv lies in"),
        ({"num_cells": 1}, "at least 2 cells, got 1"),
    ],
)
def test_impossible_plans_are_refused(wish: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_tokens(**wish)


def test_e_bh_rejects_the_largest_that_are_large_enough() -> None:
    log_e = {name: math.log(value) for name, value in {"a": 500, "b": 130, "c": 3, "d": 1}.items()}
    # 4 / (2 * .02) = 100 <= 130
    assert e_bh(log_e, 0.02) == {"a", "b"}
    # 4 / (1 * .01) = 400 <= 500, and 130 < 200
    assert e_bh(log_e, 0.01) == {"a"}
    assert e_bh(log_e, 0.001) == set() and e_bh({}, 0.1) == set()


def test_e_bh_controls_the_false_discoveries() -> None:
    """Ten true hypotheses whose e-values are 100 with probability .01: a discovery in .096.

    10,000 runs; 1e-9 above the promised .1 is .119. Planted: the largest of ten looks instead.
    """
    generator = np.random.default_rng(3)

    def rate(looks: int) -> float:
        hit = (generator.random((10_000, looks, 10)) < 0.01).any(axis=1)
        logs = np.where(hit, math.log(100.0) + 1e-9, -20.0)
        found = [e_bh({str(i): value for i, value in enumerate(row)}, 0.1) for row in logs]
        return sum(map(bool, found)) / len(found)

    assert 0.07 < rate(1) < 0.119 < rate(10)
