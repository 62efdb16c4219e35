"""The engine as a subject, on tables whose laws are known exactly.

Axes: V vocabulary, N tokens.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from fairdraft import LLM, SamplingParams
from fairdraft.audit.layouts import coupled
from fairdraft.audit.session import run_audit
from fairdraft.audit.settings import AuditSettings, OraclePolicy
from fairdraft.audit.subjects.engine import EngineSubject
from fairdraft.audit.tracing import check_addresses
from fairdraft.engine.round import RoundRunner
from fairdraft.ops import rules
from fairdraft.speculators import DraftModelSpeculator
from fairdraft.stats.tokens import ScoredTokens, Source
from tests.engine.toys import speculating, table_model, tiny_llama

VOCAB_SIZE = 24
PROMPTS = [[1, 2], [3], [4, 5, 6]]
SETTINGS = AuditSettings(eps=0.15, max_tokens=30_000)


def table(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1.5, (VOCAB_SIZE, VOCAB_SIZE))


TARGET, DRAFT = table(0), table(1) * 0.5 + table(0) * 0.5


def tables(**options: Any) -> LLM:
    return speculating(table_model(TARGET), table_model(DRAFT), 3, **options)


def subject(llm: LLM | None = None, **params: Any) -> EngineSubject:
    return EngineSubject(
        llm or tables(),
        PROMPTS,
        SamplingParams(ignore_eos=True, **params),
        num_requests=16,
        num_tokens=24,
    )


def first_batches(count: int, **params: Any) -> list[ScoredTokens]:
    return [batch.tokens for batch in islice(subject(**params).batches(), count)]


def filtered(logits: np.ndarray, temperature: float, top_k: int) -> np.ndarray:
    """Laws of rows of logits, written out once more."""
    kept = logits
    if top_k:
        kth = np.sort(logits, axis=1)[:, -top_k]
        kept = np.where(logits >= kth[:, None], logits, -np.inf)
    weights = np.exp((kept - kept.max(1, keepdims=True)) / temperature)
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, 0), (0.7, 0), (1.3, 5)])
def test_every_token_has_the_laws_of_the_tables(temperature: float, top_k: int) -> None:
    (tokens,) = first_batches(1, temperature=temperature, top_k=top_k)
    before = tokens.previous[:, 0]
    target = filtered(TARGET[before], temperature, top_k)
    assert np.allclose(tokens.target, target, atol=2e-6)
    assert tokens.draft is not None
    has_draft = tokens.has_draft
    assert (has_draft == (tokens.drafted >= 0)).all() and has_draft.mean() > 0.5
    draft = filtered(DRAFT[before], temperature, top_k)
    assert np.allclose(tokens.draft[has_draft], draft[has_draft], atol=2e-6)
    if top_k:
        unfiltered = filtered(TARGET[before], temperature, 0)
        assert tokens.unfiltered is not None and tokens.raw_draft is None
        assert np.allclose(tokens.unfiltered, unfiltered, atol=2e-6)
    else:
        assert tokens.unfiltered is None
        assert (tokens.raw_draft is None) == (temperature == 1)
    if temperature == 0.7:
        assert tokens.raw_draft is not None
        raw = filtered(DRAFT[before], 1.0, 0)
        assert np.allclose(tokens.raw_draft[has_draft], raw[has_draft], atol=2e-6)


def test_tokens_are_those_of_the_engine_in_order() -> None:
    audited = subject()
    tokens = next(audited.batches()).tokens
    prompts, params = audited.requests(0, 16)
    assert prompts[:5] == [PROMPTS[0], PROMPTS[0], PROMPTS[1], PROMPTS[1], PROMPTS[2]]
    outputs = tables().generate([{"prompt_token_ids": ids} for ids in prompts], params)
    expected = [
        (text, position, token_id, source)
        for text, sample in enumerate(s for output in outputs for s in output.outputs)
        for position, (token_id, source) in enumerate(
            zip(sample.token_ids, sample.token_sources, strict=True)
        )
    ]
    names = {
        Source.ACCEPTED: "draft",
        Source.REPLACED: "residual",
        Source.BONUS: "bonus",
        Source.PLAIN: "target",
    }
    found = zip(tokens.text, tokens.position, tokens.token_id, tokens.source, strict=True)
    assert [(int(a), int(b), int(c), names[Source(d)]) for a, b, c, d in found] == expected
    accepted = tokens.source == Source.ACCEPTED
    assert (tokens.drafted[accepted] == tokens.column[accepted]).all()
    replaced = tokens.source == Source.REPLACED
    assert (tokens.drafted[replaced] != tokens.column[replaced]).all()
    begins = (tokens.slot == 0)[1:]
    assert (np.where(begins, 0, tokens.slot[:-1] + 1) == tokens.slot[1:]).all()
    assert (
        tokens.previous[tokens.position == 0, 0] == np.repeat([p[-1] for p in prompts], 2)
    ).all()


def test_batches_go_on_from_a_cursor() -> None:
    whole = list(islice(subject().batches(), 3))
    again = next(subject().batches(whole[1].cursor))
    assert again.cursor == whole[2].cursor == {"seed": 48, "text": 96}
    for name in ("column", "target", "text", "source"):
        assert np.array_equal(getattr(again.tokens, name), getattr(whole[2].tokens, name))
    assert [int(batch.tokens.text[0]) for batch in whole] == [0, 32, 64]


def test_a_seed_moves_every_request() -> None:
    assert not np.array_equal(first_batches(1)[0].column, first_batches(1, seed=1000)[0].column)


def test_a_text_is_scored_up_to_where_it_was_cut() -> None:
    llm = speculating(table_model(TARGET, eos_token_id=7), table_model(DRAFT, eos_token_id=7), 3)
    audited = EngineSubject(llm, PROMPTS, SamplingParams(), num_requests=16, num_tokens=24)
    tokens = next(audited.batches()).tokens
    ends = np.flatnonzero(np.diff(np.append(tokens.text, -1)))
    is_cut = tokens.position[ends] < 23
    assert is_cut.any() and (tokens.token_id[ends[is_cut]] == 7).all()
    assert (tokens.token_id == 7).sum() == (tokens.token_id[ends] == 7).sum()
    assert run_audit(audited, SETTINGS).verdict.state == "PASS"


def test_point_masses_are_marked_and_have_no_law() -> None:
    greedy = subject(tables(draft_sample_method="greedy"))
    tokens = next(greedy.batches()).tokens
    assert tokens.draft is None and tokens.point_mass is not None
    assert (tokens.point_mass == (tokens.drafted >= 0)).all() and tokens.point_mass.any()
    best = DRAFT[tokens.previous[:, 0]].argmax(1)
    assert (tokens.drafted[tokens.point_mass] == best[tokens.point_mass]).all()


@pytest.mark.parametrize(
    ("llm", "params"),
    [
        (tables, {}),
        (tables, {"temperature": 0.8, "top_p": 0.9}),
        (lambda: tables(rejection_sample_method="block"), {}),
        (lambda: tables(draft_sample_method="greedy"), {}),
        (lambda: LLM(table_model(TARGET)), {}),
    ],
    ids=["sampled drafts", "filters", "block", "greedy drafts", "plain"],
)
def test_the_engine_passes(llm: Any, params: dict[str, Any]) -> None:
    report = run_audit(subject(llm(), **params), SETTINGS)
    assert report.verdict.state == "PASS", report.verdict
    assert [note.split(":")[0] for note in report.notes] == ["address trace", "replay", "contexts"]


@pytest.mark.parametrize("method", ["draft_model", "ngram"])
def test_common_noise_passes_and_replays(method: str) -> None:
    """Guesses share the target's noise, so no test may be made given the draft."""
    llm = tables(rejection_sample_method="common_noise")
    if method == "ngram":
        config = {"method": "ngram", "prompt_lookup_min": 1}
        config |= {"rejection_sample_method": "common_noise"}
        llm = LLM(table_model(TARGET), speculative_config=config)
    audited = subject(llm)
    tokens = next(audited.batches()).tokens
    assert tokens.draft is None and tokens.point_mass is not None
    assert tokens.point_mass.any() == (method == "ngram")
    report = run_audit(audited, replace(SETTINGS, oracles=OraclePolicy.SKIP))
    assert report.verdict.state == "PASS", report.verdict
    replay = audited.replay_rounds()
    assert replay.mismatches == () and replay.num_tokens > 20


