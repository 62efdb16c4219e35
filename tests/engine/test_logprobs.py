"""Logprobs are those of the raw logits of the emitted token, with and without speculation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fairdraft import LLM, SamplingParams
from fairdraft.engine.logprobs import gather_logprobs
from tests.engine.toys import from_probs, speculating, table_model, tiny_llama, word_tokenizer

LOGITS = [1.0, 0.87, 0.71, 0.52]
EXPECTED = [-1.1772, -1.3072, -1.4672, -1.6572]


@pytest.mark.parametrize("num_drafts", [0, 1, 2, 4])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.5}, {"top_k": 2}, {"temperature": 0}])
def test_constant_logits_give_constant_logprobs(num_drafts: int, options: dict[str, Any]) -> None:
    model = table_model(LOGITS)
    draft = from_probs([0.4, 0.3, 0.2, 0.1])
    llm = speculating(model, draft, num_drafts) if num_drafts else LLM(model)
    params = SamplingParams(seed=1, n=2, max_tokens=40, logprobs=0, **options)
    [output] = llm.generate([0], params)
    for sample in output.outputs:
        assert sample.logprobs is not None
        assert len(sample.logprobs) == len(sample.token_ids) == 40
        for token_id, entry in zip(sample.token_ids, sample.logprobs, strict=True):
            assert list(entry) == [token_id]
            assert entry[token_id].logprob == pytest.approx(EXPECTED[token_id], abs=1e-4)
            assert entry[token_id].rank == token_id + 1
        total = sum(EXPECTED[token_id] for token_id in sample.token_ids)
        assert sample.cumulative_logprob == pytest.approx(total, abs=5e-3)
    if num_drafts and not options:
        assert {s for sample in output.outputs for s in sample.token_sources} >= {
            "draft",
            "residual",
            "bonus",
        }


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_each_logprob_is_of_the_row_of_the_token_before(num_drafts: int) -> None:
    table = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)
    model = table_model(table, eos_token_id=5)
    draft = table_model(table + np.random.default_rng(1).normal(size=(6, 6)) * 0.5)
    llm = speculating(model, draft, num_drafts) if num_drafts else LLM(model)
    expected = torch.log_softmax(torch.from_numpy(table).double(), -1).numpy()
    mixed = [SamplingParams(seed=s, max_tokens=30, logprobs=s % 3) for s in range(12)]
    for output, params in zip(llm.generate([[0, 1]] * 12, mixed), mixed, strict=True):
        [sample] = output.outputs
        previous = 1
        assert sample.logprobs is not None and len(sample.logprobs) == len(sample.token_ids)
        for token_id, entry in zip(sample.token_ids, sample.logprobs, strict=True):
            row = expected[previous]
            assert entry[token_id].logprob == pytest.approx(row[token_id], abs=1e-5)
            assert entry[token_id].rank == 1 + int((row > row[token_id]).sum())
            best = set(np.argsort(-row)[: params.logprobs].tolist())
            assert set(entry) == best | {token_id}
            assert all(e.logprob == pytest.approx(row[i], abs=1e-5) for i, e in entry.items())
            previous = token_id


def test_streamed_logprobs_add_up_to_the_whole() -> None:
    target = tiny_llama(0)
    llm = speculating(target, tiny_llama(1, layers=1), 3)
    params = SamplingParams(seed=2, max_tokens=15, logprobs=2)
    [whole] = llm.generate([1, 2], params)
    events = [event.outputs[0] for event in llm.stream([1, 2], params)]
    for event in events:
        assert event.logprobs is not None and len(event.logprobs) == len(event.token_ids)
    assert [e for event in events for e in event.logprobs or []] == whole.outputs[0].logprobs
    assert events[-1].cumulative_logprob == pytest.approx(whole.outputs[0].cumulative_logprob)


def test_tokens_are_decoded_and_ties_share_a_rank() -> None:
    rows = gather_logprobs(torch.tensor([[0.0, 0.0, -1.0]]), torch.tensor([1]), 3)
    assert [(i, rank) for i, _, rank in rows[0]] == [(1, 1), (0, 1), (2, 3)]
    llm = LLM(table_model(LOGITS), tokenizer=word_tokenizer(["a", "b", "c", "d"]))
    [output] = llm.generate("a", SamplingParams(temperature=0, max_tokens=1, logprobs=1))
    assert output.outputs[0].logprobs is not None
    assert output.outputs[0].logprobs[0][0].decoded_token == "a"


def test_no_logprobs_unless_asked() -> None:
    [output] = LLM(table_model(LOGITS)).generate([0])
    assert output.outputs[0].logprobs is None and output.outputs[0].cumulative_logprob is None
