"""The head's slots always hold what was decided, and q is the head's law from scratch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairdraft import LLM, SamplingParams
from fairdraft.audit.dense import dense_logits
from fairdraft.models import load_model
from fairdraft.noise import Trace, TraceError
from fairdraft.speculators import (
    DflashSpeculator,
    DraftState,
    MtpModulesSpeculator,
    Proposal,
    SharedKvSpeculator,
    SharedSampler,
)
from fairdraft.speculators.heads import RecallingHead, kind_of_head
from fairdraft.speculators.recurrent import RecurrentSpeculator
from tests.engine.toys import ids, tiny_llama
from tests.law import faults
from tests.speculators.small_heads import KINDS, law_from_scratch, save_small, with_head

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11], [12], [3, 1, 3, 1, 3, 1, 3]]
PARAMS = [
    SamplingParams(seed=1, max_tokens=12),
    SamplingParams(seed=2, max_tokens=17, temperature=0.6),
    SamplingParams(seed=3, max_tokens=14, num_speculative_tokens=1),
    SamplingParams(seed=4, max_tokens=16, temperature=0),
]


class Recorder:
    """Keeps every proposal with the texts that it continued."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rounds: list[tuple[list[list[int]], Proposal]] = []
        for kind in (
            *(RecurrentSpeculator, MtpModulesSpeculator, SharedKvSpeculator),
            DflashSpeculator,
        ):
            monkeypatch.setattr(kind, "propose", self._recorded(kind.propose))

    def _recorded(self, propose: Any) -> Any:
        def record(speculator: Any, state: DraftState) -> Proposal:
            texts = [
                state.token_ids[row, :count].tolist() for row, count in enumerate(state.num_decided)
            ]
            proposal = propose(speculator, state)
            assert isinstance(proposal, Proposal)
            laws = dense_logits(proposal.draft_logits, speculator.vocab_size)
            kept = None if laws is None else laws.clone()
            self.rounds.append(
                (texts, Proposal(proposal.token_ids, proposal.num_draft_tokens.clone(), kept))
            )
            return proposal

        return record


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


def preempting(llm: LLM, at: tuple[int, ...]) -> LLM:
    """Drops the first row's caches before some steps."""
    step, count = llm.engine.step, 0

    def step_and_preempt() -> Any:
        nonlocal count
        count += 1
        if count in at and llm.engine.rows.num_rows:
            llm.engine.preempt(llm.engine.rows.sequences[0].request.request_id)
        return step()

    llm.engine.step = step_and_preempt
    return llm


@pytest.mark.parametrize(
    ("num_drafts", "changes"),
    [
        (1, {}),
        (3, {"norm_before_residual": True}),
        (3, {"dtype": torch.float64}),
        (5, {"feature_layers": (2,), "ids": [0, 3, 7, 20, 21, 50, 96]}),
        (4, {"num_modules": 1}),
        (1, {"num_modules": 2}),
        (4, {"num_modules": 4}),
        (2, {"num_modules": 3, "ids": [0, 3, 7, 20, 21, 50, 96]}),
        (4, {"memory_layers": (1,)}),
        (3, {"memory_layers": (0, 1), "ids": [0, 3, 7, 20, 21, 50, 96], "num_attention_heads": 8}),
        (2, {"memory_layers": (1,), "dtype": torch.float64}),
        (4, {"num_drafts": 4, "num_layers": 2}),
        (2, {"num_drafts": 5, "anchor_first": True, "ids": [0, 3, 7, 20, 21, 50, 96]}),
        (3, {"num_drafts": 3, "mask_token_id": 11, "dtype": torch.float64}),
        (4, {"num_drafts": 4, "anchor_first": True, "markov_rank": 5}),
        (3, {"num_drafts": 5, "markov_rank": 5, "ids": [0, 3, 7, 20, 21, 50, 96]}),
        (4, {"num_drafts": 4, "num_layers": 2, "selector_top_k": 3}),
        (3, {"num_drafts": 4, "selector_top_k": 5, "ids": [0, 3, 7, 20, 21, 50, 96]}),
    ],
)
def test_q_is_the_head_given_the_decided_text(
    num_drafts: int, changes: dict[str, Any], recorder: Recorder, tmp_path: Path
) -> None:
    """After any mix of acceptances and rejections, and after a preemption."""
    # in float64 the network runs as it is, in float32 on a CPU it is written out
    target = tiny_llama(0).to(changes.pop("dtype", torch.float32))
    folder = save_small(target, tmp_path, **changes)
    preempting(llm := with_head(target, folder, num_drafts, max_num_seqs=3), (3, 6)).generate(
        PROMPTS, PARAMS
    )
    chosen = changes.get("ids", list(range(97)))
    others = sorted(set(range(97)) - set(chosen))
    checked = 0
    for texts, proposal in recorder.rounds[::3]:
        assert isinstance(proposal.draft_logits, torch.Tensor)
        for row, text in enumerate(texts):
            drafts = proposal.token_ids[row].tolist()
            for i in range(int(proposal.num_draft_tokens[row])):
                law = law_from_scratch(target, folder, text, drafts[:i])
                found = proposal.draft_logits[row, i]
                np.testing.assert_allclose(found[chosen], law, rtol=1e-3, atol=2e-3)
                assert (found[others] == -torch.inf).all()
                checked += 1
    assert checked > 10
    assert f"speculator: {kind_of_head(folder)}, " in llm.describe()


