"""Exact enumeration of the production rules: decision weights in, law out, no noise, to 1e-12.

p and q depend on the whole history. Integer logits at temperature log2(e) make every weight a power
of two, so that what is compared is the rule and not the arithmetic. There is no sampling here:
false alarm and miss are 0. Planted faults state the total variation (TV) that they cause.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from tests.law import stops
from tests.law.enumeration import (
    Experiment,
    Form,
    emitted_law,
    weights_by_formulas,
    weights_of,
)
from tests.law.faults import P_FOR_RESIDUAL
from tests.law.tables import BASE_TWO, dirichlet_tables, integer_tables

pytestmark = pytest.mark.usefixtures("remembered_rows")

EXACT = 1e-12
K = 3
IMPLS = ("reference", "cpu")
SHAPES = pytest.mark.parametrize(("vocab_size", "seed"), [(3, 1), (4, 3)])


def distance(law: np.ndarray, other: np.ndarray) -> float:
    return 0.5 * float(np.abs(law - other).sum())


def assert_exact(experiments: list[Experiment], impl, form: Form) -> None:
    """Every experiment, as rows of one call, emits the target's law."""
    for experiment, weights in zip(
        experiments, weights_of(experiments, impl=impl, form=form), strict=True
    ):
        tables = experiment.tables
        found = distance(emitted_law(weights, tables), tables.target_joint())
        assert found < EXACT, experiment


def deterministic(vocab_size: int, seed: int) -> Callable[[tuple[int, ...]], int]:
    """A drafter that is a function of the history."""
    generator = np.random.default_rng(seed)
    proposed = generator.integers(0, vocab_size, size=(K, *(vocab_size,) * K))
    return lambda h: int(proposed[(len(h), *h, *(0,) * (K - len(h)))])


@pytest.mark.parametrize("stop", stops.LAWFUL.values(), ids=stops.LAWFUL.keys())
@pytest.mark.parametrize("seed", [3, 4])
def test_formulas_emit_the_target_under_every_lawful_stop(stop, seed: int) -> None:
    tables = dirichlet_tables(3, K, seed)
    weights = weights_by_formulas(Experiment(tables, stop))
    assert distance(emitted_law(weights, tables), tables.target_joint()) < EXACT


def test_formulas_emit_the_target_with_forbidden_drafts_in_place() -> None:
    tables = dirichlet_tables(3, K, 3, banned=2)
    weights = weights_by_formulas(Experiment(tables, forbidden=2))
    assert distance(emitted_law(weights, tables), tables.target_joint()) < EXACT


def test_formulas_emit_the_target_with_point_masses() -> None:
    tables = dirichlet_tables(3, K, 3)
    for x in itertools.product(range(3), repeat=K):
        weights = weights_by_formulas(Experiment(tables, follow=lambda h, x=x: x[len(h)]))
        assert distance(emitted_law(weights, tables), tables.target_joint()) < EXACT


@SHAPES
@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("impl", IMPLS)
def test_sampled_drafts_are_exact_under_every_lawful_stop(
    impl, form: Form, vocab_size: int, seed: int
) -> None:
    """Ragged K, absent drafts by count and by -1, dense and sparse q."""
    tables = integer_tables(vocab_size, K, seed)
    cold = integer_tables(vocab_size, K, seed, draft_halving=True)
    narrow = integer_tables(vocab_size, K, seed, undrafted=1)
    experiments = [Experiment(tables, stop) for stop in stops.LAWFUL.values()]
    experiments += [
        Experiment(tables, stop, has_placeholder=True) for stop in stops.LAWFUL.values()
    ]
    experiments += [Experiment(cold), Experiment(narrow), Experiment(narrow, stops.before_flat_law)]
    assert_exact(experiments, impl, form)


@SHAPES
@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("impl", IMPLS)
def test_forbidden_drafts_are_exact_in_place(impl, form: Form, vocab_size: int, seed: int) -> None:
    """p is 0 there, marked or not, and the rows after it are junk; also an id of a padded head."""
    banned = vocab_size - 1
    tables = integer_tables(vocab_size, K, seed, banned=banned)
    experiments = [Experiment(tables, stop, forbidden=banned) for stop in stops.LAWFUL.values()]
    experiments += [Experiment(tables, stop) for stop in stops.LAWFUL.values()]
    assert_exact(experiments, impl, form)


