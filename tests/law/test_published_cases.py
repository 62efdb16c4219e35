"""Reports of public engines that touch the ops, as tests; numbers as in the reports.

Law tests: false alarm 1e-9, miss 1e-6 at the stated effect. The others are deterministic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from fairdraft import noise, ops
from fairdraft.noise import Stream
from fairdraft.noise.exponential import acceptance
from fairdraft.ops import Verdict, chain
from fairdraft.ops.dispatch import Impl
from tests.law import faulty_laws
from tests.law.judging import Check, assert_law, plan_for, refused
from tests.law.rounds import PROMPT, Setup, first_round, keys_from
from tests.law.tables import P4, Q4, log, softmax

P4B, Q4B = np.array([0.3, 0.2, 0.3, 0.2]), np.array([0.1, 0.4, 0.2, 0.3])
SEED = 1 << 43
TINY = np.log(np.array([1.0, 1e-9])), np.log(np.array([1.0, 1e-8]))


def verify(
    target: np.ndarray, draft: np.ndarray, drafts: np.ndarray, impl: Impl = "cpu", **options: Any
) -> Verdict:
    """One draft a row, put in place, on constant rows."""
    num_rows = len(drafts)
    return ops.verify_chain(
        torch.from_numpy(np.asarray(target, np.float32)).expand(num_rows, 2, -1),
        torch.from_numpy(np.asarray(drafts))[:, None],
        torch.ones(num_rows, dtype=torch.int64),
        draft_logits=torch.from_numpy(np.asarray(draft, np.float32)).expand(num_rows, 1, -1),
        key=keys_from(SEED, num_rows),
        anchor=PROMPT,
        impl=impl,
        **options,
    )


def test_acceptance_uniforms_are_uniform() -> None:
    """SD-20 a: read off the margins of 200,000 drafts that always stand; false alarm 1e-9 each."""
    num_rows, depth = 50_000, 4
    flat = torch.zeros((num_rows, depth + 1, 2))
    keys = keys_from(SEED, num_rows)
    verdict = ops.verify_chain(
        flat,
        torch.zeros((num_rows, depth), dtype=torch.int64),
        torch.full((num_rows,), depth),
        draft_logits=flat[:, 1:],
        key=keys,
        anchor=PROMPT,
        impl="cpu",
    )
    assert (verdict.num_accepted_tokens == depth).all()
    u = 1 / (1 + verdict.margin[:, :depth].numpy())
    steps = np.arange(depth)
    at = noise.address(
        Stream.ACCEPT,
        key=keys[:, None],
        position=PROMPT + steps,
        anchor=PROMPT,
        node=steps + 1,
    )
    np.testing.assert_allclose(u.ravel(), acceptance(at), rtol=1e-9)
    assert scipy.stats.kstest(u.ravel(), "uniform").pvalue > 1e-9
    assert len(np.unique(u)) > 0.9999 * u.size
    for first, second in ((u[:, :-1], u[:, 1:]), (u[:-1], u[1:])):
        lag = np.corrcoef(first.ravel(), second.ravel())[0, 1]
        assert abs(lag) < 6.1 / first.size**0.5


def test_tiny_probabilities_keep_their_ratio() -> None:
    """SD-20 b: p 1e-9, q 1e-8, draft in place: it stands 1 in 10. Effect: TV .01."""
    plan = plan_for(np.array([0.1, 0.9]), effect=0.01)
    verdict = verify(*TINY, np.ones(plan.num_trials, np.int64))
    accepted = int(verdict.num_accepted_tokens.sum())
    assert verdict.num_broken == 0
    assert_law([Check("accepted", plan, np.array([accepted, plan.num_trials - accepted]))])


@pytest.mark.parametrize("impl", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("p_x", "q_x", "is_broken"),
    [(1e-41, 1e-40, True), (0.5, 0.0, True), (0.0, 0.5, False), (0.0, 0.0, True)],
)
def test_a_draft_without_mass_is_rejected(impl, p_x, q_x, is_broken) -> None:
    """SD-20 b: below 2^-100 of the maximum a weight is 0. A draft of q = 0 is counted as broken."""
    target, draft = log(np.array([1.0, p_x])), log(np.array([1.0, q_x]))
    verdict = verify(target, draft, np.ones(50, np.int64), impl)
    assert not verdict.num_accepted_tokens.any()
    assert verdict.num_broken == 50 * is_broken
    assert not verdict.error.any()
    if p_x < 0.5:
        assert (verdict.token_ids[:, 0] == 0).all()


def test_disjoint_supports_accept_nothing() -> None:
    """SD-20 c."""
    setup = Setup(np.array([0.5, 0.5, 0, 0]), np.array([0, 0, 0.5, 0.5]), 2)
    verdict = first_round(setup, SEED, 20_000)
    assert not verdict.num_accepted_tokens.any()
    assert (verdict.token_ids[:, 0] < 2).all()


def test_no_coin_accepts_a_draft_of_probability_zero(monkeypatch) -> None:
    """SD-40: u = 0 where p = 0 is rejected; u just below 1 where p = q is accepted."""
    target = log(np.array([0.5, 0.0, 0.5]))
    monkeypatch.setattr(chain, "acceptance", lambda at: np.zeros(len(at)))
    never = verify(target, log(P4[:3] / 0.9), np.ones(20, int), "reference")
    assert not never.num_accepted_tokens.any()
    assert (never.token_ids[:, 0] != 1).all()
    monkeypatch.setattr(chain, "acceptance", lambda at: np.full(len(at), 1 - 2.0**-53))
    equal = verify(log(P4), log(P4), np.arange(4), "reference")
    assert (equal.num_accepted_tokens == 1).all()


@pytest.mark.parametrize("only", [0, 3, 7])
def test_a_residual_of_one_entry_gives_that_entry(only: int) -> None:
    """SD-40: leading and trailing zeros around the only positive entry."""
    q = np.full(8, 1 / 8)
    p = q - 0.02 / 7
    p[only] = q[only] + 0.02
    drafts = np.tile(np.delete(np.arange(8), only), 3000)
    verdict = verify(log(p), log(q), drafts)
    is_replaced = verdict.num_accepted_tokens.numpy() == 0
    assert is_replaced.sum() > 100
    assert (verdict.token_ids[:, 0].numpy()[is_replaced] == only).all()


def test_residual_of_the_published_case() -> None:
    """SD-41: given a rejection, P4 and its reverse give [.75, .25, 0, 0]. Effect: TV .02."""
    plan = plan_for(np.array([0.75, 0.25, 0.0, 0.0]), effect=0.02)
    verdict = first_round(Setup(P4, Q4, 1), SEED, int(plan.num_trials / 0.4 * 1.05))
    replaced = verdict.token_ids[verdict.num_accepted_tokens == 0, 0]
    assert_law([Check("replacement", plan, np.bincount(replaced, minlength=4))])


@pytest.mark.parametrize("x", range(8))
def test_rounding_leaves_the_replacement_in_the_support(monkeypatch, x: int) -> None:
    """SD-41: p and q differ by an ulp, and a coin of 1 forces the rejection."""
    monkeypatch.setattr(chain, "acceptance", lambda at: np.ones(len(at)))
    target = log(np.array([0.2, 0.2, 0.2, 0.2, 0.1, 0.1, 0.0, 0.0]))
    draft = target.copy()
    draft[x] = np.nextafter(draft[x], np.float32(np.inf)) if x < 6 else -40.0
    verdict = verify(target, draft, np.full(20, x), "reference")
    assert (verdict.num_accepted_tokens == 0).all()
    assert (verdict.token_ids[:, 0] < 6).all()


def test_a_wide_masked_row_recovers_inside_its_mask() -> None:
    """SD-41: three of 131,072 ids are allowed, every draft is another one."""
    allowed = np.array([5, 70_000, 131_071])
    target = np.full(1 << 17, -np.inf)
    target[allowed] = [0.0, 1.0, 2.0]
    verdict = verify(target, np.zeros(1 << 17), np.arange(100, 160))
    assert not verdict.num_accepted_tokens.any()
    assert np.isin(verdict.token_ids[:, 0].numpy(), allowed).all()


HALF = 30 + np.array([0.12, 0.10, 0.06, 0.05, -0.05, -0.06, -0.10, -0.12])


def half_precision_checks(is_claimed_in_full: bool) -> list[Check]:
    """Drafts drawn from bfloat16 logits, q claimed as drawn or in float32."""
    exact = torch.from_numpy(HALF.astype(np.float32))
    rounded = exact.bfloat16()
    p, q = softmax(exact.numpy()), softmax(rounded.float().numpy())
    plan = plan_for(p, faulty=q)
    num_trials = plan.num_trials
    keys = keys_from(SEED, num_trials)
    at = noise.address(Stream.DRAFT, key=keys, position=PROMPT, anchor=PROMPT, node=1)
    drafts = ops.sample(rounded.expand(num_trials, -1), at, impl="cpu").token_ids
    claimed = exact if is_claimed_in_full else rounded
    verdict = ops.verify_chain(
        exact.expand(num_trials, 2, -1),
        drafts[:, None],
        torch.ones(num_trials, dtype=torch.int64),
        draft_logits=claimed.expand(num_trials, 1, -1),
        key=keys,
        anchor=PROMPT,
        impl="cpu",
    )
    return [Check("token 0", plan, np.bincount(verdict.token_ids[:, 0], minlength=8))]


def test_half_precision_drafts_are_scored_as_drawn() -> None:
    """SD-43: TV .017; planted: q in float32 for drafts drawn from bfloat16."""
    assert_law(half_precision_checks(False))
    assert refused(half_precision_checks(True))


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("top_k", [0, 3])
def test_an_oracle_drafter_is_always_accepted(temperature: float, top_k: int) -> None:
    """SD-47: draft = target, with filters on both: 10,000 of 10,000 drafts stand."""
    setup = Setup(P4, P4, 4, temperature=temperature, top_k=top_k)
    assert (first_round(setup, SEED, 2500).num_accepted_tokens == 4).all()


@pytest.mark.parametrize(
    ("kind", "rate"), [("ratio rule", 0.70), ("argmax draft", 0.20), ("sample and match", 0.23)]
)
def test_acceptance_of_the_published_case(kind: str, rate: float) -> None:
    """SD-47: each rate, and each with the target's law. Effect: TV .01 and .02."""
    plan = plan_for(np.array([rate, 1 - rate]), effect=0.01)
    law = plan_for(P4B, effect=0.02)
    num_trials = max(plan.num_trials, law.num_trials)
    setup = Setup(P4B, Q4B, 1, is_greedy=kind == "argmax draft")
    verdict = first_round(setup, SEED, num_trials)
    if kind == "sample and match":
        at = noise.address(
            Stream.DRAFT,
            key=keys_from(SEED, num_trials),
            position=PROMPT,
            anchor=PROMPT,
            node=1,
        )
        rows = torch.from_numpy(log(Q4B)).expand(num_trials, -1)
        drafts = ops.sample(rows, at, impl="cpu").token_ids
        mass = torch.ones(num_trials, dtype=torch.bool)
        verdict = verify(log(P4B), log(Q4B), drafts.numpy(), point_mass=mass)
    accepted = int(verdict.num_accepted_tokens.sum())
    tokens = np.bincount(verdict.token_ids[:, 0], minlength=4)
    counts = np.array([accepted, num_trials - accepted])
    assert_law([Check("accepted", plan, counts), Check("token 0", law, tokens)])


