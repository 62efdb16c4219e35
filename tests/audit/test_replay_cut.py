"""Replays of walks that were cut at a broken row: what stood before it is compared, and no more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fairdraft import LLM, SamplingParams
from fairdraft.audit.replay import Replay, Replayer
from fairdraft.audit.subjects.engine_copies import observed
from tests.engine.toys import chain_table, from_probs, table_model

METHODS = {
    "token": {},
    "block": {"rejection_sample_method": "block"},
    "common noise": {"rejection_sample_method": "common_noise"},
    "point masses": {"draft_sample_method": "greedy"},
    "tree": {"speculative_token_tree": [2, 1, 1]},
}


def replayed(llm: LLM, params: Any, prompt: list[int]) -> tuple[Replay, list[Any]]:
    replayer = Replayer(llm.engine.rule, every=1, rows_per_round=8)
    with observed(llm, replayer):
        outputs = llm.generate([prompt] * len(params), params)
    return replayer.result(), outputs


def drafted(target: Any, draft: Any, method: str) -> LLM:
    config = {"model": draft, "num_speculative_tokens": 3, **METHODS[method]}
    return LLM(target, speculative_config=config)


def failing(input_ids: Any, scores: Any) -> Any:
    """Takes every token away once four are there, which logits that a walk reads do not show."""
    return scores - np.inf if input_ids.shape[1] == 4 else scores


def toy_call(method: str) -> tuple[LLM, list[SamplingParams]]:
    llm = drafted(from_probs([0.4, 0.3, 0.2, 0.1]), from_probs([0.1, 0.2, 0.3, 0.4]), method)
    wrong = [
        SamplingParams(seed=seed, max_tokens=9, logits_processors=[failing]) for seed in range(6)
    ]
    return llm, [*wrong, SamplingParams(seed=9, max_tokens=9)]


@pytest.mark.parametrize("method", METHODS)
def test_a_walk_that_a_processor_cut_agrees(method: str) -> None:
    llm, params = toy_call(method)
    replay, outputs = replayed(llm, params, [0])
    failed = [output for output in outputs if output.error is not None]
    assert len(failed) == 6 and {len(output.outputs[0].token_ids) for output in failed} == {3}
    assert replay.mismatches == () and replay.num_tokens > 20


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_walk_that_comes_to_logits_that_are_no_law_agrees(method: str, value: float) -> None:
    table = chain_table([0, 1, 2, 3, 4, 5], 8, gap=3.0)
    clean = table_model(table.copy())
    table[2] = value
    params = [SamplingParams(seed=seed, max_tokens=9) for seed in range(8)]
    replay, outputs = replayed(drafted(table_model(table), clean, method), params, [0])
    failed = [output for output in outputs if output.error is not None]
    assert any(output.outputs[0].token_ids for output in failed)
    assert replay.mismatches == () and replay.num_tokens > 8


@pytest.mark.parametrize("method", ["token", "block", "tree"])
def test_a_draft_that_fails_its_request_leaves_nothing_to_compare(method: str) -> None:
    """The round emits nothing, and drafts none; the definition would decode a token of it."""
    broken = chain_table([0, 1, 2], 8, gap=1.0)
    broken[1] = np.nan
    target = table_model(chain_table([0, 1, 2], 8, gap=1.0))
    params = [SamplingParams(seed=seed, max_tokens=9) for seed in range(6)]
    replay, outputs = replayed(drafted(target, table_model(broken), method), params, [0])
    assert any(output.error is not None for output in outputs)
    assert replay.mismatches == () and replay.num_rounds >= 4


def test_wrong_tokens_before_the_cut_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the first emitted token of every round that fails is another one."""
    from fairdraft.audit import replay_part

    made = replay_part.part_of

    def planted(seen: Any, rows: np.ndarray, rule: Any) -> Any:
        part = made(seen, rows, rule)
        part.token_ids[part.is_cut, 0] ^= 1
        return part

    monkeypatch.setattr("fairdraft.audit.replay.part_of", planted)
    replay, _ = replayed(*toy_call("token"), [0])
    assert any("and the reference" in found for found in replay.mismatches)
    assert any("the formulas of the rule give" in found for found in replay.mismatches)
