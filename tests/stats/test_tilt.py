"""The e-processes: fair bets, predictable weights, exact states."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from fairdraft.stats.likelihood import STAKES, LikelihoodProcess, likelihood_ratios
from fairdraft.stats.merge import Merge
from fairdraft.stats.tilt import SHRINKAGES, TiltProcess


def history(eps0: float = 0.0, num_cells: int = 5, seed: int = 0) -> TiltProcess:
    """A process that has seen a biased batch, so that its tilts are far from one."""
    generator = np.random.default_rng(seed)
    process = TiltProcess(num_cells, eps0)
    expected = generator.dirichlet(np.ones(num_cells), size=400)
    process.add(generator.integers(num_cells, size=400), expected)
    return process


def gains(process: TiltProcess, expected: np.ndarray, **reach: np.ndarray) -> np.ndarray:
    """By what one token in each cell [m] would multiply each component, [m, 4]."""
    before = np.array(process.state()["log"])
    rows = []
    for cell in range(len(expected)):
        copy = TiltProcess(len(expected), process.eps0)
        copy.restore(process.state())
        copy.add(np.array([cell]), expected[None], **reach)
        rows.append(np.exp(np.array(copy.state()["log"]) - before))
    return np.array(rows)


def test_factors_follow_the_formula() -> None:
    process = history(eps0=0.02)
    observed, expected = process.observed.copy(), process.expected.copy()
    law = np.array([0.1, 0.2, 0.3, 0.15, 0.25])
    found = gains(process, law)
    for at, pull in enumerate(SHRINKAGES):
        ratio = (observed + pull) / (expected + pull)
        mean = (law * ratio).sum() + 0.02 * (ratio.max() - ratio.min())
        assert found[:, at] == pytest.approx(ratio / mean)


def test_bets_are_fair_under_the_target() -> None:
    law = np.array([0.1, 0.0, 0.4, 0.2, 0.3])
    assert law @ gains(history(), law) == pytest.approx(np.ones(4))


@pytest.mark.parametrize("eps0", [0.005, 0.05])
def test_bets_are_at_most_fair_under_every_tolerated_law(eps0: float) -> None:
    """The worst law moves eps0 from the cell that pays least to the one that pays most."""
    law = np.array([0.1, 0.0, 0.4, 0.2, 0.3])
    process = history(eps0)
    found = gains(process, law)
    for column in found.T:
        worst = law.copy()
        take = eps0
        for cell in np.argsort(column):
            moved = min(take, worst[cell])
            worst[cell] -= moved
            take -= moved
        worst[column.argmax()] += eps0
        assert worst @ column <= 1.0 + 1e-12
    # planted: the tolerance left out
    bare = gains(history(), law)
    shifted = law.copy()
    shifted[2] -= eps0
    shifted[bare[:, 0].argmax()] += eps0
    assert (shifted @ bare).max() > 1.0


def test_unreachable_cells_cost_no_margin() -> None:
    process = history(0.05)
    ratio = (process.observed + SHRINKAGES[:, None]) / (process.expected + SHRINKAGES[:, None])
    # the two cells whose tilts are nearest to the middle
    pair = np.argsort(ratio[0])[2:4]
    law = np.zeros(5)
    law[pair] = 0.5
    reach = (law > 0.0)[None]
    narrow, wide = gains(process, law, reachable=reach), gains(process, law)
    assert (narrow[pair] > wide[pair]).all()
    mean = ratio[:, pair].mean(axis=1) + 0.05 * np.ptp(ratio[:, pair], axis=1)
    assert narrow[pair] == pytest.approx((ratio[:, pair] / mean[:, None]).T)


def test_first_batch_is_no_bet() -> None:
    process = TiltProcess(3)
    process.add(np.zeros(500, np.int64), np.full((500, 3), 1.0 / 3.0))
    assert process.log_e == pytest.approx(0.0, abs=1e-10)
    assert process.num_tokens == 500 and process.observed.tolist() == [500, 0, 0]
    process.add(np.zeros(500, np.int64), np.full((500, 3), 1.0 / 3.0))
    assert process.log_e > 100.0


def test_evidence_is_the_mean_over_shrinkages() -> None:
    process = history()
    process.add(np.array([1, 2, 2]), np.full((3, 5), 0.2))
    logs = np.array(process.state()["log"])
    assert process.log_e == pytest.approx(math.log(np.exp(logs).mean()))


def test_impossible_cell_gives_a_number() -> None:
    process = TiltProcess(2)
    for _ in range(3):
        process.add(np.array([1, 1]), np.array([[1.0, 0.0], [1.0, 0.0]]))
    assert math.isfinite(process.log_e) and process.log_e > 0.0


def test_tilt_goes_on_from_its_state_bit_for_bit() -> None:
    generator = np.random.default_rng(5)
    batches = [
        (generator.integers(4, size=50), generator.dirichlet(np.ones(4), size=50)) for _ in range(4)
    ]
    whole, first, second = TiltProcess(4, 0.01), TiltProcess(4, 0.01), TiltProcess(4, 0.01)
    for batch in batches:
        whole.add(*batch)
    for batch in batches[:2]:
        first.add(*batch)
    second.restore(json.loads(json.dumps(first.state(), allow_nan=False)))
    for batch in batches[2:]:
        second.add(*batch)
    assert second.state() == whole.state() and second.log_e == whole.log_e
    with pytest.raises(ValueError, match="4 cells cannot continue a process of 5"):
        TiltProcess(5).restore(first.state())


def laws(seed: int = 3, num_rows: int = 20) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    target, other = generator.dirichlet(np.full(6, 0.5), size=(2, num_rows))
    target[::3, 2] = 0.0
    other[::4, 1] = 0.0
    return target / target.sum(axis=1, keepdims=True), other / other.sum(axis=1, keepdims=True)


def all_ratios(target: np.ndarray, other: np.ndarray, eps0: float = 0.0) -> np.ndarray:
    """Ratio of each column if it came out, [N, C]."""
    columns = range(target.shape[1])
    each = [likelihood_ratios(np.full(len(target), c), target, other, eps0) for c in columns]
    return np.stack(each, axis=1)


def test_likelihood_ratios_are_fair() -> None:
    target, other = laws()
    ratios = all_ratios(target, other)
    assert (target * ratios).sum(axis=1) == pytest.approx(np.ones(len(target)))
    inside = np.where(target > 0.0, other, 0.0)
    inside /= inside.sum(axis=1, keepdims=True)
    assert np.allclose(ratios[target > 0.0], (inside / np.where(target > 0, target, 1))[target > 0])


def test_tolerant_ratios_are_at_most_fair_under_every_tolerated_law() -> None:
    target, other = laws()
    eps0 = 0.03
    ratios = all_ratios(target, other, eps0)
    for law, ratio in zip(target, ratios, strict=True):
        worst, take = law.copy(), eps0
        for column in np.argsort(ratio):
            moved = min(take, worst[column])
            worst[column] -= moved
            take -= moved
        worst[ratio.argmax()] += eps0
        assert worst @ ratio <= 1.0 + 1e-12


def test_ratio_of_an_alternative_elsewhere_is_no_bet() -> None:
    target, other = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    for column in (0, 1):
        assert likelihood_ratios(np.array([column]), target, other).tolist() == [1.0]


def test_likelihood_process_mixes_its_stakes() -> None:
    process = LikelihoodProcess()
    ratio = np.array([0.5, 3.0, 0.0])
    process.add(ratio)
    factors = np.prod(1.0 - STAKES[:, None] + STAKES[:, None] * ratio, axis=1)
    assert process.log_e == pytest.approx(math.log(factors.mean())) and process.num_tokens == 3
    other = LikelihoodProcess()
    other.restore(json.loads(json.dumps(process.state(), allow_nan=False)))
    process.add(ratio)
    other.add(ratio)
    assert other.log_e == process.log_e


def test_merge_is_the_mean_of_its_members() -> None:
    merge = Merge()
    merge.update({"a": 0.0, "b": 0.0})
    assert merge.log_e == 0.0 and merge.members == ("a", "b")
    merge.update({"a": 2.0, "b": -1.0})
    assert merge.log_e == pytest.approx(math.log((math.exp(2.0) + math.exp(-1.0)) / 2.0))
    top = merge.log_e
    merge.update({"a": -3.0, "b": -1.0})
    assert merge.sup_log_e == top > merge.log_e


def test_late_member_brings_nothing_and_takes_an_equal_share() -> None:
    merge = Merge()
    merge.update({"a": 0.0, "b": 0.0})
    merge.update({"a": math.log(3.0), "b": math.log(5.0), "late": 7.0})
    # what the late one won before it joined is nobody's
    assert merge.log_e == pytest.approx(math.log(4.0))
    merge.update({"a": math.log(3.0), "b": math.log(5.0), "late": 7.0 + math.log(2.0)})
    assert merge.log_e == pytest.approx(math.log(4.0 * (2.0 / 3.0) + 2.0 * 4.0 / 3.0))
    other = Merge()
    other.restore(json.loads(json.dumps(merge.state(), allow_nan=False)))
    for each in (merge, other):
        each.update({"a": 1.0, "b": 1.0, "late": 1.0})
    assert other.state() == merge.state()
