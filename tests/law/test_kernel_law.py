"""Laws of the verification op through the production path, drafts by the shared sampler.

Narrow adversarial vocabularies: 4 tokens with q reversed, 8 tokens (.30 to .05) with q reversed,
16 tokens with draft = -target. False alarm 1e-9 a test, miss 1e-6 at the stated effect: any law at
that total variation (TV) from the target is refused.
"""

from __future__ import annotations

import numpy as np
import pytest

from fairdraft.noise import Trace
from tests.law.faulty_laws import coupled, shared_proposal
from tests.law.judging import Check, assert_law, count, plan_for
from tests.law.round_checks import round_checks, round_trip_checks
from tests.law.rounds import SEEDS, Setup, first_round, generate
from tests.law.tables import P4, P8, Q4, Q8, markov, opposed

LAWS = {"4 tokens": (P4, Q4), "8 tokens": (P8, Q8), "16 tokens": opposed(16, 0.2)}
law_cases = pytest.mark.parametrize(("p", "q"), LAWS.values(), ids=LAWS.keys())
low, high = SEEDS
draft_counts = pytest.mark.parametrize("num_drafts", [1, 2, 4])


@pytest.mark.parametrize(("num_drafts", "seed"), [(1, low), (1, high), (2, high), (4, low)])
@law_cases
def test_every_position_of_a_round_follows_the_target(p, q, num_drafts: int, seed: int) -> None:
    """Effect: TV .02 for the first token, .05 for later ones, .1 where fewer than 1 in 20 come."""
    assert_law(round_checks(Setup(p, q, num_drafts), seed))


def test_first_token_is_not_the_coupled_law() -> None:
    """Planned against the shared draft-residual noise itself: TV .033, .012 and .030."""
    for p, q in LAWS.values():
        plan = plan_for(p, faulty=coupled(p, q))
        tokens = first_round(Setup(p, q, 1), 1 << 33, plan.num_trials).token_ids.numpy()
        assert_law([Check("token 0", plan, np.bincount(tokens[:, 0], minlength=len(p)))])


@draft_counts
@pytest.mark.parametrize(("p", "q"), list(LAWS.values())[:2], ids=list(LAWS)[:2])
def test_several_rounds_follow_the_target(p, q, num_drafts: int) -> None:
    """Markov tables, 8 tokens, so 2 to 8 rounds: joint of 3 tokens, 7 pairs. Effect: TV .05."""
    setup = Setup(*markov(len(p), 1, p, q), num_drafts)
    assert_law(round_trip_checks(setup, 1 << 34, length=8, effect=0.05))


@pytest.mark.parametrize("is_greedy", [False, True], ids=["sampled", "greedy drafts"])
def test_ragged_rounds_follow_the_target(is_greedy: bool) -> None:
    """Rows of 0 to 4 drafts in one call, sampled drafts or point masses. Effect: TV .05."""
    setup = Setup(*markov(8, 2, P8, Q8), 4, is_ragged=True, is_greedy=is_greedy)
    assert_law(round_trip_checks(setup, 1 << 35, length=6, effect=0.05))


def test_tokens_of_several_tiles_follow_the_target() -> None:
    """8 tokens at the borders of four tiles, so that both levels race. Effect: TV .05, then .1."""
    ids = [0, 511, 512, 1023, 1024, 1500, 1501, 2047]
    p, q = np.zeros(2048), np.zeros(2048)
    p[ids], q[ids] = P8, Q8
    plans = [plan_for(p, effect=0.05), plan_for(p, effect=0.1)]
    counts = np.zeros((2, len(p)))
    for begin in range(0, plans[0].num_trials, 1000):
        tokens = first_round(Setup(p, q, 1), (1 << 32) + begin, 1000).token_ids.numpy()
        for i in range(2):
            counts[i] += np.bincount(tokens[tokens[:, i] >= 0, i], minlength=len(p))
    assert_law(Check(f"token {i}", plans[i], counts[i]) for i in range(2))


def test_reference_follows_the_target(remembered_rows: None) -> None:
    """The readable walk, every position of a round. Effect: TV .15 for the first token."""
    p, q = np.array([0.7, 0.3]), np.array([0.3, 0.7])
    plan = plan_for(p, effect=0.15)
    tokens = first_round(Setup(p, q, 2, impl="reference"), 1 << 36, plan.num_trials).token_ids
    assert_law([Check("token 0", plan, np.bincount(tokens[:, 0].numpy(), minlength=2))])


def test_samples_of_a_request_are_independent() -> None:
    """First tokens of samples 0 and 1 under one key, against one proposal shared by both."""
    plan = plan_for(np.outer(P4, P4), faulty=shared_proposal(P4, Q4))
    assert_law([sample_pair(Setup(P4, Q4, 1), plan)])


def sample_pair(setup: Setup, plan) -> Check:
    """First tokens of two samples of each request."""
    num_trials = plan.num_trials
    pair = [first_round(setup, 1 << 37, num_trials, sample=k).token_ids.numpy() for k in (0, 1)]
    tokens = np.stack([first[:, 0] for first in pair], axis=1)
    return Check("samples 0, 1", plan, count(tokens, (setup.vocab_size,) * 2))


@pytest.mark.parametrize("is_greedy", [False, True], ids=["sampled", "greedy drafts"])
def test_no_address_is_used_twice(is_greedy: bool) -> None:
    """The trace of several ragged rounds is clean. Deterministic: no false alarm."""
    trace = Trace()
    setup = Setup(*markov(8, 3, P8, Q8), 4, is_ragged=True, is_greedy=is_greedy, trace=trace)
    generate(setup, 1 << 38, 40, length=8)
    assert len(trace) > 300
    trace.check()
