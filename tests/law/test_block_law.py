"""Laws of rule `block` through the production path, and the faults that only it can show.

False alarm 1e-9 a test, miss 1e-6 at the stated effect, a total variation (TV). Rule `block` reads
the tests of drafts that it then drops; a name that is drawn from again after that is no longer
fresh, which rule `token` never notices.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from fairdraft.noise import Trace, TraceError
from fairdraft.ops.verify import Rule
from tests.law import faults
from tests.law.enumeration import Experiment, emitted_law, weights_by_formulas
from tests.law.judging import Check, assert_law, count, plan_for, refused
from tests.law.round_checks import round_checks, round_trip_checks
from tests.law.rounds import Setup, after_replacements, first_round, generate
from tests.law.tables import P4, P8, Q4, Q8, Tables, histories, log, markov

SEED = 1 << 44
P2, Q2 = np.array([0.7, 0.3]), np.array([0.3, 0.7])
Block = partial(Setup, rule="block")


@pytest.mark.parametrize(("p", "q", "num_drafts"), [(P4, Q4, 4), (P8, Q8, 2)])
def test_every_position_of_a_round_follows_the_target(p, q, num_drafts: int) -> None:
    """Effect: TV .02 for the first token, .05 for later ones, .1 where fewer than 1 in 20 come."""
    assert_law(round_checks(Block(p, q, num_drafts), SEED))


@pytest.mark.parametrize(("p", "q", "num_drafts"), [(P4, Q4, 4), (P8, Q8, 3)])
def test_several_rounds_follow_the_target(p, q, num_drafts: int) -> None:
    """Markov tables, 8 tokens: joint of 3 tokens, 7 pairs. Effect: TV .05."""
    setup = Block(*markov(len(p), 1, p, q), num_drafts)
    assert_law(round_trip_checks(setup, SEED + (1 << 36), length=8, effect=0.05))


def test_ragged_rounds_follow_the_target() -> None:
    """Rows of 0 to 4 drafts in one call. Effect: TV .05."""
    setup = Block(*markov(8, 2, P8, Q8), 4, is_ragged=True)
    assert_law(round_trip_checks(setup, SEED + (2 << 36), length=6, effect=0.05))


def test_more_drafts_stand_than_under_rule_token() -> None:
    """Exact means 1.5894 and 1.3056 of 4 drafts; 20,000 rounds, six standard deviations apart."""
    block, token = (
        first_round(Setup(P4, Q4, 4, rule=rule), SEED, 20_000).num_accepted_tokens.double()
        for rule in ("block", "token")
    )
    assert token.mean() == pytest.approx(1.3056, abs=6 * float(token.std()) / 20_000**0.5)
    assert block.mean() == pytest.approx(1.5894, abs=6 * float(block.std()) / 20_000**0.5)


def replacement_checks(rule: Rule) -> list[Check]:
    """The token after a replaced draft, four drafts a round. Effect: TV .04."""
    plan = plan_for(P4, effect=0.04)
    tokens = after_replacements(Setup(P4, Q4, 4, rule=rule), SEED, plan.num_trials // 2, 12)
    return [Check("after a replacement", plan, np.bincount(tokens, minlength=4))]


def test_position_alone_is_no_name_under_rule_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts, tests and replacements named by position: TV .046 after a replacement.

    A dropped draft and its failed test come back at the same position in the next round. Rule
    `token` never looked at them, so there the same names show nothing.
    """
    assert_law(replacement_checks("block"))
    calls = faults.BY_POSITION.plant(monkeypatch)
    assert_law(replacement_checks("token"))
    assert refused(replacement_checks("block"))
    assert calls.count > 0


@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_trace_names_what_position_alone_names_twice(monkeypatch, rule: Rule) -> None:
    """Forty short requests; production's trace is clean under both rules. No false alarm."""
    setup = Setup(*markov(4, 1, P4, Q4), 4, is_ragged=True, rule=rule, trace=Trace())
    generate(setup, SEED, 40, length=8)
    assert setup.trace is not None and len(setup.trace) > 300
    setup.trace.check()
    faults.BY_POSITION.plant(monkeypatch)
    setup.trace = Trace()
    generate(setup, SEED, 40, length=8)
    with pytest.raises(TraceError, match="raced twice"):
        setup.trace.check()


def uncapped_law(monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """First two tokens of two drafts whose rho has no minimum, by enumeration."""
    rows = histories(2, 2)
    p, q = ({h: law for h in rows} for law in (P2, Q2))
    tables = Tables(2, 2, {h: log(P2) for h in rows}, {h: log(Q2) for h in rows}, p, q)
    with monkeypatch.context() as planted:
        faults.UNCAPPED_RATIO.plant(planted)
        weights = weights_by_formulas(Experiment(tables), "block")
    return emitted_law(weights, tables).sum(-1)


def test_a_ratio_without_its_minimum(monkeypatch, remembered_rows: None) -> None:
    """A path's rho may exceed 1: TV .12 on the second token, none on the first; exact law."""
    faulty = uncapped_law(monkeypatch)
    law = np.outer(P2, P2)
    assert 0.5 * np.abs(faulty - law).sum() == pytest.approx(0.12)
    np.testing.assert_allclose(faulty.sum(1), P2, atol=1e-12)
    plan = plan_for(law, faulty=faulty)

    def checks() -> list[Check]:
        tokens = generate(Block(P2, Q2, 2, impl="reference"), SEED, plan.num_trials, 2)
        return [Check("tokens 0, 1", plan, count(tokens, (2, 2)))]

    assert_law(checks())
    calls = faults.UNCAPPED_RATIO.plant(monkeypatch)
    assert refused(checks()) and calls.count > 0