@pytest.mark.parametrize("name", ["eagle3", "mtp, modules", "shared_kv_mtp", "dflash"])
def test_a_prompt_with_logprobs_is_read_once_and_by_the_head_too(
    name: str, recorder: Recorder, tmp_path: Path
) -> None:
    """Between two others, so that their block spans its row."""
    lm = load_model(target := tiny_llama(0))
    llm = with_head(lm, save_small(target, tmp_path, **KINDS[name]))
    prompts = [list(range(1, 13)), list(range(40, 48)), list(range(20, 33))]
    plain = SamplingParams(temperature=0, max_tokens=6)
    found = []
    for params in (plain, replace(plain, prompt_logprobs=0)):
        before = lm.num_forwarded_tokens
        texts = ids(llm.generate(prompts, [plain, params, plain]))
        found.append((texts, lm.num_forwarded_tokens - before, recorder.rounds))
        recorder.rounds = []
    (texts, fed, rounds), (texts_scored, fed_scored, rounds_scored) = found
    assert (texts_scored, fed_scored) == (texts, fed)
    for one, other in zip(rounds, rounds_scored, strict=True):
        assert other[0] == one[0]
        np.testing.assert_allclose(other[1].draft_logits, one[1].draft_logits, atol=2e-3)


KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
#: those that have keys and values of their own
KEPT = {name: kind for name, kind in KINDS.items() if "memory_layers" not in kind}


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("eagle3", "probabilistic"),
        ("mtp, one module", "greedy"),
        ("mtp, modules", "probabilistic"),
        ("shared_kv_mtp", "probabilistic"),
        ("dflash2", "probabilistic"),
        ("dspark", "probabilistic"),
    ],
)
def test_tokens_are_the_same_alone_batched_preempted_and_in_a_long_prefill(
    name: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_llama(0)
    folder = save_small(target, tmp_path, scale=0.1, **KINDS[name])

    def llm(**options: Any) -> LLM:
        return with_head(target, folder, 3, draft_sample_method=method, **options)

    batched = ids(llm().generate(PROMPTS, PARAMS))
    alone = [ids(llm().generate([p], [q]))[0] for p, q in zip(PROMPTS, PARAMS, strict=True)]
    assert alone == batched
    assert ids(preempting(llm(max_num_seqs=2), (2, 4, 7)).generate(PROMPTS, PARAMS)) == batched
    monkeypatch.setattr("fairdraft.models.causal_lm._PREFILL_TOKENS", 4)
    assert ids(llm().generate(PROMPTS, PARAMS)) == batched


@KIND
def test_greedy_text_is_the_targets(kind: dict[str, Any], tmp_path: Path) -> None:
    target = tiny_llama(0)
    folder = save_small(target, tmp_path, **kind)
    params = SamplingParams(temperature=0, max_tokens=20)
    plain = ids(LLM(target).generate(PROMPTS, params))
    assert ids(with_head(target, folder).generate(PROMPTS, params)) == plain


@KIND
def test_a_round_that_is_redone_finds_the_head_unchanged(
    kind: dict[str, Any], recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after the features of a verified round were shown, before it is committed."""
    target = tiny_llama(0)
    llm = with_head(target, save_small(target, tmp_path, **kind), 3)
    whole = ids(llm.generate(PROMPTS, PARAMS))
    recorder.rounds.clear()
    import fairdraft.engine.core as core

    commit, count = core.commit, 0

    def interrupted(*args: Any) -> Any:
        nonlocal count
        count += 1
        if count % 2 == 0:
            raise KeyboardInterrupt
        return commit(*args)

    monkeypatch.setattr(core, "commit", interrupted)
    step = llm.engine.step

    def persistent() -> Any:
        while True:
            try:
                return step()
            except KeyboardInterrupt:
                continue

    llm.engine.step = persistent
    assert ids(llm.generate(PROMPTS, PARAMS)) == whole
    pairs = list(zip(recorder.rounds, recorder.rounds[1:], strict=False))
    redone = [(one, two) for (text, one), (again, two) in pairs if text == again]
    assert len(redone) > 5
    for one, two in redone:
        assert torch.equal(one.token_ids, two.token_ids)
        assert isinstance(one.draft_logits, torch.Tensor)
        assert isinstance(two.draft_logits, torch.Tensor)
        present = torch.arange(one.token_ids.shape[1]) < one.num_draft_tokens[:, None]
        assert torch.equal(one.draft_logits[present], two.draft_logits[present])


@KIND
def test_near_the_limit_drafts_fit_the_room_that_is_left(
    kind: dict[str, Any], recorder: Recorder, tmp_path: Path
) -> None:
    """Prompts that leave 1 to 6 positions of the target's context."""
    target = tiny_llama(0, max_model_len=24)
    folder = save_small(target, tmp_path, **kind)
    prompts = [[(3 * i) % 97 for i in range(24 - room)] for room in range(1, 7)]
    llm = with_head(target, folder, 4)
    outputs = llm.generate(prompts, SamplingParams(seed=5))
    assert [len(text) for text in ids(outputs)] == list(range(1, 7))
    for texts, proposal in recorder.rounds:
        room = np.array([24 - len(text) - 1 for text in texts])
        assert (proposal.num_draft_tokens.numpy() == np.minimum(room, 4)).all()
    plain = LLM(target).generate(prompts, SamplingParams(temperature=0))
    assert ids(llm.generate(prompts, SamplingParams(temperature=0))) == ids(plain)


@pytest.mark.parametrize("kind", KEPT.values(), ids=KEPT)
def test_a_request_longer_than_the_head_goes_on_without_drafts(
    kind: dict[str, Any], recorder: Recorder, tmp_path: Path
) -> None:
    target = tiny_llama(0)
    folder = save_small(target, tmp_path, max_position_embeddings=10, **kind)
    llm = with_head(target, folder, 3)
    assert "past 11 tokens a request goes on without drafts" in llm.describe()
    prompts = [[1, 2, 3], list(range(40))]
    params = SamplingParams(temperature=0, max_tokens=30)
    assert ids(llm.generate(prompts, params)) == ids(LLM(target).generate(prompts, params))
    for texts, proposal in recorder.rounds:
        for text, count in zip(texts, proposal.num_draft_tokens.tolist(), strict=True):
            # the last of several modules ends at the slot of the first, a block behind the last
            goes_on = kind in (KINDS["eagle3"], KINDS["mtp, one module"])
            assert count <= (max(0, 12 - len(text)) if goes_on else 3)
            assert (count > 0) == (len(text) <= 11)


@KIND
def test_rounds_without_room_are_caught_up(
    kind: dict[str, Any], recorder: Recorder, tmp_path: Path
) -> None:
    """K = 0 for a while: the head still sees every decided token."""
    target = tiny_llama(0)
    folder = save_small(target, tmp_path, **kind)
    llm = with_head(target, folder, 2)
    rows, count = llm.engine.rows, 0
    room = rows.max_draft_tokens

    def sometimes() -> np.ndarray:
        nonlocal count
        count += 1
        return room() * (count // 8 % 2 == 0)

    rows.max_draft_tokens = sometimes
    llm.generate([[1, 2, 3]], SamplingParams(seed=1, max_tokens=40))
    [text], proposal = recorder.rounds[-1]
    assert isinstance(proposal.draft_logits, torch.Tensor)
    for i in range(int(proposal.num_draft_tokens[0])):
        law = law_from_scratch(target, folder, text, proposal.token_ids[0, :i].tolist())
        np.testing.assert_allclose(proposal.draft_logits[0, i], law, rtol=1e-3, atol=2e-3)


@KIND
def test_a_long_prompt_is_read_in_blocks(
    kind: dict[str, Any], recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks longer than what is kept of the block before."""
    monkeypatch.setattr("fairdraft.models.causal_lm._PREFILL_TOKENS", 9)
    target = tiny_llama(0)
    folder = save_small(target, tmp_path, **kind)
    text = [(7 * i) % 97 for i in range(32)]
    with_head(target, folder, 3).generate([text], SamplingParams(seed=1, max_tokens=4))
    _, proposal = recorder.rounds[0]
    assert isinstance(proposal.draft_logits, torch.Tensor)
    for i in range(3):
        law = law_from_scratch(target, folder, text, proposal.token_ids[0, :i].tolist())
        np.testing.assert_allclose(proposal.draft_logits[0, i], law, rtol=1e-3, atol=2e-3)


@KIND
def test_every_draft_sits_at_its_own_position(
    kind: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the last position of the context; drafts at one constant position are caught."""
    target = tiny_llama(0, max_model_len=24)
    folder = save_small(target, tmp_path, **kind)
    prompts = [[(3 * i) % 97 for i in range(24 - room)] for room in range(2, 7)]

    def traced() -> Trace:
        trace = Trace()
        llm = with_head(target, folder, 4, trace=trace)
        llm.generate(prompts, [SamplingParams(seed=i, n=2) for i in range(len(prompts))])
        return trace

    traced().check()
    calls = faults.CONSTANT_OVER_STEPS.plant(monkeypatch)
    with pytest.raises(TraceError):
        traced().check()
    assert calls.count > 0


def test_modules_draft_one_token_each(tmp_path: Path) -> None:
    """No more are asked of them, and how often each stands is counted by its place."""
    target = tiny_llama(0)
    folder = save_small(target, tmp_path, num_modules=3)
    with pytest.raises(ValueError, match="has 3 modules, which draft one token each"):
        with_head(target, folder, 4)
    assert "2 of 3 modules" in with_head(target, folder, 2).describe()
    metrics = with_head(target, folder, 3).generate([[1, 2, 3]], PARAMS[0])[0].metrics
    assert metrics is not None
    assert len(metrics.drafted_per_position) == 3 == len(metrics.accepted_per_position)
    assert metrics.drafted_per_position[0] >= metrics.drafted_per_position[2] > 0


def test_steps_over_the_targets_keys_stand_still_while_noise_moves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With n decided tokens they stand at n - 2, up to the last position of the context."""
    target = tiny_llama(0, max_model_len=24)
    folder = save_small(target, tmp_path, memory_layers=(1,))
    stood: list[np.ndarray] = []
    named: list[tuple[np.ndarray, np.ndarray]] = []
    angles, name = RecallingHead.angles, SharedSampler._named

    def noted_angles(self: RecallingHead, positions: torch.Tensor) -> Any:
        stood.append(positions.numpy().copy())
        return angles(self, positions)

    def noted_name(self: SharedSampler, steps: np.ndarray) -> Any:
        address = name(self, steps)
        named.append((self.anchor.copy(), address.counter[:, 0].astype(np.int64)))
        return address

    monkeypatch.setattr(RecallingHead, "angles", noted_angles)
    monkeypatch.setattr(SharedSampler, "_named", noted_name)
    prompt = [(3 * i) % 97 for i in range(19)]
    with_head(target, folder, 4).generate([prompt] * 3, SamplingParams(seed=5, n=2))
    for positions, (anchor, drawn) in zip(stood, named, strict=True):
        assert (positions == anchor - 2).all()
        steps = np.arange(len(drawn) // len(anchor))[:, None]
        assert (drawn == (anchor + steps).ravel()).all()
    assert max(drawn.max() for _, drawn in named) == 22
