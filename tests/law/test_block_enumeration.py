"""Exact enumeration of rule `block`: decision weights in, law out, no noise, to 1e-12.

As `test_enumeration.py`, which has the rule `token`; p and q depend on the whole history. Planted
faults state the total variation (TV) that they cause.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.law import stops
from tests.law.enumeration import Experiment, Form, emitted_law, weights_by_formulas, weights_of
from tests.law.faults import P_FOR_RESIDUAL, UNCAPPED_RATIO
from tests.law.tables import BASE_TWO, Tables, dirichlet_tables, integer_tables, softmax
from tests.law.test_enumeration import EXACT, SHAPES, K, deterministic, distance

pytestmark = pytest.mark.usefixtures("remembered_rows")

#: sparse q is spread out before either implementation sees it
FORMS = pytest.mark.parametrize(
    ("impl", "form"), [("reference", "dense"), ("cpu", "dense"), ("cpu", "sparse")]
)
block_weights_of = partial(weights_of, rule="block")


def assert_exact(experiments: list[Experiment], impl, form: Form) -> None:
    """Every experiment, as rows of one call, emits the target's law."""
    for experiment, weights in zip(
        experiments, block_weights_of(experiments, impl=impl, form=form), strict=True
    ):
        tables = experiment.tables
        np.testing.assert_allclose(weights.end.sum(1), 1, rtol=EXACT)
        found = distance(emitted_law(weights, tables), tables.target_joint())
        assert found < EXACT, experiment


def half_deterministic(tables: Tables) -> Tables:
    """The drafter has one candidate after an even number of tokens, and all after an odd."""
    draft = {h: row.copy() for h, row in tables.draft_logits.items()}
    for h, row in draft.items():
        if len(h) % 2 == 0:
            row[np.arange(len(row)) != row.argmax()] = -np.inf
    q = {h: softmax(row, tables.draft_temperature) for h, row in draft.items()}
    return replace(tables, draft_logits=draft, q=q)


@pytest.mark.parametrize("stop", stops.LAWFUL.values(), ids=stops.LAWFUL.keys())
@pytest.mark.parametrize("seed", [3, 4])
def test_formulas_emit_the_target_under_every_lawful_stop(stop, seed: int) -> None:
    tables = dirichlet_tables(3, K, seed)
    weights = weights_by_formulas(Experiment(tables, stop), "block")
    assert distance(emitted_law(weights, tables), tables.target_joint()) < EXACT


def test_formulas_emit_the_target_with_forbidden_drafts_in_place() -> None:
    tables = dirichlet_tables(3, K, 3, banned=2)
    weights = weights_by_formulas(Experiment(tables, forbidden=2), "block")
    assert distance(emitted_law(weights, tables), tables.target_joint()) < EXACT


def test_formulas_on_point_masses_end_where_rule_token_does() -> None:
    """One-hot q in the general formula: the same chances of every end, so no acceptance to gain."""
    tables = dirichlet_tables(3, K, 3)
    for x in itertools.product(range(3), repeat=K):
        experiment = Experiment(tables, follow=lambda h, x=x: x[len(h)])
        block, token = (weights_by_formulas(experiment, rule) for rule in ("block", "token"))
        np.testing.assert_allclose(block.end, token.end, atol=EXACT)
        assert distance(emitted_law(block, tables), tables.target_joint()) < EXACT


@SHAPES
@FORMS
def test_sampled_drafts_are_exact_under_every_lawful_stop(
    impl, form: Form, vocab_size: int, seed: int
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
    assert_exact(experiments, impl, form)


@SHAPES
@FORMS
def test_forbidden_drafts_are_exact_in_place(impl, form: Form, vocab_size: int, seed: int) -> None:
    """p is 0 there, marked or not, and the rows after it are junk."""
    banned = vocab_size - 1
    tables = integer_tables(vocab_size, K, seed, banned=banned)
    experiments = [Experiment(tables, stop, forbidden=banned) for stop in stops.LAWFUL.values()]
    experiments += [Experiment(tables, stop) for stop in stops.LAWFUL.values()]
    assert_exact(experiments, impl, form)


@SHAPES
@FORMS
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
        Experiment(tables, follow=lambda h: vocab_size + 5 if len(h) == 1 else 0),
    ]
    assert_exact(experiments, impl, form)


@pytest.mark.parametrize("stop", stops.LAWFUL.values(), ids=stops.LAWFUL.keys())
@pytest.mark.parametrize("seed", range(6))
def test_no_lawful_proposal_is_accepted_less_than_by_rule_token(stop, seed: int) -> None:
    tables = integer_tables(4, K, seed) if seed % 2 else dirichlet_tables(4, K, seed)
    experiment = Experiment(tables, stop)
    (block,) = weights_of([experiment], impl="cpu", form="dense", rule="block")
    (token,) = weights_of([experiment], impl="cpu", form="dense", rule="token")
    gain = block.mean_accepted() - token.mean_accepted()
    assert gain > -EXACT
    if stop is stops.LAWFUL["whole"]:
        assert gain > 0.01


UNLAWFUL = [
    pytest.param(stops.drops_unlikely_draft, None, 0.0896, id="looks at the dropped token"),
    pytest.param(stops.drops_what_led_astray, None, 0.0797, id="looks at where it led"),
    pytest.param(stops.drops_last_of_unlikely_path, None, 0.0133, id="drops the last by product"),
    pytest.param(stops.forbidden_is_absent, None, 0.0500, id="drops a token as absent"),
    pytest.param(stops.forbidden_is_absent, 2, 0.0637, id="forbidden treated as absent"),
]


@pytest.mark.parametrize(("stop", "banned", "effect"), UNLAWFUL)
def test_unlawful_stop_is_seen(stop, banned: int | None, effect: float) -> None:
    """Planted: the same enumeration, by formulas and by kernels, shows the stated TV."""
    tables = dirichlet_tables(3, K, 3, banned)
    target = tables.target_joint()
    by_formulas = emitted_law(weights_by_formulas(Experiment(tables, stop), "block"), tables)
    assert distance(by_formulas, target) == pytest.approx(effect, rel=0.01)
    (weights,) = block_weights_of([Experiment(tables, stop)], impl="cpu", form="dense")
    assert distance(emitted_law(weights, tables), target) == pytest.approx(effect, rel=0.01)


def test_p_in_place_of_the_residual_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in `ops.rules.residual`: rho p is raced, and its mass decides: TV .334."""
    tables = integer_tables(3, K, 1)
    calls = P_FOR_RESIDUAL.plant(monkeypatch)
    (weights,) = block_weights_of([Experiment(tables)], impl="reference", form="dense")
    assert calls.count > 0
    assert distance(emitted_law(weights, tables), tables.target_joint()) > 0.33


def test_a_ratio_without_its_minimum_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in `ops.rules.path_ratio`, where rho may exceed 1: TV .065."""
    tables = integer_tables(3, K, 1)
    calls = UNCAPPED_RATIO.plant(monkeypatch)
    (weights,) = block_weights_of([Experiment(tables)], impl="reference", form="dense")
    assert calls.count > 0
    assert distance(emitted_law(weights, tables), tables.target_joint()) > 0.06


def test_unprocessed_q_is_seen() -> None:
    """Planted: drafts at half the temperature that the verifier is told: TV .098."""
    tables = integer_tables(3, K, 1, draft_halving=True)
    experiment = Experiment(tables, claimed_draft_temperature=BASE_TWO)
    (weights,) = block_weights_of([experiment], impl="cpu", form="dense")
    assert distance(emitted_law(weights, tables), tables.target_joint()) > 0.09
