"""The engine with its models on a CUDA device, sampling on the host or by the kernels."""

from __future__ import annotations

import pytest
import torch

from fairdraft import LLM, RequestOutput, SamplingParams
from fairdraft.ops import Impl

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
PROMPTS = ["Once upon a time", "The old king", "One day a cat"]
DRAFTS = {"model": "pocket-draft", "num_speculative_tokens": 4}


def generated(impl: Impl, drafts: dict | None, temperature: float) -> list[RequestOutput]:
    llm = LLM("pocket", speculative_config=drafts, device="cuda", impl=impl)
    params = SamplingParams(temperature=temperature, max_tokens=64, seed=3, ignore_eos=True)
    return llm.generate(PROMPTS, params)


def token_ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize("impl", ["auto", "triton"])
def test_greedy_text_is_the_same_with_drafts(impl: Impl) -> None:
    plain = generated(impl, None, temperature=0.0)
    assert token_ids(generated(impl, DRAFTS, temperature=0.0)) == token_ids(plain)


@pytest.mark.parametrize("impl", ["auto", "triton"])
def test_a_seed_repeats_and_drafts_stand(impl: Impl) -> None:
    first, second = (generated(impl, DRAFTS, temperature=1.0) for _ in range(2))
    assert token_ids(first) == token_ids(second)
    lengths = [output.metrics.acceptance_length for output in first if output.metrics]
    assert len(lengths) == len(PROMPTS)
    assert min(lengths) > 1.2 and sum(lengths) / len(lengths) > 1.8