def test_speculation_that_never_drafts_is_invalid() -> None:
    # 4,096 ids drawn evenly hardly ever repeat, and no two of them ever do
    flat = table_model(np.zeros(4096, np.float32))
    llm = LLM(flat, speculative_config={"method": "ngram", "num_speculative_tokens": 2})
    audited = EngineSubject(llm, [[1]], num_requests=32, num_tokens=8)
    report = run_audit(audited, replace(SETTINGS, oracles=OraclePolicy.SKIP))
    assert report.verdict.state == "INVALID" and "no draft was seen" in report.verdict.sentence


def test_temperature_zero_is_invalid_here() -> None:
    report = run_audit(subject(temperature=0.0), SETTINGS)
    assert report.verdict.state == "INVALID" and "exact-match mode" in report.verdict.sentence


class TestPlantedFaults:
    """Each oracle, and the law test, refuses what it is there for."""

    def test_shared_noise_is_traced(self) -> None:
        with coupled():
            check = check_addresses(subject())
            report = run_audit(subject(), SETTINGS)
        assert check.num_collisions > 0
        assert "was raced twice" in check.collisions[0]
        assert report.verdict.state == "FAIL" and report.num_tokens == 0

    def test_shared_noise_fails_by_law(self) -> None:
        # a draft that ranks the other way round is rejected most, and replaced by shared noise
        llm = speculating(table_model(TARGET), table_model(-TARGET), 3)
        settings = replace(SETTINGS, eps=0.01, oracles=OraclePolicy.SKIP)
        with coupled():
            report = run_audit(subject(llm), settings)
        assert report.verdict.state == "FAIL"
        assert report.verdict.diagnosis is not None and "noise" in report.verdict.diagnosis

    def test_a_wrong_replacement_is_replayed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = []

        def from_p(p: np.ndarray, q: np.ndarray) -> np.ndarray:
            calls.append(1)
            return p

        monkeypatch.setattr(rules, "residual", from_p)
        replay = subject(tables(impl="reference")).replay_rounds()
        assert calls and replay.mismatches
        assert "the formulas of the rule give" in replay.mismatches[0]

    def test_a_kernel_that_is_not_its_definition_is_replayed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from fairdraft.ops.cpu import verify as kernels

        real, calls = kernels.verify_cpu, []

        def verify(inputs: Any, outputs: Any) -> Any:
            calls.append(1)
            result = real(inputs, outputs)
            last = np.arange(len(outputs.token_ids)), outputs.num_accepted
            outputs.token_ids[last] = (outputs.token_ids[last] + 1) % VOCAB_SIZE
            return result

        monkeypatch.setattr(kernels, "verify_cpu", verify)
        replay = subject(tables(impl="cpu")).replay_rounds()
        assert calls and any("the reference" in found for found in replay.mismatches)

    def test_a_draft_from_another_law_is_replayed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = DraftModelSpeculator.propose
        calls = []

        def propose(self: Any, state: Any) -> Any:
            calls.append(1)
            proposal: Any = real(self, state)
            return replace(proposal, draft_logits=proposal.draft_logits * 0.5)

        monkeypatch.setattr(DraftModelSpeculator, "propose", propose)
        replay = subject().replay_rounds()
        assert calls and any("the reference draws" in found for found in replay.mismatches)

    def test_logits_of_another_row_are_no_context(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = RoundRunner._verify
        calls = []

        def verify(self: Any, rows: Any, proposal: Any, logits: Any) -> Any:
            calls.append(1)
            return real(self, rows, proposal, logits.flip(-1))

        monkeypatch.setattr(RoundRunner, "_verify", verify)
        audited = subject()
        assert not audited.replay_rounds().mismatches, "what is verified is what is observed"
        assert not audited.check_contexts().is_clean and calls

    def test_a_wrong_context_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        llm = LLM(tiny_llama(3))
        audited = EngineSubject(llm, [[1, 2, 3]], num_requests=4, num_tokens=12)
        assert audited.check_contexts().is_clean
        real = llm.target.forward

        def shifted(ids: Any, start: Any, cache: Any, **options: Any) -> Any:
            at = np.asarray(start)
            return real(ids, at - (at > 5), cache, **options)

        monkeypatch.setattr(llm.target, "forward", shifted)
        check = audited.check_contexts()
        assert not check.is_clean and check.largest > 0.1


@pytest.mark.parametrize("method", ["standard", "block"])
def test_replays_agree_bit_for_bit_and_by_formula(method: str) -> None:
    replay = subject(tables(rejection_sample_method=method)).replay_rounds()
    assert replay.mismatches == () and replay.num_rounds > 15
    assert replay.num_tokens > 20 and replay.num_drafts > 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompts": []}, "prompts is empty"),
        ({"prompts": [[99]]}, "token id 99"),
        ({"params": SamplingParams(noise_key="0" * 16)}, "noise_key = '0000000000000000' replays"),
        ({"num_requests": 0}, "num_requests = 0"),
    ],
)
def test_what_cannot_be_audited_is_refused(options: dict[str, Any], message: str) -> None:
    subject_options: dict[str, Any] = {"prompts": PROMPTS} | options
    with pytest.raises(ValueError, match=message):
        EngineSubject(tables(), **subject_options)
