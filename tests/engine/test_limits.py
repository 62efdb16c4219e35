"""Exactly the allowed number of tokens comes, and no position past the context is fed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fairdraft import LLM, SamplingParams
from fairdraft.models import CausalLM
from fairdraft.noise import Stream, Trace
from tests.engine.toys import from_probs, ids, speculating, table_model, tiny_llama

UNIFORM = [1 / 16] * 16


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """(model, last position) of every row that a forward really feeds."""
    seen: list[tuple[str, int]] = []
    forward = CausalLM.forward

    def record(self: CausalLM, token_ids: Any, start: Any, *args: Any, **kwargs: Any) -> Any:
        counts = kwargs.get("num_tokens")
        counts = [token_ids.shape[1]] * len(start) if counts is None else counts.tolist()
        seen.extend(
            (self.name, int(s) + n - 1) for s, n in zip(start.tolist(), counts, strict=True) if n
        )
        return forward(self, token_ids, start, *args, **kwargs)

    monkeypatch.setattr(CausalLM, "forward", record)
    return seen


@pytest.mark.parametrize("num_drafts", range(1, 9))
@pytest.mark.parametrize("method", ["draft_model", "ngram"])
def test_max_tokens_is_exact(num_drafts: int, method: str) -> None:
    # the target repeats its prompt, so that every draft stands
    target = table_model(np.roll(np.eye(6), 1, axis=1) * 20)
    config: dict[str, Any] = {"method": method, "num_speculative_tokens": num_drafts}
    if method == "draft_model":
        config["model"] = target
    llm = LLM(target, speculative_config=config)
    plain = LLM(target)
    prompt = [0, 1, 2, 3, 4, 5] * 2
    for limit in range(1, 11):
        params = SamplingParams(temperature=0, max_tokens=limit)
        [output] = llm.generate(prompt, params)
        assert len(output.outputs[0].token_ids) == limit
        assert output.outputs[0].finish_reason == "length"
        assert ids([output]) == ids(plain.generate(prompt, params))


def test_one_token_needs_no_draft_pass(fed: list[tuple[str, int]]) -> None:
    target, draft = tiny_llama(0), tiny_llama(1, layers=1)
    llm = speculating(target, draft, 4)
    assert isinstance(llm.speculator.model, CausalLM)  # pyright: ignore
    llm.speculator.model.name = "draft"  # pyright: ignore
    fed.clear()
    [output] = llm.generate([1, 2, 3], SamplingParams(max_tokens=1))
    assert len(output.outputs[0].token_ids) == 1
    assert output.outputs[0].token_sources == ["target"]
    assert "draft" not in {name for name, _ in fed}


@pytest.mark.parametrize("num_drafts", [1, 2, 4, 8])
def test_the_context_is_filled_and_never_exceeded(
    num_drafts: int, fed: list[tuple[str, int]]
) -> None:
    limit = 24
    target = tiny_llama(0, max_model_len=limit)
    draft = tiny_llama(1, layers=1, max_model_len=limit)
    llm = speculating(target, draft, num_drafts)
    lengths = range(limit - num_drafts - 2, limit)
    prompts = [[1 + i % 90 for i in range(length)] for length in lengths]
    for max_tokens in (None, 400):
        outputs = llm.generate(prompts, SamplingParams(max_tokens=max_tokens, seed=3))
        for output, length in zip(outputs, lengths, strict=True):
            assert len(output.outputs[0].token_ids) == limit - length
            assert output.outputs[0].finish_reason == "length"
    assert max(position for _, position in fed) == limit - 2


def test_no_two_draws_share_an_address_near_the_limit() -> None:
    """Positions are never clamped: neighbors stay independent up to the last token."""
    trace = Trace()
    target = from_probs(UNIFORM, max_model_len=12)
    draft = from_probs(np.arange(1, 17) / 136, max_model_len=12)
    llm = speculating(target, draft, 4, trace=trace, max_num_seqs=512)
    params = [SamplingParams(seed=seed, max_tokens=None) for seed in range(400)]
    outputs = llm.generate([[0, 1, 2]] * 400, params)
    trace.check()
    assert max(use.position for use in trace) == 11
    assert {use.stream for use in trace} == set(Stream) - {Stream.AUX}
    tokens = np.array(ids(outputs))
    assert tokens.shape == (400, 9)
    equal = float((tokens[:, 1:] == tokens[:, :-1]).mean())
    # 3,200 pairs of mean 1/16: 6 sigma is .026
    assert abs(equal - 1 / 16) < 0.026


def test_a_smaller_context_can_be_asked_for() -> None:
    llm = LLM(tiny_llama(0), max_model_len=10)
    [output] = llm.generate([1, 2, 3], SamplingParams(max_tokens=None))
    assert len(output.outputs[0].token_ids) == 7
    for bad in (1, 129, 10.0, True):
        with pytest.raises(ValueError, match="max_model_len"):
            LLM(tiny_llama(0), max_model_len=bad)  # pyright: ignore
