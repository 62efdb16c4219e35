"""Suffixes, predictions, plugins and the stop in the engine: batches, preemption, limits, noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fairdraft import LLM, SamplingParams
from fairdraft.noise import Trace, TraceError
from tests.engine.toys import ids, one_at, preempting, tiny_llama
from tests.law.faults import CONSTANT_OVER_STEPS

VOCAB = 12
PROMPTS = [[1, 2, 3, 1, 2], [4, 5, 6, 7, 8, 9, 10, 11, 4, 5], [2], [3, 1, 3, 1, 3, 1, 3]]
PREDICTION = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0] * 2
PARAMS = [
    SamplingParams(seed=i, max_tokens=12 + 2 * i, temperature=0.6 + 0.3 * i, prediction=PREDICTION)
    for i in range(len(PROMPTS))
]


class ByLast:
    """Logits by the last token."""

    laws = np.random.default_rng(0).normal(0, 1.5, (VOCAB, VOCAB)).astype(np.float32)

    def logits(self, token_ids: np.ndarray) -> np.ndarray:
        return self.laws[token_ids[-1]]


CONFIGS: dict[str, dict[str, Any]] = {
    "suffix": {"method": "suffix"},
    "prediction": {"method": "prediction"},
    "points": {"method": "custom", "model": lambda ids, most: ids[-most:]},
    "logits": {"method": "custom", "model": ByLast()},
    "stop": {"model": tiny_llama(1, layers=1, vocab_size=VOCAB), "confidence_threshold": 0.25},
}
DRAWING = ("logits", "stop")


def new_llm(name: str, max_model_len: int = 64, **options: Any) -> LLM:
    target = tiny_llama(0, vocab_size=VOCAB, max_model_len=max_model_len)
    config = CONFIGS[name] | {"num_speculative_tokens": 3}
    return LLM(target, speculative_config=config, **options)


def asked(name: str, params: list[SamplingParams] = PARAMS, **changes: Any) -> list[Any]:
    """Parameters as the method takes them."""
    if name != "prediction":
        changes["prediction"] = None
    return [SamplingParams(**(vars(p) | changes)) for p in params]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_request_is_the_same_in_any_batch_and_after_preemption(name: str) -> None:
    llm, params = new_llm(name), asked(name)
    outputs = llm.generate(PROMPTS, params)
    expected = ids(outputs)
    assert sum(o.metrics.num_accepted_tokens for o in outputs if o.metrics) > 0
    alone = [ids(llm.generate(p, q))[0] for p, q in zip(PROMPTS, params, strict=True)]
    assert alone == expected
    narrow = new_llm(name, max_num_seqs=2)
    preempting(narrow, one_at(2, 5, 9))
    outputs = narrow.generate(PROMPTS, params)
    assert ids(outputs) == expected
    assert sum(o.metrics.num_preemptions for o in outputs if o.metrics) >= 2


@pytest.mark.parametrize("name", CONFIGS)
def test_the_context_is_filled_and_no_address_serves_twice(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near the limit too; planted: one position for all drafts of a round."""
    limit = 14
    prompts = [[1 + i % 9 for i in range(length)] for length in range(limit - 7, limit)] * 3
    params = asked(name, [SamplingParams(seed=i, prediction=PREDICTION) for i in range(21)])

    def run() -> Trace:
        trace = Trace()
        llm = new_llm(name, limit, trace=trace)
        outputs = llm.generate(
            prompts, [SamplingParams(**(vars(p) | {"max_tokens": None})) for p in params]
        )
        assert [len(o.outputs[0].token_ids) for o in outputs] == [limit - len(p) for p in prompts]
        return trace

    trace = run()
    trace.check()
    assert max(use.position for use in trace) == limit - 1
    if name in DRAWING:
        calls = CONSTANT_OVER_STEPS.plant(monkeypatch)
        with pytest.raises(TraceError, match="raced twice"):
            run().check()
        assert calls.count > 0
