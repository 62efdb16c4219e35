"""The draft's cache always holds what was decided, and q is what the drafts were drawn from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fairdraft import LLM, SamplingParams
from fairdraft.engine.round import RoundRunner
from fairdraft.speculators import DraftModelSpeculator, DraftState, Proposal
from tests.engine.toys import (
    from_probs,
    ids,
    noisy_copy,
    one_at,
    preempting,
    speculating,
    tiny_llama,
)

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11], [12], [3, 1, 3, 1, 3, 1, 3]]


def from_scratch(model: Any, token_ids: list[int]) -> np.ndarray:
    """Next-token logits of a text, without any cache."""
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0, -1].numpy()


class Recorder:
    """Keeps every proposal with the texts that it continued."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rounds: list[tuple[list[list[int]], Proposal]] = []
        propose = DraftModelSpeculator.propose

        def record(speculator: DraftModelSpeculator, state: DraftState) -> Proposal:
            texts = [
                state.token_ids[row, :count].tolist() for row, count in enumerate(state.num_decided)
            ]
            proposal = propose(speculator, state)
            assert isinstance(proposal, Proposal)
            laws = proposal.draft_logits
            kept = laws.clone() if isinstance(laws, torch.Tensor) else None
            self.rounds.append(
                (
                    texts,
                    Proposal(proposal.token_ids.clone(), proposal.num_draft_tokens.clone(), kept),
                )
            )
            return proposal

        monkeypatch.setattr(DraftModelSpeculator, "propose", record)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


@pytest.mark.parametrize("scale", [0.0, 0.02, 1.0])
@pytest.mark.parametrize("num_drafts", [1, 3, 5])
def test_q_is_the_draft_given_the_decided_text(
    scale: float, num_drafts: int, recorder: Recorder
) -> None:
    """After any mix of acceptances and rejections, and after a preemption."""
    target, draft = tiny_llama(0), noisy_copy(5, scale)
    llm = speculating(target, draft, num_drafts, max_num_seqs=3)
    preempting(llm, one_at(3, 6))
    params = [
        SamplingParams(seed=1, max_tokens=12),
        SamplingParams(seed=2, max_tokens=17, temperature=0.6),
        SamplingParams(seed=3, max_tokens=14, num_speculative_tokens=1),
        SamplingParams(seed=4, max_tokens=16, temperature=0),
    ]
    llm.generate(PROMPTS, params)
    checked = 0
    for texts, proposal in recorder.rounds:
        assert isinstance(proposal.draft_logits, torch.Tensor)
        for row, text in enumerate(texts):
            drafts = proposal.token_ids[row].tolist()
            for i in range(int(proposal.num_draft_tokens[row])):
                law = from_scratch(draft, text + drafts[:i])
                np.testing.assert_allclose(proposal.draft_logits[row, i], law, rtol=1e-3, atol=2e-3)
                checked += 1
    assert checked > 20


