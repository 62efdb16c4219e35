"""Laws of the whole engine, `LLM.generate`, on table models.

The joint law of the first three tokens, adjacent pairs, and the last tokens before the context
limit, against exact enumeration through the target. False alarm 1e-9 a test, miss 1e-6 at the
stated total variation (TV). A planted fault goes through the same test and must be refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fairdraft import LLM, SamplingParams
from fairdraft.noise import Trace, TraceError
from fairdraft.stats import LawTest
from tests.engine.toys import from_probs, speculating
from tests.law import faults
from tests.law.batches import BATCH, LENGTH, MIXED, PLAIN, mixed_checks, plan_joint, run_joint
from tests.law.engines import TABLES, first_tokens, toy_law
from tests.law.faults import Fault
from tests.law.judging import Check, assert_law, count, plan_for, refused
from tests.law.tables import P4, Q4, log


def toy(num_drafts: int, p: Any = TABLES[0], q: Any = TABLES[1], **options: Any) -> LLM:
    """Table models; the last token of the prompt decides the first row."""
    options = {"max_num_seqs": BATCH, **options}
    limit = options.pop("context", 4096)
    target, draft = (from_probs(law, max_model_len=limit) for law in (p, q))
    return speculating(target, draft, num_drafts, **options)


def toy_checks(num_drafts: int, effect: float = 0.05, **options: Any) -> list[Check]:
    """Three tokens of a batch of 64, K drafts a round."""
    plan = plan_joint(toy_law, 4, PLAIN, effect)
    tokens = run_joint(
        toy(num_drafts, **options), [2, 1, 0], plan, max(num_drafts + 1, LENGTH), seed=100
    )
    return [Check("tokens 0 to 2", plan, count(tokens, (4,) * LENGTH))]


@pytest.mark.parametrize(
    ("num_drafts", "method"), [(1, "standard"), (2, "standard"), (4, "standard"), (4, "block")]
)
def test_first_three_tokens_follow_the_target(num_drafts: int, method: str) -> None:
    """Effect: TV .05."""
    assert_law(toy_checks(num_drafts, rejection_sample_method=method))


ENGINE_FAULTS = {
    "shared noise": (faults.SHARED_NOISE, 2, 0.05),
    "off by one": (faults.OFF_BY_ONE, 2, 0.05),
    "constant over steps": (faults.CONSTANT_OVER_STEPS, 2, 0.1),
    "stop that looked": (faults.STOP_THAT_LOOKED, 2, 0.1),
}


@pytest.mark.parametrize(
    ("fault", "num_drafts", "effect"), ENGINE_FAULTS.values(), ids=ENGINE_FAULTS.keys()
)
def test_planted_fault_is_refused(
    monkeypatch, fault: Fault, num_drafts: int, effect: float
) -> None:
    """The test above, planned for a TV of .05 or .1, with a fault planted below the engine."""
    calls = fault.plant(monkeypatch)
    checks = toy_checks(num_drafts, effect)
    assert calls.count > 0
    assert refused(checks)


def stop_checks() -> list[Check]:
    """Drafts end after tokens 1 and 2, where q is flat; three tokens, K = 4. Effect: TV .2.

    After token 0 the draft is the target, so a stop that looks at the drawn token shows most.
    """
    q = TABLES[1].copy()
    q[0], q[1:3] = TABLES[0][0], [0.28, 0.24, 0.24, 0.24]
    plan = plan_joint(toy_law, 4, PLAIN, 0.2)
    llm = toy(4, q=q, confidence_threshold=0.35)
    tokens = run_joint(llm, [2, 1, 0], plan, 5, seed=100)
    return [Check("tokens 0 to 2", plan, count(tokens, (4,) * LENGTH))]


def test_a_stop_on_flat_laws_keeps_the_law_and_one_on_drawn_tokens_does_not(monkeypatch) -> None:
    """Planted: the probability of the drawn token in place of the law's largest one."""
    assert_law(stop_checks())
    calls = faults.CONFIDENCE_OF_THE_DRAWN.plant(monkeypatch)
    checks = stop_checks()
    assert calls.count > 0
    assert refused(checks)


class Rows:
    """Logits of the draft's table, for the shared sampler."""

    def logits(self, token_ids: np.ndarray) -> np.ndarray:
        return log(TABLES[1])[token_ids[-1]]


TEXT_DRAFTS: dict[str, dict[str, Any]] = {
    "suffix": {"method": "suffix", "suffix_decoding_max_cached_requests": 30},
    "prediction": {"method": "prediction"},
    "points": {"method": "custom", "model": lambda ids, most: [int(ids[-2]), 3, 1][:most]},
    "logits": {"method": "custom", "model": Rows()},
}


