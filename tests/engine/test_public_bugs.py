"""Reports from public engines, run through `LLM.generate` on toy models.

Chi-square limits are at a false alarm of 1e-6 a test: 23.9, 27.6 and 30.7 at df 1, 2 and 3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fairdraft import LLM, SamplingParams
from tests.engine.toys import P4, Q4, from_probs, ids, speculating, table_model


def tokens_of(llm: LLM, count: int, length: int, **options: Any) -> np.ndarray:
    params = [SamplingParams(seed=seed, max_tokens=length, **options) for seed in range(count)]
    return np.array(ids(llm.generate([[0]] * count, params)))


def chi_square(tokens: np.ndarray, probs: list[float]) -> float:
    counts = np.bincount(tokens, minlength=len(probs))
    kept = np.array(probs) > 0
    assert counts[~kept].sum() == 0
    expected = len(tokens) * np.array(probs)[kept]
    return float(((counts[kept] - expected) ** 2 / expected).sum())


def test_argmax_drafts_are_point_masses_not_softmax_draws() -> None:
    """Verified as draws from softmax(q), they would give [.714, .143, .143]."""
    llm = speculating(
        from_probs([0.5, 0.3, 0.2]),
        from_probs([0.7, 0.2, 0.1]),
        2,
        draft_sample_method="greedy",
        max_num_seqs=1024,
    )
    tokens = tokens_of(llm, 8000, 3)
    for column in tokens.T:
        assert chi_square(column, [0.5, 0.3, 0.2]) < 27.6


@pytest.mark.parametrize(
    ("options", "probs"),
    [
        ({"temperature": 0.5}, [0.8650, 0.1171, 0.0158, 0.0021]),
        ({"top_k": 2}, [0.7311, 0.2689, 0, 0]),
        ({"top_p": 0.75}, [0.7311, 0.2689, 0, 0]),
        ({"min_p": 0.3}, [0.7311, 0.2689, 0, 0]),
        ({"temperature": 2.0, "top_k": 3}, [0.5065, 0.3072, 0.1863, 0]),
    ],
)
def test_temperature_and_filters_reach_every_token(
    options: dict[str, Any], probs: list[float]
) -> None:
    """Target logits 2, 1, 0, -1 and the reverse for the draft; accepted, replaced and bonus."""
    llm = speculating(table_model([2, 1, 0, -1]), table_model([0, 1, 2, -1]), 2, max_num_seqs=1024)
    exact = (np.array(probs) / sum(probs)).tolist()
    tokens = tokens_of(llm, 8000, 3, **options)
    for column in tokens.T:
        assert chi_square(column, exact) < 30.7


@pytest.mark.parametrize("temperature", [1e-45, 1e-30, 1e-10, 1e-6, 0.9e-5, 1.1e-5, 1e-3])
def test_extreme_temperatures_do_not_overflow(temperature: float) -> None:
    target = table_model([80, 79.5, 0, -80])
    for draft, expected in ((target, 1.0), (table_model([0, 80, 0, 0]), 0.0)):
        outputs = speculating(target, draft, 3).generate(
            [[0]] * 20, SamplingParams(temperature=temperature, max_tokens=9)
        )
        assert ids(outputs) == [[0] * 9] * 20
        for output in outputs:
            assert output.metrics is not None and output.metrics.acceptance_rate == expected


def test_a_very_high_temperature_is_uniform_on_what_is_possible() -> None:
    target = table_model([2, 1, 0, -np.inf])
    llm = speculating(target, table_model([0, 0, 0, 5]), 2, max_num_seqs=1024)
    for temperature in (1e6, 1e8):
        tokens = tokens_of(llm, 4000, 3, temperature=temperature)
        for column in tokens.T:
            assert chi_square(column, [1 / 3, 1 / 3, 1 / 3, 0]) < 27.6


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.5}, {"temperature": 2.0}, {"top_k": 2, "top_p": 0.6}]
)
def test_the_target_as_its_own_draft_is_accepted_every_time(options: dict[str, Any]) -> None:
    """10,000 drafts, every one accepted: the two laws are the same numbers."""
    table = np.random.default_rng(3).normal(size=(40, 40)) * 2
    model = table_model(table)
    llm = speculating(model, model, 4, max_num_seqs=128)
    params = [SamplingParams(seed=seed, max_tokens=26, **options) for seed in range(500)]
    outputs = llm.generate([[1]] * 500, params)
    drafted = sum(o.metrics.num_draft_tokens for o in outputs if o.metrics)
    accepted = sum(o.metrics.num_accepted_tokens for o in outputs if o.metrics)
    assert drafted >= 10_000 and accepted == drafted
    assert {s for o in outputs for s in o.outputs[0].token_sources} == {"draft", "bonus", "target"}


@pytest.mark.parametrize("max_num_seqs", [1, 2, 3, 4, 8])
def test_slots_that_are_used_again_do_not_mix(max_num_seqs: int) -> None:
    """Requests of many lengths come and go: first tokens and pairs of each keep the law."""
    llm = speculating(from_probs(P4), from_probs(Q4), 3, max_num_seqs=max_num_seqs)
    params = [SamplingParams(seed=seed, max_tokens=2 + seed % 5) for seed in range(1500)]
    outputs = ids(llm.generate([[0]] * 1500, params))
    first = np.array([tokens[0] for tokens in outputs])
    assert chi_square(first, P4) < 30.7
    pairs = np.array([4 * tokens[0] + tokens[1] for tokens in outputs])
    assert chi_square(pairs, np.outer(P4, P4).ravel().tolist()) < 56.5


def test_speculation_turned_off_and_on_leaves_greedy_text_alone() -> None:
    """Requests with and without drafts share the batch, and catch up when rows change hands."""
    model = table_model(np.random.default_rng(0).normal(size=(30, 30)))
    draft = table_model(np.random.default_rng(1).normal(size=(30, 30)))
    llm = speculating(model, draft, 3, max_num_seqs=4)
    params = [
        SamplingParams(temperature=0, max_tokens=5 + i % 11, num_speculative_tokens=i % 3)
        for i in range(40)
    ]
    prompts = [[i % 30, i // 2] for i in range(40)]
    outputs = llm.generate(prompts, params)
    assert ids(outputs) == ids(LLM(model).generate(prompts, params))
    for output, chosen in zip(outputs, params, strict=True):
        assert output.metrics is not None
        drafted = output.metrics.drafted_per_position
        assert sum(drafted[chosen.num_speculative_tokens or 0 :]) == 0


def test_min_p_top_p_and_top_k_of_one_request_do_not_leak_into_another() -> None:
    llm = speculating(from_probs(P4), from_probs(Q4), 2, max_num_seqs=512)
    kinds: list[tuple[dict[str, Any], int]] = [
        ({}, 4),
        ({"top_k": 1}, 1),
        ({"top_p": 0.5}, 2),
        ({"min_p": 0.5}, 3),
        ({"temperature": 0}, 1),
    ]
    params = [SamplingParams(seed=seed, max_tokens=3, **kinds[seed % 5][0]) for seed in range(3000)]
    tokens = np.array(ids(llm.generate([[0]] * 3000, params)))
    for index, (_, support) in enumerate(kinds):
        probs = np.where(np.arange(4) < support, P4, 0)
        own = tokens[index::5]
        for column in own.T:
            assert chi_square(column, (probs / probs.sum()).tolist()) < 30.7
