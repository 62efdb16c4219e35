"""Rule `common_noise` through the production ops: texts, laws, and how often a guess is right.

False alarm 1e-9 a test, miss 1e-6 at the stated effect, a total variation (TV). The text is that of
plain decoding token for token, so the law tests are of plain decoding at the rule's own addresses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fairdraft.noise import Address, Stream, Trace
from fairdraft.noise.trace import Role
from fairdraft.ops import rules, verify
from fairdraft.ops.arithmetic import TILE
from fairdraft.speculators import CommonSampler, SharedSampler
from tests.law.faulty_laws import coupled
from tests.law.judging import Check, assert_law, plan_for, refused
from tests.law.round_checks import round_trip_checks
from tests.law.rounds import Setup, first_round, generate
from tests.law.tables import P4, P8, Q4, Q8, markov

SEED = 1 << 41
TABLES = markov(4, 1, P4, Q4)
COMMON = Setup(*TABLES, 4, rule="common_noise")


@pytest.mark.parametrize(
    "change",
    [
        {"num_drafts": 1},
        {"is_ragged": True},
        {"is_greedy": True},
        {"q": TABLES[0]},
        {"method": "gumbel"},
        {"temperature": 0.6, "top_k": 3},
    ],
    ids=["K = 1", "ragged", "greedy", "p = q", "gumbel", "filtered"],
)
def test_the_text_is_that_of_plain_decoding(change: dict[str, Any]) -> None:
    plain = Setup(*TABLES, 0)
    asked = {name: change[name] for name in ("method", "temperature", "top_k") if name in change}
    expected = generate(replace(plain, **asked), SEED, 400, 12)
    found = generate(replace(COMMON, **change), SEED, 400, 12)
    assert (found == expected).all()


def test_wrong_guesses_cost_drafts_and_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses with noise of their own: as lawful, but right only as often as by chance."""
    expected = generate(COMMON, SEED, 400, 12)
    common = first_round(COMMON, SEED, 4_000).num_accepted_tokens.double().mean()
    monkeypatch.setattr(CommonSampler, "_named", SharedSampler._named)
    assert (generate(COMMON, SEED, 400, 12) == expected).all()
    own = first_round(COMMON, SEED, 4_000).num_accepted_tokens.double().mean()
    assert own < common - 0.2


def test_several_rounds_follow_the_target() -> None:
    """Markov tables, ragged drafts, 6 tokens: three jointly, and each pair. Effect: TV .05."""
    setup = replace(COMMON, is_ragged=True)
    assert_law(round_trip_checks(setup, SEED, 6, 0.05))


def test_one_position_for_all_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above, with the noise of a round's first token at every row of it."""
    original, calls = verify.chain_addresses, []

    def stuck(at: Any, num_drafts: np.ndarray, depth: int, **options: Any) -> Any:
        tests, final_at = original(at, num_drafts, depth, **options)
        counter = final_at.counter.reshape(-1, depth + 1, 4).copy()
        counter[..., 0] = counter[:, :1, 0]
        calls.append(depth)
        return tests, Address(final_at.key, counter.reshape(-1, 4))

    monkeypatch.setattr(verify, "chain_addresses", stuck)
    assert refused(round_trip_checks(replace(COMMON, is_ragged=True), SEED, 6, 0.05))
    assert calls


def test_common_noise_below_a_ratio_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the types forbid: drafts and replacements of rule `token` from TARGET noise, TV .03."""
    plan = plan_for(P4, faulty=coupled(P4, Q4))
    setup = Setup(P4, Q4, 1)

    def checks() -> list[Check]:
        tokens = first_round(setup, SEED, plan.num_trials).token_ids.numpy()[:, 0]
        return [Check("token 0", plan, np.bincount(tokens, minlength=4))]

    assert_law(checks())
    original, calls = verify.chain_addresses, []

    def shared(at: Any, num_drafts: np.ndarray, depth: int, **options: Any) -> Any:
        calls.append(depth)
        tests = original(at, num_drafts, depth)[0]
        return tests, original(at, num_drafts, depth, is_common=True)[1]

    monkeypatch.setattr(SharedSampler, "_named", CommonSampler._named)
    monkeypatch.setattr(verify, "chain_addresses", shared)
    assert refused(checks()) and calls


def tiled(law: np.ndarray) -> np.ndarray:
    """Eight ids, four at the end of the first tile and four at the beginning of the second."""
    wide = np.zeros(TILE + 4)
    wide[TILE - 4 :] = law
    return wide


@pytest.mark.parametrize(
    ("p", "q", "method"),
    [(P8, Q8, "gumbel"), (P8, Q8, "race"), (tiled(P8), tiled(Q8), "race")],
    ids=["flat", "one tile", "two tiles"],
)
def test_drafts_stand_as_often_as_the_formula_says(
    p: np.ndarray, q: np.ndarray, method: Any
) -> None:
    """Effect: TV .02 of the accepted share; the bound and the ratio rule enclose it."""
    chance = rules.race_match_probability(p, q, TILE if method == "race" else len(p))
    tv = 0.5 * np.abs(p - q).sum()
    assert (1 - tv) / (1 + tv) - 0.06 < chance < 1 - tv
    plan = plan_for(np.array([chance, 1 - chance]), effect=0.02)
    setup = Setup(p, q, 1, rule="common_noise", method=method)
    accepted = int(first_round(setup, SEED, plan.num_trials).num_accepted_tokens.sum())
    assert_law([Check("accepted", plan, np.array([accepted, plan.num_trials - accepted]))])


def test_match_probabilities_by_other_means() -> None:
    """Two ids are coupled best; the bound holds and is met; tiles of one id are flat."""
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 7, 40):
        for _ in range(40):
            p, q = rng.dirichlet(np.full(size, 0.5), 2)
            tv = 0.5 * np.abs(p - q).sum()
            chance = rules.match_probability(p, q)
            assert (1 - tv) / (1 + tv) - 1e-12 <= chance <= 1 - tv + 1e-12
            assert size > 2 or chance == pytest.approx(1 - tv)
            for tile in (1, size):
                assert rules.race_match_probability(p, q, tile) == pytest.approx(chance)
    # uniform on ids 0 to n - 1, and on 1 to n
    n = 9
    p, q = np.zeros((2, n + 1))
    p[:n], q[1:] = 1 / n, 1 / n
    assert rules.match_probability(p, q) == pytest.approx((n - 1) / (n + 1))


def test_the_trace_checks_the_target_and_logs_the_guesses() -> None:
    trace = Trace()
    generate(replace(COMMON, trace=trace, is_ragged=True), SEED, 40, 8)
    trace.check()
    assert {use.stream for use in trace} == {Stream.TARGET}
    assert {use.role for use in trace.guesses} == {Role.GUESS}
    places = {(use.key, use.position) for use in trace.guesses}
    # a position whose guess was dropped is guessed again, from another law
    assert len(places) < len(trace.guesses)
    assert all((use.stream, use.anchor, use.node) == (1, 0, 0) for use in trace.guesses)
