"""`transformers` generation as a subject: laws, drafts and rounds are those of the networks.

Axes: N tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from fairdraft.audit.session import run_audit
from fairdraft.audit.settings import AuditSettings, OraclePolicy
from fairdraft.audit.subject import InvalidSubject
from fairdraft.audit.subjects import hf_rounds
from fairdraft.audit.subjects.hf import (
    Assistance,
    HFRequest,
    HFSubject,
    default_prompts,
    load_stock,
)
from fairdraft.audit.subjects.hf_exact import compare_hf
from fairdraft.stats.tokens import ScoredTokens, Source
from tests.engine.toys import tiny_llama, word_tokenizer

PROMPTS = [[1, 2, 3], [4, 5], [6]]
TARGET, DRAFT = tiny_llama(1), tiny_llama(2, layers=1)
WIDE = AuditSettings(eps=0.3, max_tokens=4_000)
QUICK = replace(WIDE, oracles=OraclePolicy.SKIP)


def subject(*, draft: Any = DRAFT, num_tokens: int = 12, **options: Any) -> HFSubject:
    request = {key: options.pop(key) for key in ("temperature", "top_k") if key in options}
    return HFSubject(
        TARGET,
        draft,
        prompts=PROMPTS,
        request=HFRequest(num_tokens=num_tokens, **request),
        texts_per_batch=options.pop("texts_per_batch", 6),
        **options,
    )


def first(audited: HFSubject) -> ScoredTokens:
    return next(audited.batches()).tokens


@cache
def assisted() -> ScoredTokens:
    """One batch, for every test that looks at it from another side."""
    return first(subject(num_tokens=16))


def forward(network: Any, audited: HFSubject, tokens: ScoredTokens) -> np.ndarray:
    """Logits of a network at every token [N, V], from one forward a text."""
    rows = []
    for text in np.unique(tokens.text):
        prompt = audited.prompt(int(text))
        ids = torch.tensor([[*prompt, *tokens.token_id[tokens.text == text].tolist()]])
        with torch.inference_mode():
            rows.append(network(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1])
    return torch.cat(rows).double().numpy()


def softmax(logits: np.ndarray, temperature: float = 1.0, top_k: int = 0) -> np.ndarray:
    if top_k:
        kth = np.sort(logits, axis=1)[:, -top_k]
        logits = np.where(logits >= kth[:, None], logits, -np.inf)
    weights = np.exp((logits - logits.max(1, keepdims=True)) / temperature)
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize("draft", [None, DRAFT], ids=["plain", "assisted"])
@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, 0), (0.8, 9)])
def test_laws_are_those_of_the_networks(draft: Any, temperature: float, top_k: int) -> None:
    audited = subject(draft=draft, temperature=temperature, top_k=top_k)
    tokens = first(audited)
    target = softmax(forward(TARGET, audited, tokens), temperature, top_k)
    assert np.allclose(tokens.target, target, atol=1e-5)
    assert (tokens.unfiltered is None) == (top_k == 0)
    if tokens.unfiltered is not None:
        unfiltered = softmax(forward(TARGET, audited, tokens), temperature)
        assert np.allclose(tokens.unfiltered, unfiltered, atol=1e-5)
    if draft is None:
        assert tokens.draft is None and (tokens.source == Source.PLAIN).all()
        return
    assert tokens.draft is not None
    # what came out before a tested draft is what the draft had seen
    known = tokens.has_draft
    assert known.mean() > 0.4 and (known == (tokens.drafted >= 0)).all()
    if not top_k:
        expected = softmax(forward(DRAFT, audited, tokens), temperature)
        assert np.allclose(tokens.draft[known], expected[known], atol=1e-5)


def test_rounds_are_told_apart() -> None:
    tokens = assisted()
    assert {Source.ACCEPTED, Source.REPLACED, Source.BONUS} <= set(tokens.source.tolist())
    begins = np.append(tokens.slot[1:] == 0, True)
    assert (np.where(begins[:-1], 0, tokens.slot[:-1] + 1) == tokens.slot[1:]).all()
    accepted, replaced = tokens.source == Source.ACCEPTED, tokens.source == Source.REPLACED
    assert (tokens.drafted[accepted] == tokens.column[accepted]).all()
    assert (tokens.drafted[replaced] != tokens.column[replaced]).all()
    assert begins[replaced].all(), "a replacement ends its round"
    assert (tokens.drafted[tokens.source == Source.BONUS] == -1).all()
    assert tokens.point_mass is not None and not tokens.point_mass.any()


def test_prompt_lookup_drafts_are_point_masses() -> None:
    audited = subject(draft=None, assistance=Assistance(prompt_lookup=3), num_tokens=24)
    tokens = first(audited)
    assert tokens.draft is None and tokens.point_mass is not None
    assert tokens.point_mass.any() and (tokens.point_mass == (tokens.drafted >= 0)).all()
    assert audited.info.is_speculative and "prompt lookup" in audited.info.name


def test_batches_go_on_from_a_cursor_and_torch_keeps_its_generator() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    few = subject(texts_per_batch=2, num_tokens=6)
    whole = list(islice(few.batches(), 2))
    again = next(few.batches(whole[0].cursor))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert again.cursor == whole[1].cursor == 4
    for name in ("column", "target", "text", "source"):
        assert np.array_equal(getattr(again.tokens, name), getattr(whole[1].tokens, name))


def test_a_constant_number_of_drafts_is_honored() -> None:
    assistance = Assistance(num_tokens=2, schedule="constant", confidence_threshold=0.0)
    tokens = first(subject(assistance=assistance, texts_per_batch=3))
    assert tokens.slot.max() == 2


def test_contexts_are_clean() -> None:
    for audited in (subject(num_tokens=6), subject(draft=None)):
        check = audited.check_contexts()
        assert check.is_clean and check.largest < 1e-4
        assert check.num_tokens == 4 * audited.request.num_tokens


def test_the_library_passes() -> None:
    report = run_audit(subject(draft=None, texts_per_batch=64), WIDE)
    assert report.verdict.state == "PASS", report.verdict
    assert report.subject.scoring == "own logits" and report.settings["eps0"] == 0.0
    assert report.notes[0].startswith("contexts: ")


def test_assisted_generation_gives_no_evidence() -> None:
    report = run_audit(subject(), replace(QUICK, max_tokens=72))
    assert report.verdict.state == "INCONCLUSIVE" and report.log10_e < 1
    assert report.slots and report.slots[0].tested > 20


def test_drafts_kept_without_a_test_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.generation import utils

    calls = []

    def keep_all(ids: Any, logits: Any, length: int, scores: Any, **_: Any) -> Any:
        calls.append(1)
        bonus = torch.multinomial(scores[:, -1].softmax(-1), 1)
        return torch.cat([ids[:, -length:], bonus], dim=-1), length

    monkeypatch.setattr(utils, "_speculative_sampling", keep_all)
    report = run_audit(subject(), QUICK)
    assert calls and report.verdict.state == "FAIL"
    assert report.num_tokens < 2_000


def test_rescoring_audits_plain_generation_first() -> None:
    audited = subject(rescore=True, num_tokens=6)
    assert audited.info.scoring == "rescored" and audited.info.default_eps0 == 0.005
    tokens = first(audited)
    assert np.allclose(tokens.target, softmax(forward(TARGET, audited, tokens)), atol=1e-5)
    control = audited.control
    assert control is not None and not control.is_assisted and control.control is None
    report = run_audit(audited, replace(QUICK, max_tokens=36))
    assert report.verdict.state == "INCONCLUSIVE" and report.num_tokens == 36
    assert [note for note in report.notes if note.startswith("A/A run, 384 tokens: ")]


def test_greedy_texts_are_those_of_plain_generation() -> None:
    report = compare_hf(subject(temperature=0.0, num_tokens=8))
    assert report.verdict.state == "PASS", report.verdict
    assert report.num_texts == 3 and report.num_tokens == 24
    with pytest.raises(ValueError, match="only assisted generation at temperature 0"):
        compare_hf(subject(draft=None, temperature=0.0))


def test_a_library_that_hides_its_rounds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_rounds, "_FACTORY", "_another_name")
    with pytest.raises(InvalidSubject, match="drafts cannot be seen"):
        first(subject())
    report = compare_hf(subject(temperature=0.0))
    assert report.verdict.state == "INVALID" and report.exit_code == 4
    assert "drafts cannot be seen" in report.verdict.sentence and report.num_texts == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompts": []}, "prompts must hold"),
        ({"prompts": [[1], []]}, "one is empty"),
        ({"draft": DRAFT, "assistance": Assistance(prompt_lookup=2)}, "both given"),
        ({"rescore": True, "request": HFRequest(top_p=0.9)}, "knows no filters"),
    ],
)
def test_what_cannot_be_audited_is_refused(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"prompts": PROMPTS} | options
    with pytest.raises(ValueError, match=message):
        HFSubject(TARGET, **given)


def test_a_model_that_is_not_there_is_refused(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="the draft model '.*nothing' cannot be loaded"):
        load_stock(str(tmp_path / "nothing"), role="draft")


def test_prompts_come_from_the_tokenizer_or_are_ids() -> None:
    assert default_prompts(None, 5) == [[0], [1], [2], [3], [4]]
    tokenizer = word_tokenizer(["a", "b"])
    assert len(default_prompts(tokenizer, 5)) > 40