@pytest.mark.parametrize("name", TEXT_DRAFTS)
def test_drafts_from_text_and_plugins_keep_the_law(name: str) -> None:
    """Suffixes with past outputs on, so that a row's K depends on others. Effect: TV .25."""
    plan = plan_joint(toy_law, 4, PLAIN, 0.25)
    config = TEXT_DRAFTS[name] | {"num_speculative_tokens": 3}
    llm = LLM(from_probs(TABLES[0]), speculative_config=config, max_num_seqs=BATCH)
    prediction = [0, 1, 2, 1, 3, 0, 2] if name == "prediction" else None
    asked = [
        SamplingParams(n=8, seed=seed, max_tokens=5, prediction=prediction)
        for seed in range(-(-plan.num_trials // 8))
    ]
    outputs = llm.generate([[0, 1, 2, 3, 1, 0, 2, 0, 3, 0]] * len(asked), asked)
    tokens = first_tokens(outputs, LENGTH)
    assert_law([Check("tokens 0 to 2", plan, count(tokens, (4,) * LENGTH))])
    accepted = sum(o.metrics.num_accepted_tokens for o in outputs if o.metrics)
    assert accepted > len(tokens) / 4


def test_pairs_over_many_rounds_follow_the_target() -> None:
    """Twelve tokens, 3 to 12 rounds: every adjacent pair. Effect: TV .1."""
    p = TABLES[0]
    start, laws = p[0], []
    for _ in range(11):
        laws.append(start[:, None] * p)
        start = start @ p
    plans = [plan_for(law, effect=0.1) for law in laws]
    num_samples = max(plan.num_trials for plan in plans)
    params = SamplingParams(n=num_samples, seed=7, max_tokens=12)
    tokens = first_tokens(toy(4).generate([[2, 1, 0]], params), 12)
    assert_law(
        Check(f"tokens {i}, {i + 1}", plan, count(tokens[:, i : i + 2], (4, 4)))
        for i, plan in enumerate(plans)
    )


@pytest.mark.parametrize("method", ["sampled", "block", "greedy", "ngram"])
def test_mixed_batch_follows_each_law(method: str) -> None:
    """Temperatures, filters, greedy, fewer drafts, n > 1; drafts of each kind. Effect: TV .15."""
    if method == "ngram":
        config = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
        llm = LLM(from_probs(TABLES[0]), speculative_config=config, max_num_seqs=BATCH)
    else:
        drafts = "greedy" if method == "greedy" else "probabilistic"
        rule = "block" if method == "block" else "standard"
        llm = toy(3, draft_sample_method=drafts, rejection_sample_method=rule)
    prompt = [0, 1, 2, 3, 1, 0, 2, 0, 3, 0]
    assert_law(mixed_checks(llm, prompt, toy_law, 4, effect=0.15))


def near_limit_checks(limit: int = 64, num_drafts: int = 4) -> list[Check]:
    """Uniform tokens up to the last one that the context holds: neighbors are equal 1 in 16."""
    flat = np.full((16, 16), 1 / 16)
    llm = toy(num_drafts, flat, flat, context=limit)
    # two cells of which one is rare: more counts than the plan asks keep the false alarm
    law = np.array([1, 15]) / 16
    plan = LawTest.plan(law, effect=0.1, min_expected=100)
    params = SamplingParams(n=plan.num_trials, seed=3, max_tokens=None)
    prompt = list(range(8)) * 7
    outputs = llm.generate([prompt], params)
    tokens = first_tokens(outputs, limit - len(prompt))
    assert tokens.shape[1] == limit - len(prompt)
    is_equal = tokens[:, 1:] == tokens[:, :-1]
    return [
        Check(f"positions {len(prompt) + i}, +1", plan, np.array([hits, len(tokens) - hits]))
        for i, hits in enumerate(is_equal.sum(0))
    ]


def test_tokens_before_the_context_limit_are_independent(monkeypatch) -> None:
    """Effect: TV .1; planted: draft positions clamped where the last proposal begins."""
    assert_law(near_limit_checks())
    calls = faults.clamped(60).plant(monkeypatch)
    checks = near_limit_checks()
    assert calls.count > 0
    assert refused(checks)


def sample_pairs() -> list[Check]:
    """First tokens of the two samples of each request."""
    law = np.outer(P4, P4)
    plan = plan_for(law, effect=0.1)
    llm = toy(2, np.tile(P4, (4, 1)), np.tile(Q4, (4, 1)))
    asked = [SamplingParams(n=2, seed=i, max_tokens=1 + 2) for i in range(plan.num_trials)]
    tokens = first_tokens(llm.generate([[0]] * len(asked), asked), 1).reshape(-1, 2)
    return [Check("samples 0, 1", plan, count(tokens, (4, 4)))]


def test_samples_of_a_request_are_independent(monkeypatch) -> None:
    """Effect: TV .1; planted: one proposal shared by both samples, TV .32."""
    assert_law(sample_pairs())
    calls = faults.SHARED_BY_SAMPLES.plant(monkeypatch)
    checks = sample_pairs()
    assert calls.count > 0
    assert refused(checks)


def test_trace_of_a_mixed_batch_is_clean(monkeypatch) -> None:
    """Deterministic; the redrafted position biases nothing and is refused here."""
    asked = [replace(params, seed=i, n=2, max_tokens=12) for i, params in enumerate(MIXED.values())]

    def traced() -> Trace:
        trace = Trace()
        toy(4, trace=trace).generate([[2, 1, 0]] * len(asked), asked)
        return trace

    clean = traced()
    assert len(clean) > 300
    clean.check()
    calls = faults.REDRAWN.plant(monkeypatch)
    with pytest.raises(TraceError, match="raced twice"):
        traced().check()
    assert calls.count > 0
