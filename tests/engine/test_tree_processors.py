"""Processors under trees of drafts, through the engine; laws are in `test_tree_processing.py`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from fairdraft import LLM, SamplingParams
from tests.engine.test_greedy_equality import half_wrong
from tests.engine.test_processors import KINDS, PROMPTS, greedy
from tests.engine.toys import from_probs, ids, table_model, tiny_llama
from tests.law.faults import SIBLINGS_COUNTED, WRONG_BRANCH

P, Q = [0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]


def with_tree(target: Any, draft: Any, tree: Any = (3, 2, 1), **options: Any) -> LLM:
    config = {"speculative_token_tree": tree}
    config |= {"method": "suffix"} if draft == "suffix" else {"model": draft}
    return LLM(target, speculative_config=config, **options)


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_llama(0)


@pytest.fixture(scope="module")
def plain(target: Any) -> list[list[int]]:
    return texts(LLM(target))


ASKED = [(prompt, kind) for prompt in PROMPTS for kind in KINDS]


def texts(llm: LLM) -> list[list[int]]:
    """All kinds side by side, each prompt under each kind, greedy."""
    return ids(llm.generate([p for p, _ in ASKED], [greedy(kind) for _, kind in ASKED]))


@pytest.mark.parametrize("draft", ["half", "suffix"])
def test_greedy_text_is_that_of_plain_decoding(
    target: Any, plain: list[list[int]], draft: str
) -> None:
    assert texts(with_tree(target, half_wrong(target) if draft == "half" else draft)) == plain


@pytest.mark.parametrize("fault", [SIBLINGS_COUNTED, WRONG_BRANCH])
def test_planted_fault_changes_greedy_text(
    monkeypatch: pytest.MonkeyPatch, target: Any, plain: list[list[int]], fault: Any
) -> None:
    calls = fault.plant(monkeypatch)
    assert texts(with_tree(target, half_wrong(target))) != plain and calls.count > 0


def test_every_row_of_a_mixed_batch_is_its_solo_run() -> None:
    """Logits of a table do not depend on the batch, so the same key gives the same tokens."""
    generator = np.random.default_rng(0)
    table = generator.normal(size=(97, 97)).astype(np.float32) * 2
    noisy = table_model(table + generator.normal(size=(97, 97)).astype(np.float32))
    llm = with_tree(table_model(table), noisy, [2, 2], max_num_seqs=32)
    params = [
        SamplingParams(temperature=1.3, seed=seed, max_tokens=10, top_k=7, **KINDS[kind])
        for seed, kind in enumerate(KINDS)
    ]
    together = llm.generate([[1, 2, 3]] * len(params), params)
    assert ids(together) == [ids(llm.generate([[1, 2, 3]], item))[0] for item in params]


def test_penalties_count_each_emitted_token_once() -> None:
    """The logit that a token had when it came tells its count: no sibling was left in it."""
    llm = with_tree(from_probs(P), from_probs(Q), [3, 2], logprobs_mode="processed_logits")
    params = SamplingParams(seed=3, max_tokens=60, frequency_penalty=0.25, logprobs=0)
    [output] = llm.generate([[0, 0, 1]], params)
    [sample] = output.outputs
    seen: Counter[int] = Counter()
    for token_id, entry in zip(sample.token_ids, sample.logprobs or [], strict=True):
        expected = np.log(P)[token_id] - 0.25 * seen[token_id]
        assert entry[token_id].logprob == pytest.approx(expected, abs=1e-5)
        seen[token_id] += 1
    assert output.metrics is not None and output.metrics.num_accepted_tokens > 10


def failing(input_ids: Any, scores: Any) -> Any:
    """Custom: refuses to go on after token 3, wherever it was drafted."""
    if input_ids[0, -1] == 3:
        raise RuntimeError("after 3")
    return scores


@pytest.mark.parametrize("tree", [[4], [3, 2, 1]])
def test_a_request_ends_where_the_walk_comes_to_a_row_that_cannot_be_sampled(tree: Any) -> None:
    """Other branches hold such rows all the time; a neighbor goes on."""
    llm = with_tree(from_probs(P), from_probs(Q), tree)
    params = [
        SamplingParams(seed=4, max_tokens=40, logits_processors=[failing]),
        SamplingParams(seed=4, max_tokens=40, bad_words_ids=[[3, v] for v in range(4)]),
        SamplingParams(seed=4, max_tokens=40),
    ]
    failed, dead, fine = llm.generate([[0]] * 3, params)
    for output in (failed, dead):
        tokens = output.outputs[0].token_ids
        assert tokens[-1] == 3 and 3 not in tokens[:-1] and len(tokens) > 2
        assert output.outputs[0].finish_reason == "error"
    assert failed.error is not None and "failing failed: RuntimeError: after 3" in failed.error
    assert dead.error is not None and "loosen bad_words_ids" in dead.error
    assert fine.error is None and len(fine.outputs[0].token_ids) == 40
