"""Bad parameters are refused when they are written down, by value and with the way out."""

from __future__ import annotations

from typing import Any

import pytest

from fairdraft import LLM, SamplingParams
from fairdraft.engine import SpeculativeConfig
from tests.engine.toys import tiny_llama


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, r"temperature=-0\.1: .*from 0 \(greedy\)"),
        ({"temperature": float("nan")}, "temperature=nan: .*not NaN"),
        ({"temperature": float("inf")}, "temperature=inf: .*finite"),
        ({"temperature": 2e8}, r"temperature=200000000\.0: .*1e\+08"),
        ({"temperature": "1"}, "temperature='1': must be a number, not str"),
        ({"temperature": True}, "temperature=True"),
        ({"top_p": 0.0}, r"top_p=0\.0: .*temperature=0"),
        ({"top_p": 1.1}, r"top_p=1\.1: .*at most 1"),
        ({"top_p": float("nan")}, "top_p=nan"),
        ({"min_p": -0.1}, r"min_p=-0\.1: .*0 \(off\)"),
        ({"min_p": 1.5}, r"min_p=1\.5"),
        ({"top_k": -2}, r"top_k=-2: .*0 .*to turn it off"),
        ({"top_k": 2.5}, r"top_k=2\.5: must be an int, not float"),
        ({"n": 0}, "n=0: must be from 1 to 65536"),
        ({"n": 65537}, "n=65537"),
        ({"seed": 1.0}, r"seed=1\.0: must be an int, not float; or None"),
        ({"seed": True}, "seed=True: must be an int, not bool"),
        ({"seed": "7"}, "seed='7'"),
        ({"noise_key": "123"}, "noise_key = '123' is not 16 hex digits"),
        ({"noise_key": "g" * 16}, "noise_key"),
        ({"noise_key": 5}, "noise_key"),
        ({"noise_key": "0" * 16, "seed": 1}, "seed=1 and noise_key=.* leave one out"),
        ({"max_tokens": 0}, "max_tokens=0: must be at least 1, or None"),
        ({"max_tokens": 1.5}, r"max_tokens=1\.5"),
        ({"logprobs": -1}, "logprobs=-1: must be at least 0"),
        ({"logprobs": True}, "logprobs=True"),
        ({"stop": ""}, "stop='': .*non-empty"),
        ({"stop": ["a", 3]}, "stop="),
        ({"stop_token_ids": [-1]}, "stop_token_ids holds -1"),
        ({"stop_token_ids": [1.5]}, r"stop_token_ids=1\.5"),
        ({"num_speculative_tokens": -1}, r"num_speculative_tokens=-1: .*\(no speculation\)"),
    ],
)
def test_sampling_params_refuse(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**options)


@pytest.mark.parametrize("seed", [-1, 0, 2**31, 2**63, 2**64, -(2**200)])
def test_every_int_is_a_seed(seed: int) -> None:
    assert SamplingParams(seed=seed).seed == seed


