"""Laws of samplers that use noise twice, against enumeration, quadrature and exact fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import scipy.integrate
from hypothesis import given
from hypothesis import strategies as st

from fairdraft.ops.arithmetic import TILE
from fairdraft.stats.coupled import shared_noise_law, shared_test_law
from fairdraft.stats.coupled_flat import flat_race_law
from fairdraft.stats.coupled_inverse import inverse_cdf_law, inverse_cdf_test_law
from fairdraft.stats.coupled_tiles import TILE_SIZE, tile_numbers, tiled_race_law

P4, Q4 = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])
SAMPLERS = ("gumbel", "race", "inverse_cdf", "unknown")
#: eight columns in tiles of every size
TILINGS = ([0] * 8, [0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 2, 2, 3], list(range(8)))


def one(law, p, *rest):
    """The law of a single row."""
    return law(p[None], *(np.asarray(x)[None] for x in rest))[0]


def random_pair(seed: int, size: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """A target and a draft, each with one token that only the other has."""
    generator = np.random.default_rng(seed)
    p, q = generator.dirichlet(np.ones(size), size=2)
    p[seed % size] = q[(seed + 3) % size] = 0.0
    return p / p.sum(), q / q.sum()


def wins_until(time: float, start: np.ndarray, rate: np.ndarray, end: float) -> np.ndarray:
    """Chance of each entrant to win before `end`, and of nobody, given the draft's winning time.

    Entrant j is at rest until start_j / rate_j * time and has a constant hazard from then on.
    """
    entrants = np.flatnonzero(rate).tolist()
    enters = {j: start[j] / rate[j] * time for j in entrants}
    won, alive = np.zeros(len(rate) + 1), 1.0
    for begin, stop in pairwise(sorted({*enters.values(), end})):
        if begin >= end:
            break
        running = [j for j in entrants if enters[j] <= begin]
        total = rate[running].sum()
        gone = alive * -np.expm1(-total * (stop - begin)) if running else 0.0
        won[running] += gone * rate[running] / total if running else 0.0
        alive -= gone
    won[-1] = alive
    return won


def over_time(chances) -> np.ndarray:
    """Mean over an exponential time."""
    value, _ = scipy.integrate.quad_vec(
        lambda time: np.exp(-time) * chances(time), 0, np.inf, epsabs=1e-11, epsrel=1e-11
    )
    return value


def tiled_by_quadrature(p: np.ndarray, q: np.ndarray, tile: np.ndarray) -> np.ndarray:
    """Theorem 5 without its integrals: the two races, draft tile by draft tile."""
    tiles = range(tile.max() + 1)
    residual, lost = np.maximum(p - q, 0), np.maximum(q - p, 0)
    start, rate = (np.bincount(tile, x) for x in (q, residual))
    out = np.minimum(p, q)
    for d in tiles:
        lose = lost[tile == d].sum()
        if lose == 0:
            continue
        others = np.where(np.arange(len(rate)) == d, 0, rate)
        ratio = start[d] / rate[d] if rate[d] else 1e9
        chance = over_time(lambda t, a=others, z=ratio: wins_until(t, start, a, z * t))
        for t in tiles:
            if rate[t] and t != d:
                out += lose * chance[t] * np.where(tile == t, residual, 0) / rate[t]
        if rate[d]:
            inside = np.flatnonzero(tile == d)
            v, r = q[inside] / start[d], residual[inside]
            out[inside] += (
                lose * chance[-1] * over_time(lambda t, v=v, r=r: wins_until(t, v, r, 1e9))[:-1]
            )
    return out


@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize("seed", range(3))
def test_two_level_law_is_that_of_two_conditioned_races(tiling, seed) -> None:
    p, q = random_pair(seed)
    expected = tiled_by_quadrature(p, q, np.array(tiling))
    assert expected.sum() == pytest.approx(1, abs=1e-8)
    law = one(tiled_race_law, p, q, tiling)
    np.testing.assert_allclose(law, expected, rtol=0, atol=1e-8)
    assert abs(one(tiled_race_law, q, p, tiling) - expected).max() > 0.01


@pytest.mark.parametrize("seed", range(20))
def test_one_tile_and_tiles_of_one_token_are_the_flat_race(seed) -> None:
    p, q = random_pair(seed)
    flat = one(flat_race_law, p, q)
    for tiling in (TILINGS[0], TILINGS[-1]):
        np.testing.assert_allclose(one(tiled_race_law, p, q, tiling), flat, rtol=0, atol=1e-14)


def flat_in_fractions(p: list[Fraction], q: list[Fraction]) -> list[Fraction]:
    """The theorem of docs/the-bug.md in exact numbers."""
    r = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
    out = [min(a, b) for a, b in zip(p, q, strict=True)]
    order = sorted((j for j in range(len(p)) if r[j]), key=lambda j: q[j] / r[j])
    survive, rho, start = [], Fraction(0), Fraction(0)
    sums = []
    for j in order:
        rho, start = rho + r[j], start + q[j]
        survive.append(1 / (1 + q[j] / r[j] * rho - start))
        sums.append(rho)
    survive.append(Fraction(0))
    rejected = 1 - sum(out)
    for k, j in enumerate(order):
        parts = [(survive[i] - survive[i + 1]) / sums[i] for i in range(k, len(order))]
        out[j] += rejected * r[j] * sum(parts, Fraction(0))
    return out


@pytest.mark.parametrize("seed", range(8))
def test_flat_law_keeps_its_digits_over_forty_binades(seed) -> None:
    generator = np.random.default_rng(seed)
    p, q = (
        [Fraction(1, 2 ** int(e)) for e in generator.integers(1, 40, size=12)] for _ in range(2)
    )
    p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
    exact = np.array([float(x) for x in flat_in_fractions(p, q)])
    law = one(flat_race_law, *(np.array([float(x) for x in law]) for law in (p, q)))
    np.testing.assert_allclose(law, exact, rtol=1e-12, atol=0)


def test_published_example_in_fractions() -> None:
    """TV 4 / 341 for eight tokens ranked oppositely, as docs/the-bug.md prints."""
    p = np.array([0.30, 0.20, 0.15, 0.10, 0.10, 0.05, 0.05, 0.05])
    law = one(flat_race_law, p, p[::-1])
    assert abs(law - p).sum() / 2 == pytest.approx(4 / 341, abs=1e-14)
    np.testing.assert_allclose(law[:3], [0.31173, 0.19736, 0.14091], atol=5e-6)


def test_examples_of_the_derivation() -> None:
    np.testing.assert_allclose(one(flat_race_law, P4, Q4), [13 / 30, 8 / 30, 0.2, 0.1])
    np.testing.assert_allclose(one(inverse_cdf_law, P4, Q4), [0.3125, 0.3875, 0.2, 0.1])
    np.testing.assert_allclose(one(tiled_race_law, P4, Q4, [0, 0, 1, 1]), P4, atol=1e-15)
    order = [0, 2, 1, 3]
    law = one(tiled_race_law, P4[order], Q4[order], [0, 0, 1, 1])
    np.testing.assert_allclose(law[order], [0.375, 0.325, 0.2, 0.1])


def on_one_uniform(p: np.ndarray, q: np.ndarray, decide) -> np.ndarray:
    """Mean over u of what `decide(u, draft)` emits, on pieces where nothing changes its mind."""
    rest = np.maximum(p - q, 0)
    limits = np.divide(p, q, out=np.ones_like(p), where=q > p)
    cuts = {0.0, 1.0, *np.cumsum(q), *(np.cumsum(rest) / rest.sum()), *limits}
    out = np.zeros(len(p))
    for begin, end in pairwise(sorted(min(cut, 1.0) for cut in cuts)):
        u = (begin + end) / 2
        # sums that end below 1 by rounding
        draft = min(int(np.searchsorted(np.cumsum(q), u, side="right")), np.flatnonzero(q)[-1])
        out += (end - begin) * decide(u, draft)
    return out


@pytest.mark.parametrize("seed", range(20))
def test_inverse_cdf_laws_are_those_of_an_enumeration(seed) -> None:
    p, q = random_pair(seed)
    rest = np.maximum(p - q, 0) / np.maximum(p - q, 0).sum()

    def replaced(u: float, draft: int) -> np.ndarray:
        keep = min(1.0, p[draft] / q[draft])
        other = int(np.searchsorted(np.cumsum(rest), u, side="right"))
        return keep * np.eye(8)[draft] + (1 - keep) * np.eye(8)[min(other, 7)]

    def tested(u: float, draft: int) -> np.ndarray:
        return np.eye(8)[draft] if u * q[draft] < p[draft] else rest

    for law, decide in ((inverse_cdf_law, replaced), (inverse_cdf_test_law, tested)):
        expected = on_one_uniform(p, q, decide)
        np.testing.assert_allclose(one(law, p, q), expected, rtol=0, atol=1e-14)
        assert abs(one(law, q, p) - expected).max() > 0.01


def test_tiles_are_those_of_the_sampler() -> None:
    assert TILE_SIZE == TILE


def test_a_rest_cell_joins_the_only_tile_or_is_one_more() -> None:
    ids = np.array([[0, 511, 600, -1, -1], [512, 600, 1023, -1, -1], [0, 512, 1024, 1500, 2048]])
    expected = [[0, 0, 1, 2, 2], [0, 0, 0, 0, 0], [0, 1, 2, 2, 3]]
    np.testing.assert_array_equal(tile_numbers(ids), expected)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_order_of_columns_is_irrelevant_where_ids_are_given(sampler) -> None:
    generator = np.random.default_rng(1)
    p, q = (generator.dirichlet(np.ones(9), size=50) for _ in range(2))
    ids = np.sort(generator.choice(1500, size=(50, 9)), axis=1)
    ids[:, -1] = -1
    order = np.argsort(generator.random((50, 9)), axis=1)
    mixed_p, mixed_q, mixed_ids = (np.take_along_axis(x, order, axis=1) for x in (p, q, ids))
    law = np.take_along_axis(shared_noise_law(p, q, ids, sampler), order, axis=1)
    mixed = shared_noise_law(mixed_p, mixed_q, mixed_ids, sampler)
    np.testing.assert_allclose(mixed, law, rtol=0, atol=1e-14)
    test = np.take_along_axis(shared_test_law(p, q, ids), order, axis=1)
    mixed = shared_test_law(mixed_p, mixed_q, mixed_ids)
    np.testing.assert_allclose(mixed, test, rtol=0, atol=1e-14)


def test_each_sampler_gets_its_own_law() -> None:
    p, q = np.zeros((2, 1, 600))
    p[0, [0, 511, 512, 599]], q[0, [0, 511, 512, 599]] = P4[[0, 2, 1, 3]], Q4[[0, 2, 1, 3]]
    assert shared_noise_law(p, q, None, "race")[0, 0] == pytest.approx(0.375)
    for sampler in ("gumbel", "unknown", "multinomial"):
        assert shared_noise_law(p, q, None, sampler)[0, 0] == pytest.approx(13 / 30)
    near = shared_noise_law(p[:, :512], q[:, :512], None, "race")
    np.testing.assert_array_equal(near, flat_race_law(p[:, :512], q[:, :512]))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_rows_without_rejections_or_with_nothing_else_are_unbiased(sampler) -> None:
    half = np.array([0.5, 0.5, 0.0, 0.0])
    cases = [(P4, P4), (half, half[::-1]), (half, P4), (np.eye(4)[2], P4), (P4, np.eye(4)[3])]
    for p, q in cases[:2]:
        np.testing.assert_allclose(one_noise(p, q, sampler), p, atol=1e-15)
    # one token to replace the draft with
    np.testing.assert_allclose(one_noise(np.eye(4)[2], P4, sampler), np.eye(4)[2], atol=1e-15)
    for p, q in cases:
        assert one_noise(p, q, sampler).sum() == pytest.approx(1, abs=1e-12)


def one_noise(p: np.ndarray, q: np.ndarray, sampler: str) -> np.ndarray:
    return shared_noise_law(p[None], q[None], np.array([[0, 5, 511, 512]]), sampler)[0]


EXPONENTS = st.lists(
    st.one_of(st.just(-np.inf), st.floats(-750, 0), st.floats(-3, 0)), min_size=1, max_size=12
)


@given(EXPONENTS, EXPONENTS, st.sampled_from(SAMPLERS), st.sampled_from([1, 200, 600]))
def test_any_pair_gives_a_law_that_errs_inside_the_residual_only(a, b, sampler, stride) -> None:
    """What p does not exceed keeps min(p, q), and what it exceeds gets its due in all."""
    size = min(len(a), len(b))
    laws = np.exp(np.array([[*a[:size], 0.0], [0.0, *b[:size]]]))
    p, q = laws / laws.sum(axis=1, keepdims=True)
    ids = np.arange(size + 1)[None] * stride
    law = shared_noise_law(p[None], q[None], ids, sampler)[0]
    assert (law >= 0).all()
    assert (law[p == 0] == 0).all()
    assert law.sum() == pytest.approx(1, abs=1e-12)
    inside = p > q
    np.testing.assert_array_equal(law[~inside], p[~inside])
    assert law[inside].sum() == pytest.approx(p[inside].sum(), abs=1e-12)
    # nobody loses what was accepted
    assert (law >= np.minimum(p, q)).all()
