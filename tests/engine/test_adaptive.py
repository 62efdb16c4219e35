"""K from a request's own rounds: the formula, what it reads, and what it repeats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fairdraft import LLM, SamplingParams
from fairdraft.engine.adaptive import FIELDS, PRIOR_CHANCE, PRIOR_DRAFTS, DraftSchedule
from fairdraft.engine.rows import record_dtype
from tests.engine.toys import chain_table, ids, table_model, tiny_llama

PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6], [5], [3, 5, 8, 9]]


def rows(tested: list[float], stood: list[float]) -> np.ndarray:
    made = np.zeros(len(tested), FIELDS)
    made["tested"], made["stood"] = tested, stood
    return made


@pytest.mark.parametrize("cost", [0.05, 0.3, 1.0])
def test_k_has_the_most_tokens_for_its_cost(cost: float) -> None:
    """Against the closed form, over estimates from 0 to 1."""
    tested = np.full(101, 1000.0)
    stood = np.linspace(0, 1000, 101)
    found = DraftSchedule(8, cost).num_drafts(rows(tested.tolist(), stood.tolist()))
    chance = (stood + PRIOR_DRAFTS * PRIOR_CHANCE) / (tested + PRIOR_DRAFTS)
    count = np.arange(9)[:, None]
    gained = (1 - chance ** (count + 1)) / (1 - chance) / (1 + cost * count)
    assert gained[found, np.arange(101)] == pytest.approx(gained.max(0), abs=1e-12)
    assert (np.diff(found) >= 0).all() and found[0] == 0
    assert found[-1] == (8 if cost < 1 else 0)


def test_only_tested_drafts_count_and_memory_fades() -> None:
    schedule, made = DraftSchedule(4, 0.1), rows([0, 0, 0], [0, 0, 0])
    schedule.note(made, np.array([4, 4, 0]), np.array([1, 4, 0]))
    assert made["tested"].tolist() == [2, 4, 0] and made["stood"].tolist() == [1, 4, 0]
    before = schedule.num_drafts(made)
    assert before[1] == 4
    none = np.zeros(3, np.int64)
    for _ in range(200):
        schedule.note(made, none, none)
    # a row whose drafts fell tries again as at first
    assert (schedule.num_drafts(made) == schedule.num_drafts(rows([0], [0]))[0]).all()


def drafted(llm: LLM, prompts: list[list[int]], **options: Any) -> list[tuple[int, int]]:
    asked = [SamplingParams(seed=i, max_tokens=24, **options) for i in range(len(prompts))]
    outputs = llm.generate(prompts, asked)
    found = [output.metrics for output in outputs]
    return [(m.rounds, m.num_draft_tokens) for m in found if m is not None]


def adaptive(model: Any, most: int = 6, ratio: float | None = 0.2, **more: Any) -> dict[str, Any]:
    config = {"method": "custom", "model": model, "num_speculative_tokens": most}
    return {**config, "adaptive": True, "adaptive_cost_ratio": ratio, **more}


def test_right_drafts_get_more_and_wrong_ones_fewer() -> None:
    target = table_model(chain_table([*range(12), 0], 12))

    def right(text: np.ndarray, most: int) -> list[int]:
        return [(int(text[-1]) + i) % 12 for i in range(1, most + 1)]

    def wrong(text: np.ndarray, most: int) -> list[int]:
        return [int(text[-1])] * most

    always = {"method": "custom", "model": wrong, "num_speculative_tokens": 6}
    plain = drafted(LLM(target, speculative_config=always), [[0]])
    [(_, many)] = plain
    [(_, few)] = drafted(LLM(target, speculative_config=adaptive(wrong)), [[0]])
    assert 0 < few < many / 4
    [(rounds, _)] = drafted(LLM(target, speculative_config=adaptive(right)), [[0]])
    assert rounds <= 6
    # a request may still ask for fewer
    limited = drafted(
        LLM(target, speculative_config=adaptive(right)), [[0]], num_speculative_tokens=1
    )
    assert limited == [(12, 12)]


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    return tiny_llama(0), tiny_llama(0, layers=1)


def engine(pair: tuple[Any, Any], **options: Any) -> LLM:
    config = {"model": pair[1], "num_speculative_tokens": 4, "adaptive": True}
    return LLM(pair[0], speculative_config={**config, "adaptive_cost_ratio": 0.3}, **options)


def test_a_request_repeats_whatever_runs_beside_it(pair: tuple[Any, Any]) -> None:
    """Alone, in a batch, and with fewer rows: the same tokens, from the same counts of drafts."""
    asked = [SamplingParams(seed=i, max_tokens=24) for i in range(len(PROMPTS))]
    outputs = engine(pair).generate(PROMPTS, asked)
    counts = [(o.metrics.rounds, o.metrics.num_draft_tokens) for o in outputs if o.metrics]
    alone = [engine(pair).generate([p], [a])[0] for p, a in zip(PROMPTS, asked, strict=True)]
    assert ids(alone) == ids(outputs)
    assert [(o.metrics.rounds, o.metrics.num_draft_tokens) for o in alone if o.metrics] == counts
    again = engine(pair, max_num_seqs=2).generate(PROMPTS, asked)
    assert ids(again) == ids(outputs)
    fixed = LLM(pair[0], speculative_config={"model": pair[1], "num_speculative_tokens": 4})
    unlike = fixed.generate(PROMPTS, asked)
    assert [(o.metrics.rounds, o.metrics.num_draft_tokens) for o in unlike if o.metrics] != counts


def test_an_estimate_that_rows_share_is_seen(pair: tuple[Any, Any], monkeypatch: Any) -> None:
    """Planted: every row gets the K of all rows together, as an engine-wide average would."""
    num_drafts = DraftSchedule.num_drafts

    def shared(self: DraftSchedule, rows: np.ndarray) -> np.ndarray:
        together = np.zeros(1, FIELDS)
        together["tested"], together["stood"] = rows["tested"].sum(), rows["stood"].sum()
        return np.repeat(num_drafts(self, together), len(rows))

    monkeypatch.setattr(DraftSchedule, "num_drafts", shared)
    asked = [SamplingParams(seed=i, max_tokens=24) for i in range(len(PROMPTS))]
    together = engine(pair).generate(PROMPTS, asked)
    alone = [engine(pair).generate([p], [a])[0] for p, a in zip(PROMPTS, asked, strict=True)]
    assert ids(alone) != ids(together)


def test_a_preempted_request_goes_on_with_its_estimate(pair: tuple[Any, Any]) -> None:
    params = SamplingParams(seed=7, max_tokens=24)
    expected = engine(pair).generate([PROMPTS[0]], params)
    llm = engine(pair)
    tokens: list[int] = []
    for number, event in enumerate(llm.stream([PROMPTS[0]], params)):
        tokens += event.outputs[0].token_ids if event.outputs else []
        if number == 2:
            llm.engine.preempt(event.request_id)
    assert [tokens] == ids(expected)


def test_a_cost_that_is_not_given_is_measured_and_can_be_pinned(pair: tuple[Any, Any]) -> None:
    config = {"model": pair[1], "num_speculative_tokens": 2, "adaptive": True}
    llm = LLM(pair[0], speculative_config=config)
    assert llm.config is not None
    ratio = llm.config.adaptive_cost_ratio
    assert ratio is not None and 0.01 <= ratio < 10
    assert f"a draft at {ratio:g} of a round" in llm.describe()
    with pytest.raises(ValueError, match="give adaptive_cost_ratio"):
        LLM(pair[0], speculative_config=adaptive(lambda text, most: [], ratio=None))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adaptive": 1}, "adaptive=1"),
        ({"adaptive_cost_ratio": 0.0}, "adaptive_cost_ratio=0.0"),
        ({"adaptive_cost_ratio": True}, "adaptive_cost_ratio=True"),
        ({"adaptive": False}, "needs adaptive=True"),
    ],
)
def test_unusable_values_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LLM(tiny_llama(0), speculative_config=adaptive(lambda text, most: []) | changes)


def test_rows_hold_the_estimate() -> None:
    assert {name for name, _ in FIELDS} <= set(record_dtype(2).names or ())
