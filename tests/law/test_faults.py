"""Planted faults: the law test that production passes must refuse each of them.

A fault replaces one production function; every test asserts that the replacement ran. Trials are
planned against the fault's own law where it has a closed form (`faulty_laws.py`), else against a
stated total variation (TV); false alarm 1e-9, miss 1e-6. Two faults bias nothing that can be
measured: they pass the law test and the trace refuses them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fairdraft import noise, ops
from fairdraft.noise import Stream, Trace, TraceError
from fairdraft.noise.exponential import acceptance
from tests.law import faults, faulty_laws
from tests.law.faults import Fault
from tests.law.judging import Check, assert_law, count, plan_for, refused
from tests.law.rounds import PROMPT, Setup, first_round, generate, keys_from
from tests.law.tables import P4, P8, Q4, Q8, joint_law, log, markov, opposed, softmax

SEED = 1 << 41


def assert_caught(
    monkeypatch: pytest.MonkeyPatch, fault: Fault, run: Callable[[], list[Check]]
) -> None:
    """Production passes, the fault runs, and the same test refuses it."""
    assert_law(run())
    calls = fault.plant(monkeypatch)
    checks = run()
    assert calls.count > 0
    assert refused(checks)


def first_token(setup: Setup, faulty: np.ndarray, seed: int = SEED) -> list[Check]:
    """The law of a round's first token, planned against a faulty law."""
    p = softmax(log(setup.p[0]), setup.temperature)
    if setup.top_k:
        p = np.where(p >= np.sort(p)[-setup.top_k], p, 0)
        p /= p.sum()
    plan = plan_for(p, faulty=faulty)
    tokens = first_round(setup, seed, plan.num_trials).token_ids.numpy()
    return [Check("token 0", plan, np.bincount(tokens[:, 0], minlength=len(p)))]


@pytest.mark.parametrize(("p", "q"), [(P4, Q4), (P8, Q8), opposed(8, 0.4)])
def test_shared_noise_of_draft_and_residual(monkeypatch, p, q) -> None:
    """TV .033, .012 and .032, exact law of the race."""
    faulty = faulty_laws.coupled(p, q)
    assert_caught(monkeypatch, faults.SHARED_NOISE, lambda: first_token(Setup(p, q, 1), faulty))


def inverse_cdf_checks(p: np.ndarray, q: np.ndarray) -> list[Check]:
    """A subject that draws its drafts by inverse CDF, at the drafts' addresses."""
    plan = plan_for(p, faulty=faulty_laws.shared_uniform(p, q))
    num_trials = plan.num_trials
    keys, anchor = keys_from(SEED, num_trials), np.full(num_trials, PROMPT)
    at = noise.address(Stream.DRAFT, key=keys, position=anchor, anchor=anchor, node=1)
    drafts = np.searchsorted(np.cumsum(q)[:-1], acceptance(at), side="right")
    verdict = ops.verify_chain(
        torch.from_numpy(log(p)).expand(num_trials, 2, -1),
        torch.from_numpy(drafts)[:, None],
        torch.ones(num_trials, dtype=torch.int64),
        draft_logits=torch.from_numpy(log(q)).expand(num_trials, 1, -1),
        key=keys,
        anchor=anchor,
        impl="cpu",
    )
    return [Check("token 0", plan, np.bincount(verdict.token_ids[:, 0], minlength=len(p)))]


@pytest.mark.parametrize(("p", "q"), [(P4, Q4), (P8, Q8)])
def test_accept_uniform_that_drew_the_draft(monkeypatch, p, q) -> None:
    """TV .10 and .15, exact law of the inverse-CDF subject."""
    assert_caught(monkeypatch, faults.ACCEPT_AS_DRAFT, lambda: inverse_cdf_checks(p, q))


def test_p_in_place_of_the_residual(monkeypatch, remembered_rows: None) -> None:
    """TV .24, exact law; the readable walk, whose rule can be replaced."""
    p, q = np.array([0.5, 0.5]), np.array([0.02, 0.98])
    faulty = faulty_laws.p_for_residual(p, q)
    setup = Setup(p, q, 1, impl="reference")
    assert_caught(monkeypatch, faults.P_FOR_RESIDUAL, lambda: first_token(setup, faulty))


