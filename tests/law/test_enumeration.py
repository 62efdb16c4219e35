"""Exact enumeration of the production rules: decision weights in, law out, no noise, to 1e-12.

p and q depend on the whole history. Integer logits at temperature log2(e) make every weight a power
of two, so that what is compared is the rule and not the arithmetic. There is no sampling here:
false alarm and miss are 0. Planted faults state the total variation (TV) that they cause.
"""

from __future__ import annotations

import itertools

import pytest

from fairdraft.ops.dispatch import Impl
from fairdraft.ops.verify import Rule
from tests.law import stops
from tests.law.enumeration import (
    EXACT,
    Experiment,
    Form,
    K,
    assert_exact,
    deterministic,
    distance,
    emitted_law,
    error_of,
    half_deterministic,
    weights_by_formulas,
    weights_of,
)
from tests.law.faults import P_FOR_RESIDUAL
from tests.law.tables import BASE_TWO, dirichlet_tables, integer_tables

pytestmark = pytest.mark.usefixtures("remembered_rows")

RULES = pytest.mark.parametrize("rule", ["token", "block"])
IMPLS = pytest.mark.parametrize("impl", ["reference", "cpu"])
FORMS = pytest.mark.parametrize("form", ["dense", "sparse"])
SHAPES = pytest.mark.parametrize(("vocab_size", "seed"), [(3, 1), (4, 3)])


@RULES
@pytest.mark.parametrize("stop", stops.LAWFUL.values(), ids=stops.LAWFUL.keys())
@pytest.mark.parametrize("seed", [3, 4])
def test_formulas_emit_the_target_under_every_lawful_stop(stop, seed: int, rule: Rule) -> None:
    tables = dirichlet_tables(3, K, seed)
    assert error_of(weights_by_formulas(Experiment(tables, stop), rule), tables) < EXACT


@RULES
def test_formulas_emit_the_target_with_forbidden_drafts_in_place(rule: Rule) -> None:
    tables = dirichlet_tables(3, K, 3, banned=2)
    assert error_of(weights_by_formulas(Experiment(tables, forbidden=2), rule), tables) < EXACT


@RULES
def test_formulas_emit_the_target_with_point_masses(rule: Rule) -> None:
    tables = dirichlet_tables(3, K, 3)
    for x in itertools.product(range(3), repeat=K):
        experiment = Experiment(tables, follow=lambda h, x=x: x[len(h)])
        assert error_of(weights_by_formulas(experiment, rule), tables) < EXACT


@RULES
@SHAPES
@FORMS
@IMPLS
def test_sampled_drafts_are_exact_under_every_lawful_stop(
    impl: Impl, form: Form, vocab_size: int, seed: int, rule: Rule
) -> None:
    """Ragged K, absent drafts by count and by -1, dense and sparse q, one-hot q now and then."""
    tables = integer_tables(vocab_size, K, seed)
    cold = integer_tables(vocab_size, K, seed, draft_halving=True)
    narrow = integer_tables(vocab_size, K, seed, undrafted=1)
    mixed = half_deterministic(tables)
    experiments = [Experiment(tables, stop) for stop in stops.LAWFUL.values()]
    experiments += [
        Experiment(tables, stop, has_placeholder=True) for stop in stops.LAWFUL.values()
    ]
    experiments += [Experiment(cold), Experiment(narrow), Experiment(narrow, stops.before_flat_law)]
    experiments += [Experiment(mixed), Experiment(mixed, stops.after_end_token)]
    assert_exact(experiments, impl=impl, form=form, rule=rule)


@RULES
@SHAPES
@FORMS
@IMPLS
def test_forbidden_drafts_are_exact_in_place(
    impl: Impl, form: Form, vocab_size: int, seed: int, rule: Rule
) -> None:
    """p is 0 there, marked or not, and the rows after it are junk; also an id of a padded head."""
    banned = vocab_size - 1
    tables = integer_tables(vocab_size, K, seed, banned=banned)
    experiments = [Experiment(tables, stop, forbidden=banned) for stop in stops.LAWFUL.values()]
    experiments += [Experiment(tables, stop) for stop in stops.LAWFUL.values()]
    assert_exact(experiments, impl=impl, form=form, rule=rule)


