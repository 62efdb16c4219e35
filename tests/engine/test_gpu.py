"""The engine with its models on a CUDA device: rounds as written, and replayed from graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fairdraft import LLM, RequestOutput, SamplingParams
from fairdraft.ops import Impl
from tests.engine.test_processors import KINDS
from tests.engine.toys import speculating, tiny_llama

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
PROMPTS = ["Once upon a time", "The old king", "One day a cat"]
DRAFTS = {"model": "pocket-draft", "num_speculative_tokens": 4}


NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
PARAMS = [
    SamplingParams(temperature=1.0, max_tokens=64, seed=3, ignore_eos=True),
    SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True),
    SamplingParams(temperature=0.7, max_tokens=40, seed=5, num_speculative_tokens=2),
]


def generated(drafts: dict | None, params: Any, **options: Any) -> list[RequestOutput]:
    llm = LLM("pocket", speculative_config=drafts, device="cuda", **options)
    return llm.generate(PROMPTS, params)


def token_ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize("enforce_eager", [False, True])
@pytest.mark.parametrize("impl", ["auto", "cpu"])
def test_greedy_text_is_the_same_with_drafts(impl: Impl, enforce_eager: bool) -> None:
    """With `impl="cpu"` logits come to the host."""
    options: dict[str, Any] = {"impl": impl, "enforce_eager": enforce_eager}
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    plain = generated(None, params, **options)
    assert token_ids(generated(DRAFTS, params, **options)) == token_ids(plain)


def test_trees_are_verified_on_the_device_and_leave_greedy_text_alone() -> None:
    params = [SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True), *PARAMS[:2]]
    trees = {"model": "pocket-draft", "speculative_token_tree": [3, 2, 1]}
    outputs = generated(trees, params)
    plain = generated(None, params)
    assert token_ids(outputs)[::2] == token_ids(plain)[::2]
    assert all(output.metrics and output.metrics.acceptance_length > 1.2 for output in outputs)


@pytest.mark.parametrize("drafts", [None, DRAFTS, NGRAM], ids=["plain", "draft model", "ngram"])
def test_replayed_rounds_give_the_tokens_of_eager_ones(drafts: dict | None) -> None:
    """Ragged rows, hot, greedy and with a K of its own; more rows than fit at once."""
    eager = generated(drafts, PARAMS, enforce_eager=True, max_num_seqs=2)
    assert token_ids(generated(drafts, PARAMS, max_num_seqs=2)) == token_ids(eager)
    if drafts is DRAFTS:
        lengths = [output.metrics.acceptance_length for output in eager if output.metrics]
        assert min(lengths) > 1.2 and sum(lengths) / len(lengths) > 1.6


@pytest.mark.parametrize("draft_length", [64, 40])
def test_replayed_rounds_go_up_to_the_context_limit(draft_length: int) -> None:
    params = SamplingParams(max_tokens=None, seed=8)
    prompts = [[1, 2, 3], [12], [3, 1, 3, 1, 3, 1, 3]]
    texts = []
    for enforce_eager in (True, False):
        target = tiny_llama(0, max_model_len=64).cuda()
        draft = tiny_llama(0, layers=1, max_model_len=draft_length).cuda()
        llm = speculating(target, draft, 3, enforce_eager=enforce_eager, device="cuda")
        texts.append(token_ids(llm.generate(prompts, params)))
    assert texts[0] == texts[1]
    assert [len(p) + len(t) for p, t in zip(prompts, texts[0], strict=True)] == [64] * 3


@pytest.mark.parametrize("process_draft_logits", [False, True])
def test_processed_rows_give_the_tokens_of_the_hosts_processors(process_draft_logits: bool) -> None:
    """With `impl="cpu"` logits come to the host; one request of each kind, some fail on the way."""
    config = DRAFTS | {"process_draft_logits": process_draft_logits}
    params = []
    for seed, kind in enumerate(KINDS.values()):
        asked: dict[str, Any] = {"max_tokens": 24, "seed": seed, "temperature": 1 - seed % 2}
        params.append(SamplingParams(**asked | kind))
    params.append(SamplingParams(seed=1, allowed_token_ids=[70, 71], no_repeat_ngram_size=1))
    texts = []
    for impl in ("auto", "cpu"):
        llm = LLM("pocket", speculative_config=config, device="cuda", impl=impl)
        outputs = llm.generate([PROMPTS[i % 3] for i in range(len(params))], params)
        assert [bool(output.error) for output in outputs] == [False] * len(KINDS) + [True]
        texts.append([(list(o.outputs[0].token_ids), o.error) for o in outputs])
    assert texts[0] == texts[1]
