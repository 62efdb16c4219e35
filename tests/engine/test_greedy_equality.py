"""Greedy text is the same with and without speculation, whatever the drafts are worth."""

from __future__ import annotations

from typing import Any

import pytest

from fairdraft import LLM, SamplingParams
from tests.engine.toys import ids, noisy_copy, speculating, tiny_llama

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11], [12], [3, 1, 3, 1, 3, 1, 3]]
GREEDY = SamplingParams(temperature=0, max_tokens=24)


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_llama(0)


@pytest.fixture(scope="module")
def plain(target: Any) -> list[list[int]]:
    return ids(LLM(target).generate(PROMPTS, GREEDY))


def half_wrong(target: Any) -> Any:
    """The target with noise on its weights, so that about half of its drafts stand."""
    return noisy_copy(5, 0.02)


@pytest.mark.parametrize("num_drafts", range(1, 9))
@pytest.mark.parametrize("kind", ["random", "perfect", "half"])
def test_draft_model_leaves_greedy_text_alone(
    target: Any, plain: list[list[int]], kind: str, num_drafts: int
) -> None:
    drafts = {"random": lambda: tiny_llama(9, layers=1), "perfect": lambda: target}
    draft = drafts.get(kind, lambda: half_wrong(target))()
    outputs = speculating(target, draft, num_drafts).generate(PROMPTS, GREEDY)
    assert ids(outputs) == plain
    accepted = sum(output.metrics.num_accepted_tokens for output in outputs if output.metrics)
    drafted = sum(output.metrics.num_draft_tokens for output in outputs if output.metrics)
    if kind == "perfect":
        assert accepted == drafted
    elif kind == "half":
        assert 0 < accepted < drafted


@pytest.mark.parametrize("method", ["probabilistic", "greedy"])
@pytest.mark.parametrize("max_num_seqs", [1, 2, 3])
def test_batch_size_and_draft_method_leave_greedy_text_alone(
    target: Any, plain: list[list[int]], method: str, max_num_seqs: int
) -> None:
    llm = speculating(
        target, half_wrong(target), 3, draft_sample_method=method, max_num_seqs=max_num_seqs
    )
    assert ids(llm.generate(PROMPTS, GREEDY)) == plain


@pytest.mark.parametrize("lookup", [(1, 1), (2, 5), (3, 3)])
def test_prompt_lookup_leaves_greedy_text_alone(
    target: Any, plain: list[list[int]], lookup: tuple[int, int]
) -> None:
    shortest, longest = lookup
    config = {"method": "ngram", "prompt_lookup_min": shortest, "prompt_lookup_max": longest}
    assert ids(LLM(target, speculative_config=config).generate(PROMPTS, GREEDY)) == plain


def test_draft_with_a_shorter_context_stops_drafting(target: Any) -> None:
    """Near the draft's limit the number of drafts shrinks to none, and the text goes on."""
    params = SamplingParams(temperature=0, max_tokens=60)
    plain = ids(LLM(target).generate(PROMPTS, params))
    draft = tiny_llama(0)
    draft.config.max_position_embeddings = 20
    llm = speculating(target, draft, 4)
    outputs = llm.generate(PROMPTS, params)
    assert ids(outputs) == plain
    # the draft is a copy of the target: every draft stands until its context ends at 20
    metrics = outputs[0].metrics
    assert metrics is not None and metrics.num_accepted_tokens == metrics.num_draft_tokens
    assert metrics.rounds > 60 - 20


def test_greedy_and_sampled_rows_mix(target: Any, plain: list[list[int]]) -> None:
    sampled = SamplingParams(temperature=1.3, top_k=7, seed=4, max_tokens=24)
    llm = speculating(target, half_wrong(target), 4)
    outputs = llm.generate(PROMPTS, [GREEDY, sampled, GREEDY, sampled])
    assert [ids(outputs)[i] for i in (0, 2)] == [plain[i] for i in (0, 2)]
    alone = llm.generate(PROMPTS[1], sampled)
    assert ids(alone) == [ids(outputs)[1]]


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-30, 1e-10, 1e-6, 9.9e-6])
def test_tiny_temperatures_are_greedy_for_target_and_draft(
    target: Any, plain: list[list[int]], temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=24)
    outputs = speculating(target, target, 4).generate(PROMPTS, params)
    assert ids(outputs) == plain
    assert all(o.metrics and o.metrics.acceptance_rate == 1.0 for o in outputs)


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-4}, {"min_p": 1.0}])
def test_filters_that_keep_one_token_are_greedy(
    target: Any, plain: list[list[int]], options: dict[str, float]
) -> None:
    """The filters reach accepted, replaced and bonus tokens alike."""
    llm = speculating(target, half_wrong(target), 4)
    for seed in range(3):
        params = SamplingParams(max_tokens=24, seed=seed, **options)  # pyright: ignore
        assert ids(llm.generate(PROMPTS, params)) == plain


def test_speculation_can_be_turned_off_for_one_request(target: Any, plain: list[list[int]]) -> None:
    off = SamplingParams(temperature=0, max_tokens=24, num_speculative_tokens=0)
    outputs = speculating(target, target, 4).generate(PROMPTS, [off, GREEDY, off, GREEDY])
    assert ids(outputs) == plain
    drafted = [output.metrics.num_draft_tokens for output in outputs if output.metrics]
    assert drafted[0] == drafted[2] == 0 and drafted[1] > 0 and drafted[3] > 0