def test_drafts_at_another_temperature_than_q(monkeypatch) -> None:
    """Published case: target [2, 1, 0, -1], draft [0, 1, 2, -1], T = .5, drawn at 1: TV .150."""
    p, q = softmax(np.array([2.0, 1.0, 0.0, -1.0])), softmax(np.array([0.0, 1.0, 2.0, -1.0]))
    right, claimed = softmax(log(p), 0.5), softmax(log(q), 0.5)
    faulty = faulty_laws.misjudged(right, claimed, q)
    np.testing.assert_allclose(right, [0.8650, 0.1171, 0.0158, 0.0021], atol=1e-4)
    np.testing.assert_allclose(faulty, [0.719, 0.237, 0.012, 0.032], atol=1e-3)
    setup = Setup(p, q, 1, temperature=0.5)
    assert_caught(monkeypatch, faults.DRAWN_AT_ONE, lambda: first_token(setup, faulty))


def test_filtered_drafts_with_an_unfiltered_q(monkeypatch) -> None:
    """Top-k 2 on both sides, the verifier is told the draft's full law: TV .111."""
    p, q = np.array([0.5, 0.4, 0.06, 0.04]), np.array([0.3, 0.5, 0.1, 0.1])
    right = np.array([5, 4, 0, 0]) / 9
    faulty = faulty_laws.misjudged(right, q, np.array([0.375, 0.625, 0, 0]))
    setup = Setup(p, q, 1, top_k=2)
    assert_caught(monkeypatch, faults.UNFILTERED_Q, lambda: first_token(setup, faulty))