def test_extremes_are_accepted() -> None:
    SamplingParams(temperature=1e8, top_p=1e-9, top_k=-1, min_p=1.0, n=65536, max_tokens=None)
    assert SamplingParams(stop=["a", "b"]).stop_strings == ("a", "b")
    assert not SamplingParams(top_k=-1).has_filter


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_speculative_token": 3}, "unknown key 'num_speculative_token'; did you mean"),
        ({"zzz": 3}, "unknown key 'zzz'; known keys: method, model"),
        ({"method": "eagle"}, "method='eagle' is not known; use one of draft_model, ngram"),
        ({"method": "draft_model"}, "needs 'model'"),
        ({}, "needs 'model'"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens=0: .*1 to"),
        ({"method": "ngram", "num_speculative_tokens": True}, "num_speculative_tokens=True"),
        ({"model": "x", "draft_sample_method": "best"}, "draft_sample_method='best': .*greedy"),
        (
            {"model": "x", "rejection_sample_method": "fly"},
            "rejection_sample_method='fly': .*block",
        ),
        ({"method": "ngram", "prompt_lookup_min": 4, "prompt_lookup_max": 3}, "min <= max"),
        ({"method": "ngram", "prompt_lookup_min": 0}, "prompt_lookup_min=0"),
        ({"model": "x", "prompt_lookup_max": 3}, "belongs to method 'ngram'"),
        ("ngram", "must be a dict"),
    ],
)
def test_speculative_config_refuses(config: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SpeculativeConfig.from_dict(config)


def test_speculative_config_names_the_rule() -> None:
    assert SpeculativeConfig.from_dict({"model": "path"}).rule == "token"
    assert SpeculativeConfig(model="path", rejection_sample_method="standard").rule == "token"
    assert SpeculativeConfig(method="ngram", rejection_sample_method="block").rule == "block"


def test_speculative_config_settles_the_method_and_the_lookup() -> None:
    assert SpeculativeConfig.from_dict({"model": "path"}).method == "draft_model"
    assert SpeculativeConfig.from_dict({"model": "ngram"}).method == "ngram"
    lookup = SpeculativeConfig.from_dict({"method": "ngram"})
    assert (lookup.prompt_lookup_min, lookup.prompt_lookup_max) == (2, 5)
    lookup = SpeculativeConfig.from_dict({"method": "ngram", "prompt_lookup_max": 1})
    assert (lookup.prompt_lookup_min, lookup.prompt_lookup_max) == (1, 1)
    lookup = SpeculativeConfig.from_dict({"method": "ngram", "prompt_lookup_min": 7})
    assert (lookup.prompt_lookup_min, lookup.prompt_lookup_max) == (7, 7)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], r"prompts\[1\] is empty"),
        ("", r"prompts\[1\] is text and .* has no tokenizer"),
        ("hello", r"prompts\[1\] is text and .* has no tokenizer"),
        ([97], r"prompts\[1\] holds token id 97; .* has ids 0 to 96"),
        ([-1], r"prompts\[1\] holds token id -1"),
        ([1.5], r"prompts\[1\] is \[1\.5\]"),
        ([[1, 2]], r"prompts\[1\] is \[\[1, 2\]\]"),
        ([[1], [2, 3]], r"prompts\[1\] is"),
        (None, r"prompts\[1\] is"),
        ({"prompt_token_ids": []}, r"prompts\[1\] is empty"),
        ({"text": "a"}, r"prompts\[1\] has keys \['text'\]"),
        ([1] * 128, r"prompts\[1\] has 128 tokens and the context holds 128.*shorten it to 127"),
        ([1] * 500, r"prompts\[1\] has 500 tokens"),
    ],
)
def test_bad_prompts_are_refused_before_anything_runs(prompt: Any, message: str) -> None:
    llm = LLM(tiny_llama(0))
    before = llm.target.num_forwards
    with pytest.raises(ValueError, match=message):
        llm.generate([[1, 2], prompt])
    with pytest.raises(ValueError, match=message):
        llm.stream([[1, 2], prompt])
    assert llm.target.num_forwards == before and not llm.engine.has_work


def test_prompts_and_params_come_in_several_forms() -> None:
    import numpy as np

    llm = LLM(tiny_llama(0))
    params = SamplingParams(temperature=0, max_tokens=3)
    forms: list[Any] = [
        [1, 2, 3],
        [[1, 2, 3]],
        {"prompt_token_ids": [1, 2, 3]},
        [{"prompt_token_ids": [1, 2, 3]}],
        np.array([1, 2, 3]),
    ]
    outputs = [llm.generate(form, params) for form in forms]
    assert len({tuple(o[0].outputs[0].token_ids) for o in outputs}) == 1
    assert llm.generate([], params) == []
    with pytest.raises(ValueError, match="1 sampling_params for 2 prompts"):
        llm.generate([[1], [2]], [params])
    with pytest.raises(ValueError, match="sampling_params holds"):
        llm.generate([[1]], [{"temperature": 0}])  # pyright: ignore
    with pytest.raises(ValueError, match="prompts is a int"):
        llm.generate(5, params)  # pyright: ignore


def test_options_of_the_engine_are_checked() -> None:
    model = tiny_llama(0)
    with pytest.raises(ValueError, match="max_num_seqs=0"):
        LLM(model, max_num_seqs=0)
    with pytest.raises(ValueError, match="impl = 'cuda' is unknown"):
        LLM(model, impl="cuda")  # pyright: ignore
    with pytest.raises(ValueError, match="stop='x' needs a tokenizer"):
        LLM(model).generate([1], SamplingParams(stop="x"))
    with pytest.raises(ValueError, match="stop_token_ids holds 97"):
        LLM(model).generate([1], SamplingParams(stop_token_ids=[97]))


def test_configs_of_the_caller_are_left_alone() -> None:
    """Nothing is written into the caller's dictionary or the models' configurations."""
    target, draft = tiny_llama(0), tiny_llama(1, layers=1)
    config = {"model": draft, "num_speculative_tokens": 3}
    before = dict(config), target.config.to_dict(), draft.config.to_dict()
    llm = LLM(target, speculative_config=config)
    llm.generate([1, 2], SamplingParams(max_tokens=6))
    assert (dict(config), target.config.to_dict(), draft.config.to_dict()) == before
