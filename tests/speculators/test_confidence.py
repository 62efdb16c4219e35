"""The stop on flat laws: decided from q before the draw, on the law that is sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairdraft import LLM, SamplingParams
from fairdraft.noise import Stream, Trace
from fairdraft.speculators import DraftModelSpeculator, DraftState, Proposal
from fairdraft.speculators.chain import largest_probability
from tests.engine.toys import from_probs, ids, one_at, preempting, speculating, tiny_llama
from tests.speculators.small_heads import save_small, with_head

FLAT, STEEP = [0.3, 0.25, 0.25, 0.2], [0.1, 0.7, 0.1, 0.1]
#: the draft is sure after tokens 0 and 1, and not after 2 and 3
Q = [STEEP, STEEP, FLAT, FLAT]


def toy(threshold: float, **options: Any) -> LLM:
    return speculating(
        from_probs([0.25] * 4), from_probs(Q), 4, confidence_threshold=threshold, **options
    )


def rounds_of(
    llm: LLM, params: Any, prompts: Any = None
) -> list[tuple[np.ndarray, Proposal, np.ndarray]]:
    """Last decided token of each row, what was proposed, and the limits."""
    seen = []
    speculator: Any = llm.speculator
    propose = speculator.propose

    def noted(state: DraftState) -> Proposal:
        last = state.token_ids[np.arange(state.num_rows), state.num_decided - 1].copy()
        proposal = propose(state)
        seen.append((last, proposal, state.max_draft_tokens.copy()))
        return proposal

    speculator.propose = noted
    llm.generate(prompts or [[0]] * 100, params)
    return seen


@pytest.mark.parametrize("threshold", [0.0, 0.29, 0.31, 0.69, 0.71, 1.0])
@pytest.mark.parametrize("method", ["probabilistic", "greedy"])
def test_drafts_end_where_the_law_is_flat(threshold: float, method: str) -> None:
    """And only there: the token that was drawn from a law has no say."""
    llm = toy(threshold, draft_sample_method=method)
    params = [SamplingParams(seed=seed, max_tokens=8) for seed in range(100)]
    for last, proposal, limits in rounds_of(llm, params):
        drafts, counts = proposal.token_ids.numpy(), proposal.num_draft_tokens.numpy()
        assert drafts.shape[1] == counts.max(initial=0)
        for row, count in enumerate(counts):
            path = [int(last[row]), *drafts[row, :count].tolist()]
            peaks = [max(Q[token]) for token in path]
            assert all(peak >= threshold for peak in peaks[:count])
            assert count == limits[row] or peaks[count] < threshold


def test_the_law_is_the_one_that_is_sampled() -> None:
    """At temperature and top-k of each request: .3 of four becomes .55 of two, or .85."""
    params = [
        SamplingParams(seed=1, max_tokens=5),
        SamplingParams(seed=2, max_tokens=5, top_k=1),
        SamplingParams(seed=3, max_tokens=5, temperature=0.1),
        SamplingParams(seed=4, max_tokens=5, temperature=50.0),
    ]
    for _, proposal, limits in rounds_of(toy(0.5), params, [[2]] * 4)[:1]:
        assert proposal.num_draft_tokens.tolist() == [0, limits[1], limits[2], 0]


def test_largest_probability_is_that_of_the_softmax() -> None:
    law = torch.randn(5, 300, generator=torch.Generator().manual_seed(0))
    temperature = np.array([0.2, 1.0, 7.0, 0.0, 1.0])
    scale = np.where(temperature == 0, 1, temperature)
    expected = (law.double() / torch.from_numpy(scale)[:, None]).softmax(-1).amax(-1)
    np.testing.assert_allclose(largest_probability(law, temperature), expected, rtol=1e-12)
    assert np.isnan(largest_probability(torch.tensor([[torch.nan, 0.0]]), 1.0)).all()


def test_what_is_left_out_was_not_drawn() -> None:
    trace = Trace()
    llm = toy(0.5, trace=trace)
    params = [SamplingParams(seed=seed, max_tokens=6) for seed in range(20)]
    seen = rounds_of(llm, params, [[0]] * 20)
    drawn = sum(int(proposal.num_draft_tokens.sum()) for _, proposal, _ in seen)
    assert sum(entry.stream == Stream.DRAFT for entry in trace) == drawn > 0
    trace.check()


def test_the_cache_holds_what_was_decided_after_any_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """q is the draft's law of the text from scratch, after stops, rejections and a preemption."""
    target, draft = tiny_llama(0), tiny_llama(1, layers=1)
    llm = speculating(target, draft, 4, confidence_threshold=0.06, max_num_seqs=3)
    propose = DraftModelSpeculator.propose
    checked = {"stopped": 0, "whole": 0}

    def noted(self: DraftModelSpeculator, state: DraftState) -> Proposal:
        proposal = propose(self, state)
        assert isinstance(proposal, Proposal)
        for row, number in enumerate(proposal.num_draft_tokens.tolist()):
            text = state.token_ids[row, : state.num_decided[row]].tolist()
            for i in range(number):
                tokens = text + proposal.token_ids[row, :i].tolist()
                law = draft(torch.tensor([tokens])).logits[0, -1]
                assert isinstance(proposal.draft_logits, torch.Tensor)
                torch.testing.assert_close(proposal.draft_logits[row, i], law, rtol=1e-3, atol=2e-3)
            checked["stopped" if number < state.max_draft_tokens[row] else "whole"] += 1
        return proposal

    monkeypatch.setattr(DraftModelSpeculator, "propose", noted)
    preempting(llm, one_at(3, 6))
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8, 9], [12], [3, 1, 3, 1]]
    llm.generate(prompts, [SamplingParams(seed=seed, max_tokens=14) for seed in range(4)])
    assert min(checked.values()) > 3


def test_a_head_stops_too(tmp_path: Path) -> None:
    """Greedy text is plain decoding's, with fewer drafts."""
    target = tiny_llama(0)
    prompts, params = [[1, 2, 3], [5, 6, 7, 8]], SamplingParams(temperature=0, max_tokens=15)
    plain = ids(LLM(target).generate(prompts, params))
    drafted = []
    for threshold in (0.0, 0.15):
        llm = with_head(
            target, save_small(target, tmp_path, scale=0.6), 3, confidence_threshold=threshold
        )
        outputs = llm.generate(prompts, params)
        assert ids(outputs) == plain
        drafted.append(sum(o.metrics.num_draft_tokens for o in outputs if o.metrics))
    assert 0 < drafted[1] < drafted[0]


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), True, "x"])
def test_a_threshold_out_of_range_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="confidence_threshold="):
        toy(value)


def test_a_threshold_without_laws_is_refused() -> None:
    config = {"method": "ngram", "confidence_threshold": 0.4}
    with pytest.raises(ValueError, match="confidence_threshold=0.4 belongs to method"):
        LLM(from_probs(FLAT), speculative_config=config)
