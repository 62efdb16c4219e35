"""Every speculator's declared q against the frequencies of its drafts, one test for all.

Given what came before it, draft i hits token v with chance q_i(v). Summed over rows and rounds, the
hits of a cell (the first draft's token; a draft's token and the one after it) differ from the sum
of q over the same rows by a martingale whose variance is at most that sum, so Pearson's statistic
against it keeps its false-alarm rate whatever the mixture of laws. It covers the joint law over
steps: the law of draft i + 1 is looked at given draft i.

False alarm 1e-9 a table, miss 1e-6 at a total variation (TV) of .2, by the noncentral chi-square
law with 4 n TV^2, its least noncentrality at that distance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from fairdraft import LLM, SamplingParams
from fairdraft.audit.dense import dense_logits
from fairdraft.audit.faults import FAULTS
from fairdraft.speculators import DraftState, DsparkSpeculator, Proposal
from fairdraft.speculators.chain import DraftChain
from tests.engine.toys import speculating, tiny_llama
from tests.law.faults import Q_OVER_THE_VOCABULARY
from tests.speculators.small_heads import save_small, with_head

VOCAB, NUM_DRAFTS, BATCH, CONTEXT = 6, 3, 200, 20
FALSE_ALARM, MISS, EFFECT = 1e-9, 1e-6, 0.2
#: rarer cells are counted together
MIN_EXPECTED = 20.0


def _num_drafts_needed(cells: int) -> int:
    threshold = stats.chi2.isf(FALSE_ALARM, cells)
    count = 500
    while stats.ncx2.cdf(threshold, cells, 4 * count * EFFECT**2) > MISS:
        count += 100
    return count


NEEDED = _num_drafts_needed(VOCAB * VOCAB)


@dataclass
class Tables:
    """Hits and expected hits of each cell.

    Attributes:
        first: Of the first draft's token [2, V].
        pairs: Of a draft's token given the one before [2, V, V].
        points: Drafts by text, of rows whose drafts are point masses.
    """

    first: np.ndarray = field(default_factory=lambda: np.zeros((2, VOCAB)))
    pairs: np.ndarray = field(default_factory=lambda: np.zeros((2, VOCAB, VOCAB)))
    points: dict[tuple[int, ...], set[tuple[int, ...]]] = field(default_factory=dict)

    def note(self, state: DraftState, proposal: Proposal) -> None:
        """Counts one round."""
        drafts, counts = proposal.token_ids.numpy(), proposal.num_draft_tokens.numpy()
        temperature = state.sampler.temperature
        logits = dense_logits(proposal.draft_logits, VOCAB)
        if logits is None:
            for row, count in enumerate(counts):
                text = tuple(state.token_ids[row, : state.num_decided[row]].tolist())
                limit = int(state.max_draft_tokens[row])
                self.points.setdefault((limit, *text), set()).add(tuple(drafts[row, :count]))
            return
        is_sampled = temperature > 0
        scaled = logits.double().numpy() / np.where(is_sampled, temperature, 1)[:, None, None]
        for step in range(drafts.shape[1]):
            rows = np.flatnonzero((counts > step) & is_sampled)
            law = np.exp(scaled[rows, step] - scaled[rows, step].max(-1, keepdims=True))
            law /= law.sum(-1, keepdims=True)
            hit = drafts[rows, step]
            assert (law[np.arange(len(rows)), hit] > 0).all(), "a draft whose declared q is 0"
            if step == 0:
                np.add.at(self.first[0], hit, 1)
                self.first[1] += law.sum(0)
            else:
                before = drafts[rows, step - 1]
                np.add.at(self.pairs[0], (before, hit), 1)
                np.add.at(self.pairs[1], before, law)

    def failures(self) -> list[str]:
        """Tables that differ from what was declared."""
        found = []
        for name, (hits, expected) in (("first", self.first), ("pairs", self.pairs)):
            assert hits.sum() >= NEEDED, f"{name}: {hits.sum()} drafts, {NEEDED} are needed"
            rare = expected < MIN_EXPECTED
            hits = np.append(hits[~rare], hits[rare].sum())
            expected = np.append(expected[~rare], max(expected[rare].sum(), 1e-9))
            kept = expected >= 1.0
            # what is expected less than once is not judged, but counted
            statistic = ((hits - expected)[kept] ** 2 / expected[kept]).sum()
            if statistic > stats.chi2.isf(FALSE_ALARM, max(int(kept.sum()), 1)):
                found.append(f"{name}: chi-square {statistic:.0f} over {kept.sum()} cells")
        return found


def draft_model(folder: Path, **options: Any) -> LLM:
    target = tiny_llama(0, vocab_size=VOCAB, max_model_len=CONTEXT)
    draft = tiny_llama(1, layers=1, vocab_size=VOCAB, max_model_len=CONTEXT)
    return speculating(target, draft, NUM_DRAFTS, max_num_seqs=BATCH, **options)


def head(**changes: Any) -> Callable[..., LLM]:
    def build(folder: Path, **options: Any) -> LLM:
        target = tiny_llama(0, vocab_size=VOCAB, max_model_len=CONTEXT)
        save_small(target, folder, **changes)
        return with_head(target, folder, NUM_DRAFTS, max_num_seqs=BATCH, **options)

    return build


def ngram(folder: Path, **options: Any) -> LLM:
    target = tiny_llama(0, vocab_size=VOCAB, max_model_len=CONTEXT)
    config = {"method": "ngram", "num_speculative_tokens": NUM_DRAFTS}
    return LLM(target, speculative_config=config, max_num_seqs=BATCH)


def custom(model: Any) -> Callable[..., LLM]:
    def build(folder: Path, **options: Any) -> LLM:
        target = tiny_llama(0, vocab_size=VOCAB, max_model_len=CONTEXT)
        config = {"method": "custom", "model": model, "num_speculative_tokens": NUM_DRAFTS}
        return LLM(target, speculative_config=config | options, max_num_seqs=BATCH)

    return build


def suffix(folder: Path) -> LLM:
    target = tiny_llama(0, vocab_size=VOCAB, max_model_len=CONTEXT)
    config = {"method": "suffix", "num_speculative_tokens": NUM_DRAFTS}
    return LLM(target, speculative_config=config, max_num_seqs=BATCH)


class ByLastTwo:
    """Logits by the last two tokens."""

    laws = torch.randn(VOCAB, VOCAB, VOCAB, generator=torch.Generator().manual_seed(0))

    def logits(self, token_ids: np.ndarray) -> torch.Tensor:
        return self.laws[int(token_ids[-2:][0]), int(token_ids[-1])]


DSPARK = {"num_drafts": 4, "anchor_first": True, "markov_rank": 4, "scale": 1.0}
SAMPLED = {
    "draft_model": draft_model,
    "eagle3": head(),
    "mtp, one module, 4 of 6 ids": head(num_modules=1, ids=[0, 2, 3, 5]),
    "mtp, modules": head(num_modules=NUM_DRAFTS),
    "shared_kv_mtp": head(memory_layers=(1,)),
    "dflash2, 3 of 5 ids": head(
        num_drafts=NUM_DRAFTS, selector_top_k=3, ids=[0, 1, 3, 4, 5], scale=0.6
    ),
    "custom": custom(ByLastTwo()),
    "dflash": head(num_drafts=4, num_layers=2, scale=1.0),
    "dspark, 5 of 6 ids": head(**DSPARK, ids=[0, 1, 2, 3, 5]),
}
#: with a stop on flat laws; given that a draft is present, its law is still q
STOPPED = {
    "draft_model": lambda folder: draft_model(folder, confidence_threshold=0.4),
    "eagle3": lambda folder: head(scale=2.0)(folder, confidence_threshold=0.4),
    "mtp, modules": lambda folder: head(scale=2.0, num_modules=NUM_DRAFTS)(
        folder, confidence_threshold=0.4
    ),
    "dflash2": lambda folder: head(scale=0.6, num_drafts=NUM_DRAFTS, selector_top_k=4)(
        folder, confidence_threshold=0.4
    ),
    "custom": lambda folder: custom(ByLastTwo())(folder, confidence_threshold=0.4),
    "dflash": lambda folder: head(scale=2.0, num_drafts=4)(folder, confidence_threshold=0.4),
    "dspark, by its guess": lambda folder: head(**DSPARK)(folder, confidence_threshold=0.5),
}
GREEDY = {"draft_sample_method": "greedy"}
POINTS = {
    "ngram": ngram,
    "suffix": suffix,
    "custom": custom(lambda ids, most: np.sort(ids)[:most]),
    "draft_model, greedy": lambda folder: draft_model(folder, **GREEDY),
    "eagle3, greedy": lambda folder: head()(folder, **GREEDY),
    "mtp, modules, greedy": lambda folder: head(num_modules=NUM_DRAFTS)(folder, **GREEDY),
    "dflash, greedy": lambda folder: head(num_drafts=4)(folder, **GREEDY),
    "dspark, greedy": lambda folder: head(**DSPARK)(folder, **GREEDY),
}
FILTERS = [{"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.3}, {"top_k": 4, "top_p": 0.9}]
#: parameters of request i, and the length of its random prompt; 0 is one prompt for all
SCENARIOS: dict[str, tuple[list[dict[str, Any]], Callable[[int], int]]] = {
    "one text": ([{"max_tokens": 4}], lambda i: 0),
    "low temperature": ([{"temperature": 0.3}], lambda i: 3),
    "high temperature": ([{"temperature": 5.0}], lambda i: 3),
    "filters": (FILTERS, lambda i: 3),
    "near the limit": ([{}], lambda i: CONTEXT - 6 + i % 4),
    "mixed and ragged": (
        [
            *({}, {"temperature": 0.0}, {"temperature": 0.4, "top_k": 2}, {"temperature": 3.0}),
            *({"num_speculative_tokens": 1}, {"num_speculative_tokens": 2}, {"top_p": 0.6}),
        ],
        lambda i: 1 + i % 11,
    ),
}


def run(llm: LLM, scenario: str) -> Tables:
    """Generates until enough drafts were seen at every place."""
    tables = Tables()
    speculator: Any = llm.speculator
    propose = speculator.propose

    def noted(state: DraftState) -> Proposal:
        proposal = propose(state)
        tables.note(state, proposal)
        return proposal

    speculator.propose = noted
    kinds, length_of = SCENARIOS[scenario]
    generator = np.random.default_rng(0)
    seed = 0
    while tables.first[0].sum() < NEEDED or tables.pairs[0].sum() < NEEDED:
        prompts = [
            generator.integers(VOCAB, size=length_of(seed + i)).tolist() or [2, 5, 0]
            for i in range(BATCH)
        ]
        params = [SamplingParams(seed=seed + i, **kinds[i % len(kinds)]) for i in range(BATCH)]
        llm.generate(prompts, params)
        seed += BATCH
        if not tables.first[0].sum():
            break
    return tables


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", SAMPLED)
def test_drafts_follow_the_declared_law(name: str, scenario: str, tmp_path: Path) -> None:
    assert not run(SAMPLED[name](tmp_path), scenario).failures()


@pytest.mark.parametrize("name", STOPPED)
def test_drafts_that_a_stop_left_follow_it_too(name: str, tmp_path: Path) -> None:
    assert not run(STOPPED[name](tmp_path), "mixed and ragged").failures()


@pytest.mark.parametrize("scenario", ["one text", "mixed and ragged"])
@pytest.mark.parametrize("name", POINTS)
def test_point_masses_are_functions_of_the_decided_text(
    name: str, scenario: str, tmp_path: Path
) -> None:
    """Many seeds, few short texts: what is proposed after a text is always the same."""
    points = run(POINTS[name](tmp_path), scenario).points
    assert any(drafts != {()} for drafts in points.values())
    assert all(len(drafts) == 1 for drafts in points.values())


@pytest.mark.parametrize(
    ("fault", "scenario"),
    [
        ("drawn-at-one", "low temperature"),
        ("unfiltered-q", "filters"),
        ("argmax-as-sampled", "one text"),
        ("raw-q", "mixed and ragged"),
    ],
)
def test_planted_fault_is_refused(fault: str, scenario: str, tmp_path: Path) -> None:
    [planted] = [known for name, known in FAULTS.items() if name == fault]
    with planted.planted() as planting:
        tables = run(head()(tmp_path), scenario)
    assert planting.count > 0
    assert tables.failures()


@pytest.mark.parametrize(
    ("kind", "wrong", "scenario"),
    [
        ({}, "row", "low temperature"),
        ({}, "step", "one text"),
        ({"num_modules": 3}, "step", "one text"),
        ({"num_drafts": 4}, "row", "low temperature"),
        (DSPARK, "step", "one text"),
    ],
)
def test_a_law_of_another_draft_is_refused(
    kind: dict[str, Any],
    wrong: str,
    scenario: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """q of the neighbouring row; q of the first draft for the second.

    The head's weights are large, so that what it reads makes a difference to what it says.
    """
    draw = DraftChain.draw

    def faulty(self: DraftChain, *args: Any) -> Proposal:
        proposal = draw(self, *args)
        assert isinstance(proposal, Proposal)
        laws = proposal.draft_logits
        if isinstance(laws, torch.Tensor):
            laws = laws.clone()
            if wrong == "row":
                laws = laws.roll(1, 0)
            elif laws.shape[1] > 1:
                laws[:, 1] = laws[:, 0]
            proposal.draft_logits = laws
        return proposal

    monkeypatch.setattr(DraftChain, "draw", faulty)
    assert run(head(**({"scale": 2.0} | kind))(tmp_path), scenario).failures()


@pytest.mark.parametrize("wrong", ["without the bias", "before the cut", None])
def test_a_law_other_than_the_one_drawn_from_is_refused(
    wrong: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a DSpark head would report if q were read off the block, or off what top-k cuts; the
    right law of the same cut passes.
    """
    biased, draw = DsparkSpeculator._biased, DraftChain.draw
    reported: list[torch.Tensor] = []

    def noted(self: DsparkSpeculator, base: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        whole = base + self._network.bias(before)
        reported.append(self._law(base if wrong == "without the bias" else whole))
        return biased(self, base, before)

    def faulty(self: DraftChain, *args: Any) -> Proposal:
        reported.clear()
        proposal = draw(self, *args)
        assert isinstance(proposal, Proposal)
        if isinstance(proposal.draft_logits, torch.Tensor):
            laws = proposal.draft_logits.clone()
            for step, law in enumerate(reported):
                laws[proposal.num_draft_tokens > step, step] = law
            proposal.draft_logits = laws
        return proposal

    monkeypatch.setattr(DsparkSpeculator, "_biased", noted)
    monkeypatch.setattr(DraftChain, "draw", faulty)
    if wrong is None:
        monkeypatch.undo()
    cut = {} if wrong == "without the bias" else {"dspark_draft_topk": 3}
    assert bool(run(head(**DSPARK)(tmp_path, **cut), "one text").failures()) == (wrong is not None)


def test_q_over_the_vocabulary_for_drafts_of_candidates_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Q_OVER_THE_VOCABULARY.plant(monkeypatch)
    build = head(num_drafts=NUM_DRAFTS, selector_top_k=3, scale=0.6)
    assert run(build(tmp_path), "one text").failures()
    assert calls.count > 0
