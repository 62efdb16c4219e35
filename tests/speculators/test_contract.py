"""Any speculator that keeps the contract leaves the law alone; one that breaks it is stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fairdraft import LLM, SamplingParams
from fairdraft.engine import Engine
from fairdraft.ops import SparseLogits
from fairdraft.speculators import DraftState, Drawn, Proposal
from tests.engine.toys import P4, Q4, from_probs, ids, tiny_llama

NUM_TRIALS = 6000
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [12], [3, 1, 3, 1]]


class Scripted:
    """Proposes what a function says."""

    name = "scripted"

    def __init__(self, propose: Callable[[DraftState], Proposal], num_drafts: int = 3) -> None:
        self.num_speculative_tokens = num_drafts
        self._propose = propose

    def propose(self, state: DraftState) -> Proposal:
        return self._propose(state)

    def commit(self, num_accepted_tokens: np.ndarray) -> None: ...
    def admit_row(self, row: int) -> None: ...
    def move_row(self, source: int, destination: int) -> None: ...
    def drop_row(self, row: int) -> None: ...


def llm_with(target: Any, propose: Callable[[DraftState], Proposal], rows: int = 8) -> LLM:
    llm = LLM(target, max_num_seqs=rows)
    llm.engine = Engine(
        llm.target, Scripted(propose), max_num_seqs=rows, max_model_len=llm.max_model_len
    )
    return llm


def ragged(state: DraftState) -> tuple[np.ndarray, np.ndarray]:
    """How many drafts each row gets: from 0 to its limit, by its length alone."""
    counts = state.num_decided % (state.max_draft_tokens + 1)
    return counts, np.arange(int(state.max_draft_tokens.max())) < counts[:, None]


def point_masses(ids_of: Callable[[DraftState, tuple], np.ndarray]) -> Callable:
    def propose(state: DraftState) -> Proposal:
        counts, is_present = ragged(state)
        drafts = np.where(is_present, ids_of(state, is_present.shape), -1)
        return Proposal(torch.from_numpy(drafts), torch.from_numpy(counts))

    return propose


def sampled(state: DraftState) -> Proposal:
    """Ragged drafts from Q4; what is declared past them is rubbish."""
    counts, is_present = ragged(state)
    drafts = torch.full(is_present.shape, -1)
    laws = torch.full((*is_present.shape, 4), torch.nan)
    for step in range(1, is_present.shape[1] + 1):
        rows = np.flatnonzero(counts >= step)
        if len(rows):
            logits = torch.tensor(Q4).log().expand(len(rows), -1)
            drawn = state.sampler.draw(logits, step, rows)
            assert isinstance(drawn, Drawn)
            drafts[rows, step - 1], laws[rows, step - 1] = drawn.token_ids, drawn.logits
    return Proposal(drafts, torch.from_numpy(counts), laws)


def sparse(state: DraftState) -> Proposal:
    """Two candidates, 1 and 3, in the sparse form."""
    proposal = sampled_from_two(state)
    assert isinstance(proposal.draft_logits, torch.Tensor)
    candidates = torch.tensor([1, 3, -1]).expand(*proposal.token_ids.shape, -1)
    logits = proposal.draft_logits[..., [1, 3, 0]].nan_to_num(0.0)
    return Proposal(proposal.token_ids, proposal.num_draft_tokens, SparseLogits(candidates, logits))


def sampled_from_two(state: DraftState) -> Proposal:
    counts, is_present = ragged(state)
    drafts = torch.full(is_present.shape, -1)
    laws = torch.full((*is_present.shape, 4), torch.nan)
    law = torch.tensor([-torch.inf, 0.0, -torch.inf, 1.0])
    for step in range(1, is_present.shape[1] + 1):
        rows = np.flatnonzero(counts >= step)
        if len(rows):
            drawn = state.sampler.draw(law.expand(len(rows), -1), step, rows)
            assert isinstance(drawn, Drawn)
            drafts[rows, step - 1], laws[rows, step - 1] = drawn.token_ids, drawn.logits
    return Proposal(drafts, torch.from_numpy(counts), laws)


def constant(token_id: int) -> Callable:
    return point_masses(lambda state, shape: np.full(shape, token_id))


SPECULATORS = {
    "sampled": sampled,
    "sparse": sparse,
    "constant": constant(3),
    "foreign id": constant(4),
    "far id": constant(2**40),
    "repeats": point_masses(lambda s, shape: np.broadcast_to(s.token_ids[:, :1], shape) % 4),
    "none": lambda state: Proposal.empty(state.num_rows),
}


@pytest.mark.parametrize("name", SPECULATORS)
def test_the_law_is_the_targets_whatever_is_proposed(name: str) -> None:
    """Each of four tokens against P4: chi-square below 30.7 at df 3."""
    llm = llm_with(from_probs(P4), SPECULATORS[name], rows=1024)
    prompts = [[0] * (1 + trial % 4) for trial in range(NUM_TRIALS)]
    params = [SamplingParams(seed=seed, max_tokens=4) for seed in range(NUM_TRIALS)]
    outputs = llm.generate(prompts, params)
    tokens = np.array(ids(outputs))
    assert tokens.min() >= 0 and tokens.max() < 4
    for column in tokens.T:
        counts = np.bincount(column, minlength=4)
        expected = NUM_TRIALS * np.array(P4)
        assert ((counts - expected) ** 2 / expected).sum() < 30.7
    accepted = sum(o.metrics.num_accepted_tokens for o in outputs if o.metrics)
    assert (accepted == 0) == (name in ("foreign id", "far id", "none"))


@pytest.mark.parametrize("token_id", [0, 41, 96, 97, 10_000])
def test_greedy_text_is_the_same_whatever_is_proposed(token_id: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=15)
    llm = llm_with(tiny_llama(0), constant(token_id))
    outputs = llm.generate(PROMPTS, params)
    assert ids(outputs) == ids(LLM(tiny_llama(0)).generate(PROMPTS, params))
    for output in outputs:
        metrics = output.metrics
        assert metrics is not None
        assert 0 <= metrics.num_accepted_tokens <= metrics.num_draft_tokens
        assert metrics.num_draft_tokens <= 3 * metrics.rounds


def test_forbidden_drafts_are_never_kept_and_never_emitted() -> None:
    def propose(state: DraftState) -> Proposal:
        proposal = sampled(state)
        proposal.forbidden = proposal.token_ids == 3
        return proposal

    llm = llm_with(from_probs(P4), propose, rows=512)
    params = [SamplingParams(seed=seed, max_tokens=4) for seed in range(1000)]
    for output in llm.generate([[0]] * 1000, params):
        [sample] = output.outputs
        pairs = zip(sample.token_ids, sample.token_sources, strict=True)
        assert (3, "draft") not in set(pairs)


def too_many(state: DraftState) -> Proposal:
    counts = state.max_draft_tokens + 1
    drafts = np.zeros((state.num_rows, int(counts.max())), np.int64)
    return Proposal(torch.from_numpy(drafts), torch.from_numpy(counts))


def with_a_hole(state: DraftState) -> Proposal:
    counts = state.max_draft_tokens
    drafts = np.full((state.num_rows, int(counts.max())), -1)
    return Proposal(torch.from_numpy(drafts), torch.from_numpy(counts))


@pytest.mark.parametrize(
    ("propose", "message"), [(too_many, "more drafts than"), (with_a_hole, "placeholder")]
)
def test_a_broken_contract_stops_at_once(propose: Callable, message: str) -> None:
    llm = llm_with(tiny_llama(0), propose)
    with pytest.raises(AssertionError, match=message):
        llm.generate(PROMPTS, SamplingParams(max_tokens=8))
    assert not llm.engine.has_work
