"""Exact enumeration of rule `block` beside rule `token`, and of what only `block` can get wrong.

What both rules must do is in `test_enumeration.py`. No sampling: false alarm and miss are 0.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.law import stops
from tests.law.enumeration import EXACT, Experiment, K, error_of, weights_by_formulas, weights_of
from tests.law.faults import UNCAPPED_RATIO
from tests.law.tables import dirichlet_tables, integer_tables

pytestmark = pytest.mark.usefixtures("remembered_rows")


def test_formulas_on_point_masses_end_where_rule_token_does() -> None:
    """One-hot q in the general formula: the same chances of every end, so no acceptance to gain."""
    tables = dirichlet_tables(3, K, 3)
    for x in itertools.product(range(3), repeat=K):
        experiment = Experiment(tables, follow=lambda h, x=x: x[len(h)])
        block, token = (weights_by_formulas(experiment, rule) for rule in ("block", "token"))
        np.testing.assert_allclose(block.end, token.end, atol=EXACT)


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


def test_a_ratio_without_its_minimum_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in `ops.rules.path_ratio`, where rho may exceed 1: TV .065."""
    tables = integer_tables(3, K, 1)
    calls = UNCAPPED_RATIO.plant(monkeypatch)
    (weights,) = weights_of([Experiment(tables)], impl="reference", form="dense", rule="block")
    assert calls.count > 0
    assert error_of(weights, tables) > 0.06