def test_p_is_the_target_given_the_decided_text(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_llama(0)
    llm = speculating(target, noisy_copy(5, 0.02), 3, max_num_seqs=3)
    seen: list[tuple[list[list[int]], np.ndarray, torch.Tensor]] = []
    verify = RoundRunner._verify

    def record(self: RoundRunner, rows: Any, proposal: Proposal, logits: torch.Tensor) -> Any:
        texts = [
            rows.token_ids[row, :count].tolist() + proposal.token_ids[row].tolist()
            for row, count in enumerate(rows["num_decided"])
        ]
        seen.append((texts, proposal.num_draft_tokens.numpy().copy(), logits.clone()))
        return verify(self, rows, proposal, logits)

    monkeypatch.setattr(RoundRunner, "_verify", record)
    llm.generate(PROMPTS, SamplingParams(seed=1, max_tokens=12))
    for texts, counts, logits in seen:
        depth = logits.shape[1] - 1
        for row, text in enumerate(texts):
            for i in range(counts[row] + 1):
                law = from_scratch(target, text[: len(text) - depth + i])
                np.testing.assert_allclose(logits[row, i], law, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.5}, {"temperature": 2.0, "top_k": 3}, {"top_p": 0.7}, {"min_p": 0.3}],
)
def test_drafts_follow_the_declared_q(options: dict[str, Any], recorder: Recorder) -> None:
    """Frequencies of 6,000 drafts at both places against softmax(draft_logits / temperature)."""
    probs = [0.35, 0.25, 0.2, 0.12, 0.08]
    llm = speculating(from_probs([0.2] * 5), from_probs(probs), 2, max_num_seqs=1024)
    params = [SamplingParams(seed=seed, max_tokens=3, **options) for seed in range(6000)]
    llm.generate([[0]] * 6000, params)
    temperature = options.get("temperature", 1.0)
    counts = np.zeros((2, 5))
    expected = np.zeros((2, 5))
    for _, proposal in recorder.rounds:
        assert isinstance(proposal.draft_logits, torch.Tensor)
        for place in range(proposal.token_ids.shape[1]):
            here = (proposal.num_draft_tokens > place).numpy()
            drafts = proposal.token_ids[:, place].numpy()[here]
            counts[place] += np.bincount(drafts, minlength=5)
            laws = torch.softmax(proposal.draft_logits[:, place].double() / temperature, -1)
            expected[place] += laws.numpy()[here].sum(axis=0)
    assert (counts[expected == 0] == 0).all()
    for place in range(2):
        kept = expected[place] > 0
        difference = counts[place][kept] - expected[place][kept]
        assert (difference**2 / expected[place][kept]).sum() < 33.4  # df 4, 1e-6
    filtered = {"top_k": 3, "top_p": 3, "min_p": 4}
    for name, support in filtered.items():
        if name in options:
            assert (expected[0] > 0).sum() == support


def test_greedy_drafts_are_the_best_token_and_a_point_mass(recorder: Recorder) -> None:
    target, draft = tiny_llama(0), tiny_llama(1, layers=1)
    llm = speculating(target, draft, 2, draft_sample_method="greedy")
    llm.generate(PROMPTS, SamplingParams(seed=1, max_tokens=8))
    for texts, proposal in recorder.rounds:
        assert proposal.draft_logits is None
        for row, text in enumerate(texts):
            drafts = proposal.token_ids[row].tolist()
            for i in range(int(proposal.num_draft_tokens[row])):
                assert drafts[i] == int(from_scratch(draft, text + drafts[:i]).argmax())


def test_each_round_feeds_one_or_two_decided_tokens_and_its_own_drafts() -> None:
    """No decided token is fed to the draft twice, the prompt included."""
    target = tiny_llama(0)
    llm = speculating(target, noisy_copy(5, 0.02), 3)
    assert isinstance(llm.speculator, DraftModelSpeculator)
    draft = llm.speculator.model
    before = draft.num_forwarded_tokens
    [output] = llm.generate([1, 2, 3, 4, 5], SamplingParams(seed=1, max_tokens=30))
    metrics = output.metrics
    assert metrics is not None
    fed = draft.num_forwarded_tokens - before
    # every decided token at most once, and the drafts that were rejected
    rejected = metrics.num_draft_tokens - metrics.num_accepted_tokens
    assert fed <= 5 + 30 + rejected
    assert fed >= metrics.num_draft_tokens


def test_k_of_zero_for_a_while_is_caught_up(recorder: Recorder) -> None:
    """A batch whose rows have no room drafts nothing; later rounds feed what was missed."""
    target = tiny_llama(0)
    llm = speculating(target, target, 2)
    [plain] = ids(LLM(target).generate([1, 2], SamplingParams(temperature=0, max_tokens=30)))
    rows = llm.engine.rows
    room = rows.max_draft_tokens
    count = 0

    def some_rounds_without_room() -> np.ndarray:
        nonlocal count
        count += 1
        return room() * (count // 2 % 2 == 0)

    rows.max_draft_tokens = some_rounds_without_room
    [output] = llm.generate([1, 2], SamplingParams(temperature=0, max_tokens=30))
    assert output.outputs[0].token_ids == plain
    assert output.metrics is not None and output.metrics.acceptance_rate == 1.0
    assert {"target", "draft", "bonus"} <= set(output.outputs[0].token_sources)