def test_placeholders_end_a_proposal() -> None:
    """SD-48: 0 to 3 drafts padded with -1 before junk; the cut's token follows p. Effect: .05."""
    plan = plan_for(P4, effect=0.05)
    num_rows, depth = 16 * plan.num_trials, 3
    whole = first_round(Setup(P4, Q4, depth), SEED, num_rows)
    assert whole.num_emitted_tokens.max() == depth + 1
    real = np.arange(num_rows) % (depth + 1)
    keys = keys_from(SEED, num_rows)
    drafts = np.full((num_rows, depth), -1)
    laws = np.full((num_rows, depth, 4), np.nan, np.float32)
    target = np.full((num_rows, depth + 1, 4), np.nan, np.float32)
    for step in range(depth):
        rows = np.flatnonzero(real > step)
        laws[rows, step] = log(Q4)
        at = noise.address(
            Stream.DRAFT, key=keys[rows], position=PROMPT + step, anchor=PROMPT, node=step + 1
        )
        drawn = ops.sample(torch.from_numpy(laws[rows, step]), at, impl="cpu")
        drafts[rows, step] = drawn.token_ids
    target[np.arange(depth + 1) <= real[:, None]] = log(P4)
    verdict = ops.verify_chain(
        torch.from_numpy(target),
        torch.from_numpy(drafts),
        torch.full((num_rows,), depth),
        draft_logits=torch.from_numpy(laws),
        key=keys,
        anchor=PROMPT,
        impl="cpu",
    )
    emitted = verdict.num_emitted_tokens.numpy()
    tokens = verdict.token_ids.numpy()
    assert (emitted <= real + 1).all()
    assert ((tokens >= 0) == (np.arange(depth + 1) < emitted[:, None])).all()
    assert not verdict.error.any()
    is_cut = (emitted == real + 1) & (real < depth)
    at_cut = tokens[is_cut, real[is_cut]]
    assert_law([Check("token at the cut", plan, np.bincount(at_cut, minlength=4))])


def test_the_published_alternatives_are_reproduced() -> None:
    """SD-01, SD-03: closed forms of the faults give the reported laws."""
    np.testing.assert_allclose(faulty_laws.coupled(P4, Q4), [0.434, 0.267, 0.2, 0.1], atol=1e-3)
    steep = softmax(np.arange(1.4, -1.5, -0.4))
    biased = faulty_laws.coupled(steep, steep[::-1])
    assert 0.5 * np.abs(biased - steep).sum() == pytest.approx(0.032, abs=5e-4)
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.7, 0.2, 0.1])
    softmaxed = faulty_laws.misjudged(p, q, np.array([1.0, 0.0, 0.0]))
    np.testing.assert_allclose(softmaxed, [0.714, 0.143, 0.143], atol=1e-3)
