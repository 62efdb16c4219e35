"""Counts add up, and nothing past a rejection or an end is counted."""

from __future__ import annotations

import numpy as np
import pytest

from fairdraft import LLM, SamplingParams
from fairdraft.engine import RequestMetrics, RequestOutput
from tests.engine.toys import P4, Q4, from_probs, speculating, tiny_llama


def check(output: RequestOutput, num_drafts: int) -> RequestMetrics:
    """The identities that hold for every finished request."""
    metrics = output.metrics
    assert metrics is not None and output.finished
    sources = [s for sample in output.outputs for s in sample.token_sources]
    assert metrics.num_emitted_tokens == len(sources)
    assert metrics.num_accepted_tokens == sources.count("draft")
    assert metrics.num_accepted_tokens == sum(metrics.accepted_per_position)
    assert metrics.num_draft_tokens == sum(metrics.drafted_per_position)
    assert len(metrics.accepted_per_position) == max(num_drafts, 1)
    pairs = list(zip(metrics.accepted_per_position, metrics.drafted_per_position, strict=True))
    assert all(0 <= accepted <= drafted <= metrics.rounds for accepted, drafted in pairs)
    # each round but a stopped sequence's last one emits its accepted drafts and one token more
    last = metrics.num_emitted_tokens - metrics.num_accepted_tokens
    assert metrics.rounds - len(output.outputs) <= last <= metrics.rounds
    assert metrics.target_passes == metrics.rounds
    assert metrics.target_passes_saved == metrics.num_emitted_tokens - metrics.rounds
    assert metrics.acceptance_length == metrics.num_emitted_tokens / metrics.rounds
    parts = metrics.draft_seconds + metrics.target_seconds + metrics.verify_seconds
    assert 0 < parts <= metrics.total_seconds * 1.001
    return metrics


@pytest.mark.parametrize("num_drafts", [0, 1, 4])
def test_identities(num_drafts: int) -> None:
    target = from_probs(P4, eos_token_id=3)
    llm = speculating(target, from_probs(Q4), num_drafts) if num_drafts else LLM(target)
    params = [SamplingParams(seed=seed, n=2, max_tokens=1 + seed % 9) for seed in range(60)]
    for output in llm.generate([[0]] * 60, params):
        metrics = check(output, num_drafts)
        if not num_drafts:
            assert metrics.acceptance_rate is None
            assert metrics.acceptance_rate_per_position == [None]
            assert metrics.acceptance_length == 1.0


def test_acceptance_by_position_is_the_overlap_to_its_power() -> None:
    """P4 against Q4 overlap by .6: places accept .6, .36, .216 and .13 of the drafts."""
    llm = speculating(from_probs(P4), from_probs(Q4), 4, max_num_seqs=256)
    # five tokens a round at most: the first round always has room for four drafts
    params = [SamplingParams(seed=seed, max_tokens=5) for seed in range(6000)]
    outputs = llm.generate([[0]] * 6000, params)
    first_block = np.zeros(4)
    for output in outputs:
        sources = output.outputs[0].token_sources
        run = next((i for i, s in enumerate(sources) if s != "draft"), len(sources))
        first_block[: min(run, 4)] += 1
    # 5 sigma of 6,000 trials is .032 at most
    assert np.abs(first_block / 6000 - [0.6, 0.36, 0.216, 0.1296]).max() < 0.032


@pytest.mark.parametrize("temperature", [0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("filters", [{}, {"top_k": 5, "top_p": 0.8}])
def test_an_oracle_draft_always_stands(temperature: float, filters: dict) -> None:
    target = tiny_llama(0, eos_token_id=5)
    llm = speculating(target, target, 4)
    params = SamplingParams(seed=1, temperature=temperature, max_tokens=40, **filters)
    for output in llm.generate([[i, i + 1] for i in range(1, 30)], params):
        metrics = check(output, 4)
        # the two models see blocks of different width: rounding may reject once in a while
        assert metrics.num_draft_tokens - metrics.num_accepted_tokens <= (temperature > 0)


def test_draft_sampling_methods_accept_as_theory_says() -> None:
    """P4b: sampled drafts accept .70, the best draft token as a point mass .20."""
    target, draft = from_probs([0.3, 0.2, 0.3, 0.2]), from_probs([0.1, 0.4, 0.2, 0.3])
    for method, expected in (("probabilistic", 0.7), ("greedy", 0.2)):
        llm = speculating(target, draft, 1, draft_sample_method=method, max_num_seqs=256)
        params = [SamplingParams(seed=seed, max_tokens=2) for seed in range(4000)]
        outputs = llm.generate([[0]] * 4000, params)
        accepted = sum(o.metrics.num_accepted_tokens for o in outputs if o.metrics)
        drafted = sum(o.metrics.num_draft_tokens for o in outputs if o.metrics)
        assert drafted == 4000
        assert abs(accepted / drafted - expected) < 0.037


def test_a_request_that_never_ran_has_empty_metrics() -> None:
    metrics = RequestMetrics()
    assert metrics.acceptance_length == 0.0 and metrics.acceptance_rate is None


@pytest.mark.parametrize("num_drafts", [0, 4])
def test_a_round_forwards_only_what_is_new(num_drafts: int) -> None:
    """One target forward a round for the batch; no decided token is fed twice."""
    target = tiny_llama(0)
    llm = speculating(target, tiny_llama(1, layers=1), num_drafts) if num_drafts else LLM(target)
    prompts = [[1] * 5, [2] * 9, [3] * 2]
    lm = llm.target
    forwards, tokens = lm.num_forwards, lm.num_forwarded_tokens
    rounds = 0
    step = llm.engine.step

    def count() -> list:
        nonlocal rounds
        rounds += 1
        return step()

    llm.engine.step = count
    outputs = llm.generate(prompts, SamplingParams(seed=1, max_tokens=12))
    metrics = [o.metrics for o in outputs if o.metrics]
    # one forward for the three prompts' prefill
    assert lm.num_forwards - forwards == rounds + 1
    fed = sum(m.rounds + m.num_draft_tokens for m in metrics)
    assert lm.num_forwarded_tokens - tokens == fed + (4 + 8 + 1)
