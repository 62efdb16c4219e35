"""Under rule `common_noise` a key gives the text of plain decoding, whatever speculates.

Token for token, in float32. A difference counts as a tie only if the draw's margin is below four
times the largest logit difference of the two runs, and ties are at most 1 in 10,000 tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairdraft import LLM, SamplingParams, pocket
from fairdraft.engine import RequestOutput
from fairdraft.models import load_model
from tests.engine.recorder import Recorder, compare
from tests.engine.test_pocket_repeats import random_prompts, sampled_params
from tests.engine.toys import ids, preempting, speculating, tiny_llama
from tests.speculators.small_heads import save_small, with_head

COMMON: dict[str, Any] = {"rejection_sample_method": "common_noise"}
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11], [12], [3, 1, 3, 1, 3, 1, 3], [40, 41]]
#: temperatures, filters, processors, several samples, a K of its own
ASKED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.4, "n": 2},
    {"temperature": 0.8, "top_p": 0.8, "repetition_penalty": 1.3},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.0, "min_p": 0.05, "num_speculative_tokens": 1},
    {"temperature": 1.2, "logit_bias": {7: 3.0}, "presence_penalty": 0.5},
    {"temperature": 1.0, "frequency_penalty": 0.7, "allowed_token_ids": list(range(30))},
    {"temperature": 2.0, "top_k": 40, "top_p": 0.9, "no_repeat_ngram_size": 2},
]


def asked(max_tokens: int = 16) -> tuple[list[list[int]], list[SamplingParams]]:
    params = [
        SamplingParams(seed=seed, max_tokens=max_tokens, **options)
        for seed, options in enumerate(ASKED)
    ]
    return [PROMPTS[i % len(PROMPTS)] for i in range(len(params))], params


def recorded(llm: LLM, prompts: Any, params: Any) -> tuple[Recorder, list[RequestOutput]]:
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder().wrap(patch)
        return recorder, llm.generate(prompts, params)


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_llama(0)


@pytest.fixture(scope="module")
def plain(target: Any) -> Recorder:
    return recorded(LLM(target), *asked())[0]


def drafted(num_drafts: int, **options: Any) -> Callable[[Any, Path], LLM]:
    def new_llm(target: Any, folder: Path) -> LLM:
        return speculating(target, near(target), num_drafts, **COMMON, **options)

    return new_llm


def near(target: Any) -> Any:
    """A draft that is often right."""
    draft = tiny_llama(0, layers=1)
    draft.load_state_dict(target.state_dict(), strict=False)
    return draft


def looked_up(target: Any, folder: Path) -> LLM:
    config = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    return LLM(target, speculative_config=config | COMMON)


def with_small_head(**kind: Any) -> Callable[[Any, Path], LLM]:
    def new_llm(target: Any, folder: Path) -> LLM:
        return with_head(target, save_small(target, folder, **kind), 3, **COMMON)

    return new_llm


SPECULATORS = {
    "draft model, K = 1": drafted(1),
    "draft model, K = 4": drafted(4, max_num_seqs=3),
    "draft model, K = 7, processed": drafted(7, process_draft_logits=True),
    "greedy drafts": drafted(3, draft_sample_method="greedy"),
    "ngram": looked_up,
    "eagle3": with_small_head(),
    "dflash": with_small_head(num_drafts=4),
    "dspark": with_small_head(num_drafts=3, anchor_first=True, markov_rank=5),
    "dflash2": with_small_head(num_drafts=3, selector_top_k=4),
}


@pytest.mark.parametrize("name", SPECULATORS)
def test_the_text_is_that_of_plain_decoding(
    name: str, target: Any, plain: Recorder, tmp_path: Path
) -> None:
    llm = SPECULATORS[name](target, tmp_path)
    found, outputs = recorded(llm, *asked())
    comparison = compare(plain, found)
    print(comparison)
    assert all(output.error is None for output in outputs)
    assert comparison.num_tokens == 16 * (len(ASKED) + 1)
    comparison.check()
    assert sum(output.metrics.num_accepted_tokens for output in outputs if output.metrics) > 0


def test_other_rules_give_another_text(target: Any) -> None:
    """Same key, same law, other numbers: only the rule makes it the same text."""
    prompts, params = asked()
    token = speculating(target, near(target), 4).generate(prompts, params)
    common = drafted(4)(target, Path()).generate(prompts, params)
    assert ids(token)[0] == ids(common)[0] and ids(token)[1:] != ids(common)[1:]


def test_preemption_leaves_the_text_alone(target: Any) -> None:
    prompts, params = asked(12)
    expected = ids(LLM(target).generate(prompts, params))
    llm = drafted(4)(target, Path())
    preempting(llm, lambda count, running: running[count % 3 :: 3])
    assert ids(llm.generate(prompts, params)) == expected


def test_the_engine_says_what_the_rule_gives(target: Any) -> None:
    text = looked_up(target, Path()).describe()
    assert "rule: common_noise" in text and "same logits, whatever speculates" in text
    assert "whatever speculates" not in LLM(target).describe()


def test_pocket_text_is_that_of_plain_decoding() -> None:
    """20 prompts of 24 tokens, filters in turns; drafts of the small model and of a lookup."""
    pair = load_model(pocket.path("target")), load_model(pocket.path("draft"))
    prompts = random_prompts(pair[0], 20, seed=11)
    params = [replace(item, max_tokens=24) for item in sampled_params(20)]
    expected, _ = recorded(LLM(pair[0]), prompts, params)
    draft = {"model": pair[1], "num_speculative_tokens": 4}
    for config in (draft, {"method": "ngram", "prompt_lookup_min": 1}):
        found, _ = recorded(LLM(pair[0], speculative_config=config | COMMON), prompts, params)
        comparison = compare(expected, found)
        print(comparison)
        assert comparison.num_tokens >= 0.98 * 20 * 24
        comparison.check()