def test_point_mass_scored_by_a_softmax(monkeypatch) -> None:
    """Published case: p [.5, .3, .2], token 0 always drafted, [.714, .143, .143]: TV .214."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.7, 0.2, 0.1])
    faulty = faulty_laws.misjudged(p, q, np.array([1.0, 0.0, 0.0]))
    np.testing.assert_allclose(faulty, [0.714, 0.143, 0.143], atol=1e-3)
    setup = Setup(p, q, 1, is_greedy=True)
    assert_caught(monkeypatch, faults.SOFTMAXED_POINT_MASS, lambda: first_token(setup, faulty))


def several_rounds(setup: Setup, effect: float) -> list[Check]:
    """Joint law of the first three tokens over Markov tables."""
    size = setup.vocab_size
    law = joint_law(lambda h: setup.p[h[-1] if h else 0], size, 3)
    plan = plan_for(law, effect=effect)
    tokens = generate(setup, SEED, plan.num_trials, 3)
    return [Check("tokens 0 to 2", plan, count(tokens, law.shape))]


@pytest.mark.parametrize("num_drafts", [1, 2, 4])
def test_draft_at_the_address_of_the_token_before(monkeypatch, num_drafts: int) -> None:
    """Effect: TV .05 on three tokens (the fault's own is above .1)."""
    setup = Setup(*markov(4, 1, P4, Q4), num_drafts)
    assert_caught(monkeypatch, faults.OFF_BY_ONE, lambda: several_rounds(setup, 0.05))


@pytest.mark.parametrize("num_drafts", [2, 4])
def test_draft_address_constant_over_steps(monkeypatch, num_drafts: int) -> None:
    """Effect: TV .05 on three tokens; the first token alone cannot show it."""
    setup = Setup(*markov(4, 1, P4, Q4), num_drafts)
    assert_caught(monkeypatch, faults.CONSTANT_OVER_STEPS, lambda: several_rounds(setup, 0.05))


def empty_residual_checks() -> list[Check]:
    """A rejected draft where p and q differ by less than the arithmetic sees.

    The forbidden draft has a chance of 2^-31, so it is put in place: given it, the law is p.
    """
    target, draft = log(np.array([0.5, 0.5, 0.0])), log(np.array([0.5, 0.5, 2.0**-31]))
    plan = plan_for(np.array([0.5, 0.5, 0.0]), effect=0.25)
    num_trials = plan.num_trials
    verdict = ops.verify_chain(
        torch.from_numpy(target).expand(num_trials, 2, -1),
        torch.full((num_trials, 1), 2),
        torch.ones(num_trials, dtype=torch.int64),
        draft_logits=torch.from_numpy(draft).expand(num_trials, 1, -1),
        key=keys_from(SEED, num_trials),
        anchor=PROMPT,
        impl="reference",
    )
    return [Check("replacement", plan, np.bincount(verdict.token_ids[:, 0], minlength=3))]


def test_draft_kept_on_an_empty_residual(monkeypatch, remembered_rows: None) -> None:
    """Emits a token of p = 0; one is enough. Effect in production: TV .25."""
    assert_caught(monkeypatch, faults.KEPT_ON_EMPTY_RESIDUAL, empty_residual_checks)


def test_forbidden_draft_treated_as_absent(monkeypatch) -> None:
    """p [.7, .3, 0], q [.1, .3, .6]: a row sampled from p gives [.52, .48, 0], TV .18."""
    p, q = np.array([0.7, 0.3, 0.0]), np.array([0.1, 0.3, 0.6])
    faulty = faulty_laws.accepted(p, q) * q + q[2] * p

    def run() -> list[Check]:
        plan = plan_for(p, faulty=faulty)
        num_trials = plan.num_trials
        keys = keys_from(SEED, num_trials)
        at = noise.address(Stream.DRAFT, key=keys, position=PROMPT, anchor=PROMPT, node=1)
        laws = torch.from_numpy(log(q)).expand(num_trials, 1, -1)
        drafts = ops.sample(laws[:, 0], at, impl="cpu").token_ids[:, None]
        verdict = ops.verify_chain(
            torch.from_numpy(log(p)).expand(num_trials, 2, -1),
            drafts,
            torch.ones(num_trials, dtype=torch.int64),
            draft_logits=laws,
            key=keys,
            anchor=PROMPT,
            forbidden=drafts == 2,
            impl="cpu",
        )
        return [Check("token 0", plan, np.bincount(verdict.token_ids[:, 0], minlength=3))]

    assert_caught(monkeypatch, faults.FORBIDDEN_AS_ABSENT, run)


def test_proposal_shared_by_samples(monkeypatch) -> None:
    """Each sample is exact alone; they agree .62 where independence gives .30."""
    law = np.outer(P4, P4)
    plan = plan_for(law, faulty=faulty_laws.shared_proposal(P4, Q4))

    def run() -> list[Check]:
        pair = [
            first_round(Setup(P4, Q4, 1), SEED, plan.num_trials, sample=k).token_ids[:, 0]
            for k in (0, 1)
        ]
        return [Check("samples 0, 1", plan, count(torch.stack(pair, 1).numpy(), law.shape))]

    assert_caught(monkeypatch, faults.SHARED_BY_SAMPLES, run)


def undrafted_first() -> Setup:
    """Markov tables whose drafter never proposes id 0."""
    p, q = markov(4, 1, P4, Q4)
    q[:, 0] = 0
    return Setup(p, q / q.sum(1, keepdims=True), 4)


@pytest.mark.parametrize(
    ("fault", "setup"),
    [
        pytest.param(faults.ACCEPT_AS_DRAFT, undrafted_first(), id="accept in the draft's block"),
        pytest.param(faults.REDRAWN, Setup(*markov(4, 1, P4, Q4), 4), id="redrafted position"),
    ],
)
def test_reuse_without_bias_is_caught_by_the_trace(monkeypatch, fault: Fault, setup) -> None:
    """Nothing to measure, yet an address serves twice.

    The acceptance test reads lane 0 of its address, which the draft's race leaves alone if id 0
    cannot be drafted; what remains shared is the Philox block. Under rule `token`, a position that
    is drafted again was never compared with its first draft. Effect of the law test: TV .05.
    """
    setup.trace = None
    calls = fault.plant(monkeypatch)
    assert_law(several_rounds(setup, 0.05))
    assert calls.count > 0
    setup.trace = Trace()
    generate(setup, SEED, 40, length=6)
    with pytest.raises(TraceError, match="raced twice"):
        setup.trace.check()


BIASED = {
    "shared noise": faults.SHARED_NOISE,
    "accept as draft": faults.ACCEPT_AS_DRAFT,
    "off by one": faults.OFF_BY_ONE,
    "constant over steps": faults.CONSTANT_OVER_STEPS,
}


@pytest.mark.parametrize("fault", BIASED.values(), ids=BIASED.keys())
def test_trace_refuses_the_biased_layouts_too(monkeypatch, fault: Fault) -> None:
    """Forty short requests are enough, without statistics; production's trace is clean."""
    setup = Setup(*markov(4, 1, P4, Q4), 4, trace=Trace())
    generate(setup, SEED, 40, length=6)
    assert setup.trace is not None
    setup.trace.check()
    calls = fault.plant(monkeypatch)
    setup.trace = Trace()
    generate(setup, SEED, 40, length=6)
    assert calls.count > 0
    with pytest.raises(TraceError, match="raced twice"):
        setup.trace.check()
