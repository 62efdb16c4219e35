"""`speculative_config="auto"`: the formula, the choice, and that it is made once and is pinned."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from fairdraft import LLM, SamplingParams
from fairdraft.engine.choice import AutoConfig, read_config
from fairdraft.engine.choice.choose import expected
from fairdraft.engine.choice.rounds import RoundLog, Trial, chances
from fairdraft.models import CausalLM, load_model
from tests.engine.toys import chain_table, ids, table_model

SHORT = {"method": "auto", "budget_seconds": 0.1, "num_speculative_tokens": 3}


@pytest.fixture(scope="module")
def target() -> CausalLM:
    """Counts up from the last token, and begins again at 0."""
    return load_model(table_model(chain_table([*range(12), 0], 12)))


def right(ids: np.ndarray, most: int) -> list[int]:
    return [(int(ids[-1]) + i) % 12 for i in range(1, most + 1)]


def slow(ids: np.ndarray, most: int) -> list[int]:
    time.sleep(0.05)
    return right(ids, most)


def wrong(ids: np.ndarray, most: int) -> list[int]:
    return [int(ids[-1])] * most


def auto(*functions: Any, **options: Any) -> dict[str, Any]:
    candidates = [{"method": "custom", "model": function} for function in functions]
    return {**SHORT, "candidates": candidates, **options}


def log(most: int, accepted: list[int], draft: float, rest: float) -> RoundLog:
    count = len(accepted)
    return RoundLog(most, [draft] * count, [rest] * count, [most] * count, accepted)


def test_tokens_and_cost_are_those_of_the_formula() -> None:
    """Half of the drafts stand at each place, for 64 rounds of K = 3; costs lie on a line."""
    accepted = [0] * 32 + [1] * 16 + [2] * 8 + [3] * 8
    logs = [log(1, [0, 1], 0.002, 0.010), log(3, accepted, 0.006, 0.014)]
    assert chances(logs, 3) == pytest.approx([0.5, 0.5, 0.5], abs=0.02)
    tokens, draft, rest = expected(logs, 2)
    assert tokens == pytest.approx(1 + 0.5 + 0.25, abs=0.02)
    assert (draft, rest) == pytest.approx((0.004, 0.012))
    assert expected([log(0, [0, 0], 0.0, 0.01)], 0) == pytest.approx((1.0, 0.0, 0.01))


def test_a_place_that_was_seldom_reached_is_drawn_to_the_others() -> None:
    [first, second] = chances([log(2, [0] * 90 + [1] * 9 + [2], 0.0, 1.0)], 2)
    assert first == pytest.approx(0.1, abs=0.01) and second == pytest.approx(0.1, abs=0.01)


def test_seconds_weigh_rounds_by_their_number_of_drafts() -> None:
    """A pause does not count; one round in four with drafts does."""
    made = RoundLog(4, [0.0] * 8, [1, 1, 9, 1, 1, 1, 2, 2], [0, 0, 0, 0, 0, 0, 4, 4], [0] * 8)
    assert made.seconds("rest") == pytest.approx((6 * 1 + 2 * 2) / 8)


def test_the_drafter_that_is_right_wins_with_the_largest_k(target: CausalLM) -> None:
    llm = LLM(target, speculative_config=auto(wrong, right, slow))
    assert llm.choice is not None and llm.config is not None
    assert llm.config.num_speculative_tokens == 3 and llm.config.model is right
    assert llm.choice.estimates[-1].name == "custom slow"
    text = llm.describe()
    assert "chosen: custom right, K = 3" in text and "not chosen: " in text
    assert "another machine or load may choose another K" in text
    # a trial's requests are gone, and what was pinned gives the same tokens for a key
    assert not llm.engine.has_work
    params = SamplingParams(max_tokens=9, seed=3)
    pinned = LLM(target, speculative_config=llm.choice.pinned)
    assert ids(pinned.generate([[0, 1]], params)) == ids(llm.generate([[0, 1]], params))
    assert pinned.choice is None


def test_what_is_timed_is_the_engine_that_serves(
    target: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial's engine differs from the one to come in its size, and in a K that stays."""
    engines: list[Any] = []
    begin = Trial.__init__

    def noted(self: Trial, engine: Any, num_drafts: int) -> None:
        engines.append(engine)
        begin(self, engine, num_drafts)

    monkeypatch.setattr(Trial, "__init__", noted)
    config = {"model": target, "rejection_sample_method": "block", "process_draft_logits": True}
    options: dict[str, Any] = {"impl": "reference", "enforce_eager": True}
    llm = LLM(target, speculative_config={**config, "adaptive": True}, **options)
    [_, trial] = engines
    for name in ("rule", "process_draft_logits", "impl", "enforce_eager"):
        assert getattr(trial, name) == getattr(llm.engine, name), name
    assert llm.engine.process_draft_logits and llm.engine.rows.schedule is not None
    assert trial.rows.schedule is None


def test_plain_decoding_wins_where_drafts_cost_more_than_they_bring(target: CausalLM) -> None:
    llm = LLM(target, speculative_config=auto(slow))
    assert llm.choice is not None and llm.choice.pinned is None
    assert llm.config is None and llm.speculator is None
    assert llm.choice.chosen.name == "plain" and "chosen: plain decoding" in llm.describe()


def test_it_is_decided_before_any_request_and_stays(target: CausalLM) -> None:
    llm = LLM(target, speculative_config=auto(right))
    chosen, speculator = llm.choice, llm.speculator
    llm.generate([[5]] * 3, SamplingParams(max_tokens=20))
    assert llm.choice is chosen and llm.speculator is speculator


def test_what_is_not_usable_is_said_and_what_was_asked_for_is_refused(target: CausalLM) -> None:
    config = {**SHORT, "model": "no such head or model"}
    with pytest.raises(ValueError, match="no such head"):
        LLM(target, speculative_config=config)
    draft = table_model(chain_table([*range(12), 0], 12))
    llm = LLM(target, speculative_config={**SHORT, "model": draft})
    assert llm.choice is not None
    names = {found.name for found in llm.choice.estimates}
    assert names == {"plain", "ngram", "suffix", "draft_model"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": "auto", "budget_seconds": 0}, "budget_seconds=0"),
        ({"method": "auto", "num_speculative_tokens": 0}, "num_speculative_tokens=0"),
        ({"method": "auto", "temperature": -1}, "temperature=-1"),
        ({"method": "auto", "rejection_sample_method": "best"}, "rejection_sample_method='best'"),
        ({"method": "auto", "prompt_lookup_max": 3}, "does not know 'prompt_lookup_max'"),
        ({"method": "auto", "candidates": [{"method": "x"}]}, "method='x'"),
        ({"method": "auto", "candidates": [{"method": "dspark"}]}, "'pocket-dspark' is that of"),
        ({"method": "auto", "candidates": [{"method": "prediction"}]}, "what a request predicts"),
        ({"method": "auto", "candidates": [{"method": "auto"}]}, "is the choice itself"),
        ("automatic", "must be a dict"),
    ],
)
def test_unusable_options_are_refused_before_anything_is_loaded(config: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_config(config)


def test_a_read_configuration_passes_through() -> None:
    asked = AutoConfig(budget_seconds=1.0)
    assert read_config(asked) is asked and read_config(None) is None
    assert read_config("auto") == AutoConfig()
    assert read_config({"method": "auto", "budget_seconds": 1.0}) == asked