@RULES
@SHAPES
@pytest.mark.parametrize("form", ["none", "dense", "sparse"])
@IMPLS
def test_point_masses_are_exact(
    impl: Impl, form: Form, vocab_size: int, seed: int, rule: Rule
) -> None:
    """Every deterministic path, and drafters that follow the history; a point mass may be read."""
    tables = integer_tables(vocab_size, K, seed)
    paths = list(itertools.product(range(vocab_size), repeat=K))
    experiments = [Experiment(tables, follow=lambda h, x=x: x[len(h)]) for x in paths]
    experiments += [
        Experiment(tables, stop, follow=deterministic(vocab_size, seed + 100 + k))
        for k, stop in enumerate((*stops.LAWFUL.values(), stops.drops_unlikely_draft))
    ]
    assert_exact(experiments, impl=impl, form=form, rule=rule)


@RULES
@SHAPES
@IMPLS
def test_foreign_ids_are_rejected_exactly(
    impl: Impl, vocab_size: int, seed: int, rule: Rule
) -> None:
    """A point mass on an id outside the vocabulary, at each place; what follows it is junk."""
    tables = integer_tables(vocab_size, K, seed)
    experiments = [
        Experiment(tables, follow=lambda h, i=i: vocab_size + 5 if len(h) == i else 0)
        for i in range(K)
    ]
    assert_exact(experiments, impl=impl, form="none", rule=rule)


@RULES
@SHAPES
@FORMS
@IMPLS
def test_everything_mixes_in_one_batch(
    impl: Impl, form: Form, vocab_size: int, seed: int, rule: Rule
) -> None:
    """Sampled, ragged, absent, forbidden, foreign, point-mass, greedy and plain rows in a call."""
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
        Experiment(tables, follow=lambda h: vocab_size + 5 if len(h) == 1 else 0),
    ]
    assert_exact(experiments, impl=impl, form=form, rule=rule)


#: with the TV that each causes under rule `token` and under rule `block`
UNLAWFUL = {
    "looks at the dropped token": (stops.drops_unlikely_draft, None, 0.0816, 0.0896),
    "looks at where it led": (stops.drops_what_led_astray, None, 0.0786, 0.0797),
    "drops the last by product": (stops.drops_last_of_unlikely_path, None, 0.0100, 0.0133),
    "drops a token as absent": (stops.forbidden_is_absent, None, 0.0414, 0.0500),
    "forbidden treated as absent": (stops.forbidden_is_absent, 2, 0.0275, 0.0637),
}


@RULES
@pytest.mark.parametrize("name", UNLAWFUL)
def test_unlawful_stop_is_seen(name: str, rule: Rule) -> None:
    """Planted: the same enumeration, by formulas and by kernels, shows the stated TV."""
    stop, banned, by_token, by_block = UNLAWFUL[name]
    effect = by_token if rule == "token" else by_block
    tables = dirichlet_tables(3, K, 3, banned)
    target = tables.target_joint()
    by_formulas = emitted_law(weights_by_formulas(Experiment(tables, stop), rule), tables)
    assert distance(by_formulas, target) == pytest.approx(effect, rel=0.01)
    (weights,) = weights_of([Experiment(tables, stop)], impl="cpu", form="dense", rule=rule)
    assert distance(emitted_law(weights, tables), target) == pytest.approx(effect, rel=0.01)


@pytest.mark.parametrize(("rule", "least"), [("token", 0.15), ("block", 0.33)])
def test_p_in_place_of_the_residual_is_seen(
    monkeypatch: pytest.MonkeyPatch, rule: Rule, least: float
) -> None:
    """Planted in `ops.rules.residual`: TV .160; rho p is raced, and its mass decides: TV .334."""
    calls = P_FOR_RESIDUAL.plant(monkeypatch)
    tables = integer_tables(3, K, 1)
    (weights,) = weights_of([Experiment(tables)], impl="reference", form="dense", rule=rule)
    assert calls.count > 0
    assert error_of(weights, tables) > least


@pytest.mark.parametrize(("rule", "least"), [("token", 0.05), ("block", 0.09)])
def test_unprocessed_q_is_seen(rule: Rule, least: float) -> None:
    """Planted: drafts at half the temperature that the verifier is told: TV .054 and .098."""
    tables = integer_tables(3, K, 1, draft_halving=True)
    experiment = Experiment(tables, claimed_draft_temperature=BASE_TWO)
    (weights,) = weights_of([experiment], impl="cpu", form="dense", rule=rule)
    assert error_of(weights, tables) > least


@RULES
def test_point_mass_scored_by_softmax_is_seen(rule: Rule) -> None:
    """Planted: a deterministic draft, verified as if it had been sampled from q: TV .783."""
    tables = integer_tables(3, K, 1)
    experiment = Experiment(tables, follow=deterministic(3, 1), is_declared=False)
    (weights,) = weights_of([experiment], impl="cpu", form="dense", rule=rule)
    assert error_of(weights, tables) > 0.75