@SHAPES
@pytest.mark.parametrize("form", ["none", "dense", "sparse"])
@pytest.mark.parametrize("impl", IMPLS)
def test_point_masses_are_exact(impl, form: Form, vocab_size: int, seed: int) -> None:
    """Every deterministic path, and drafters that follow the history; a point mass may be read."""
    tables = integer_tables(vocab_size, K, seed)
    paths = list(itertools.product(range(vocab_size), repeat=K))
    experiments = [Experiment(tables, follow=lambda h, x=x: x[len(h)]) for x in paths]
    experiments += [
        Experiment(tables, stop, follow=deterministic(vocab_size, seed + 100 + k))
        for k, stop in enumerate((*stops.LAWFUL.values(), stops.drops_unlikely_draft))
    ]
    assert_exact(experiments, impl, form)


@SHAPES
@pytest.mark.parametrize("impl", IMPLS)
def test_foreign_ids_are_rejected_exactly(impl, vocab_size: int, seed: int) -> None:
    """A point mass on an id outside the vocabulary, at each place; what follows it is junk."""
    tables = integer_tables(vocab_size, K, seed)
    experiments = [
        Experiment(tables, follow=lambda h, i=i: vocab_size + 5 if len(h) == i else 0)
        for i in range(K)
    ]
    assert_exact(experiments, impl, "none")


@SHAPES
@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("impl", IMPLS)
def test_everything_mixes_in_one_batch(impl, form: Form, vocab_size: int, seed: int) -> None:
    """Sampled, ragged, absent, forbidden, point-mass, greedy and plain rows in one call."""
    tables = integer_tables(vocab_size, K, seed)
    banned = integer_tables(vocab_size, K, seed + 10, banned=0)
    follow = deterministic(vocab_size, seed)
    experiments = [
        Experiment(tables),
        Experiment(tables.greedy()),
        Experiment(banned, forbidden=0),
        Experiment(tables, stops.at_most(0)),
        Experiment(tables, follow=follow),
        Experiment(tables.greedy(), follow=follow),
        Experiment(banned.greedy(), stops.after_end_token, forbidden=0),
        Experiment(integer_tables(vocab_size, K, seed, draft_halving=True), stops.before_flat_law),
        Experiment(tables, stops.by_earlier_sum, has_placeholder=True),
    ]
    assert_exact(experiments, impl, form)


UNLAWFUL = [
    pytest.param(stops.drops_unlikely_draft, None, 0.0816, id="looks at the dropped token"),
    pytest.param(stops.drops_what_led_astray, None, 0.0786, id="looks at where it led"),
    pytest.param(stops.drops_last_of_unlikely_path, None, 0.0100, id="drops the last by product"),
    pytest.param(stops.forbidden_is_absent, None, 0.0414, id="drops a token as absent"),
    pytest.param(stops.forbidden_is_absent, 2, 0.0275, id="forbidden treated as absent"),
]


@pytest.mark.parametrize(("stop", "banned", "effect"), UNLAWFUL)
def test_unlawful_stop_is_seen(stop, banned: int | None, effect: float) -> None:
    """Planted: the same enumeration, by formulas and by kernels, shows the stated TV."""
    tables = dirichlet_tables(3, K, 3, banned)
    target = tables.target_joint()
    by_formulas = emitted_law(weights_by_formulas(Experiment(tables, stop)), tables)
    assert distance(by_formulas, target) == pytest.approx(effect, rel=0.01)
    (weights,) = weights_of([Experiment(tables, stop)], impl="cpu", form="dense")
    assert distance(emitted_law(weights, tables), target) == pytest.approx(effect, rel=0.01)


def test_p_in_place_of_the_residual_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in `ops.rules.residual`: TV .160."""
    calls = P_FOR_RESIDUAL.plant(monkeypatch)
    tables = integer_tables(3, K, 1)
    (weights,) = weights_of([Experiment(tables)], impl="reference", form="dense")
    assert calls.count > 0
    assert distance(emitted_law(weights, tables), tables.target_joint()) > 0.15


def test_unprocessed_q_is_seen() -> None:
    """Planted: drafts at half the temperature that the verifier is told: TV .054."""
    tables = integer_tables(3, K, 1, draft_halving=True)
    experiment = Experiment(tables, claimed_draft_temperature=BASE_TWO)
    (weights,) = weights_of([experiment], impl="cpu", form="dense")
    assert distance(emitted_law(weights, tables), tables.target_joint()) > 0.05


def test_point_mass_scored_by_softmax_is_seen() -> None:
    """Planted: a deterministic draft, verified as if it had been sampled from q: TV .783."""
    tables = integer_tables(3, K, 1)
    experiment = Experiment(tables, follow=deterministic(3, 1), is_declared=False)
    (weights,) = weights_of([experiment], impl="cpu", form="dense")
    assert distance(emitted_law(weights, tables), tables.target_joint()) > 0.75
