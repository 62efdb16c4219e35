"""Speculators that a caller brings: what they may be, and what happens when they are wrong."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from fairdraft import LLM, SamplingParams
from fairdraft.speculators import plugins
from tests.engine.toys import chain_table, ids, table_model, tiny_llama

PARAMS = SamplingParams(temperature=0, max_tokens=12)


def counting(token_ids: np.ndarray, max_tokens: int) -> list[int]:
    """The token after each token is the next number."""
    last = int(token_ids[-1])
    return [i for i in range(last + 1, last + 1 + max_tokens) if i < 40]


class Follows:
    """Logits that expect the next number."""

    def __init__(self, target: Any, num_speculative_tokens: int) -> None:
        self.vocab_size = target.vocab_size
        self.k = num_speculative_tokens

    def logits(self, token_ids: np.ndarray) -> torch.Tensor:
        law = torch.zeros(self.vocab_size)
        law[(int(token_ids[-1]) + 1) % self.vocab_size] = 9.0
        return law


def custom(model: Any, target: Any = None, **config: Any) -> LLM:
    target = table_model(chain_table(list(range(40)), 40)) if target is None else target
    config = {"method": "custom", "model": model, **config}
    return LLM(target, speculative_config=config)


def accepted(llm: LLM) -> int:
    [output] = llm.generate([1], PARAMS)
    assert output.outputs[0].token_ids == list(range(2, 14))
    assert output.metrics is not None
    return output.metrics.num_accepted_tokens


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> str:
    found: Any = ModuleType("speculators_of_a_user")
    found.counting, found.Follows, found.number = counting, Follows, 3
    monkeypatch.setitem(sys.modules, found.__name__, found)
    return found.__name__


def test_a_function_a_class_an_object_and_their_names(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [EntryPoint("numbers", f"{module}:counting", plugins.GROUP)]
    monkeypatch.setattr(plugins, "entry_points", lambda group: points)
    target = table_model(chain_table(list(range(40)), 40))
    instance = Follows(LLM(target).target, 4)
    named = (f"{module}:counting", f"{module}:Follows", "numbers")
    for model in (counting, Follows, instance, *named):
        assert accepted(custom(model)) >= 9
    with pytest.raises(ValueError, match="did you mean 'numbers'"):
        custom("number")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, "needs 'model', a function, an object"),
        ("nothing_of_this_name", "no installed package has an entry point"),
        ("no_such_module:x", "cannot be loaded: No module named 'no_such_module'"),
        ("speculators_of_a_user:missing", "cannot be loaded: .*missing"),
        ("speculators_of_a_user:number", "is a int: pass a function"),
        (type("Half", (), {"__init__": lambda *_: None, "propose": 1}), "lacks commit, admit_row"),
    ],
)
def test_what_cannot_be_a_speculator_is_refused(model: Any, message: str, module: str) -> None:
    with pytest.raises(ValueError, match=message):
        custom(model)


def test_options_of_laws_are_refused_for_point_masses() -> None:
    for option in ({"confidence_threshold": 0.5}, {"draft_sample_method": "greedy"}):
        with pytest.raises(ValueError, match="belong to one that has logits"):
            custom(counting, **option)
        assert accepted(custom(Follows, **option)) >= 9


WRONG = {
    "far id": (lambda t, k: [3, 97], "token id 97; the target has ids 0 to 96"),
    "negative id": (lambda t, k: [-1], "token id -1"),
    "too many": (lambda t, k: [1] * (k + 1), "returned 5 drafts and was asked for 4"),
    "float": (lambda t, k: [1.0], r"1.0 \(float\) among its drafts"),
    "bool": (lambda t, k: [True], r"True \(bool\) among"),
    "none": (lambda t, k: None, r"None \(NoneType\); return a list"),
    "text": (lambda t, k: "ab", r"'ab' \(str\); return a list"),
    "nested": (lambda t, k: np.zeros((1, 2), np.int64), r"\(list\) among"),
    "raises": (lambda t, k: {}[7], "KeyError: 7"),
    "writes": (lambda t, k: t.__setitem__(0, 1), "ValueError: assignment destination"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_function_fails_its_request_alone(name: str) -> None:
    function, message = WRONG[name]
    llm = custom(lambda t, k: function(t, k) if t[0] == 5 else [], tiny_llama(0))
    prompts = [[1, 2], [5, 2], [7]]
    outputs = llm.generate(prompts, PARAMS)
    assert [output.error is not None for output in outputs] == [False, True, False]
    with pytest.raises(ValueError, match=message):
        raise ValueError(outputs[1].error)
    assert outputs[1].outputs[0].finish_reason == "error"
    plain = ids(LLM(tiny_llama(0)).generate(prompts, PARAMS))
    assert [ids(outputs)[i] for i in (0, 2)] == [plain[0], plain[2]]


class Sometimes:
    """Wrong from the second draft on, where the text began with 5."""

    def __init__(self, wrong: Any) -> None:
        self.wrong = wrong

    def logits(self, token_ids: np.ndarray) -> Any:
        if token_ids[0] == 5 and len(token_ids) > 2:
            return self.wrong() if callable(self.wrong) else self.wrong
        return np.linspace(0, 3, 97, dtype=np.float32)


WRONG_LOGITS = {
    "shape": (torch.zeros(96), r"shape \[96\], not \[97\]"),
    "integers": (torch.zeros(97, dtype=torch.int64), "its logits are torch.int64"),
    "list": ([0.0] * 97, "its logits are .*list"),
    "NaN": (torch.full((97,), torch.nan), "largest of its logits is nan"),
    "+inf": (torch.full((97,), torch.inf), "largest of its logits is inf"),
    "nothing": (torch.full((97,), -torch.inf), "largest of its logits is -inf"),
    "raises": (lambda: 1 // 0, "draft 2 of the round: ZeroDivisionError"),
}


@pytest.mark.parametrize("name", WRONG_LOGITS)
@pytest.mark.parametrize("threshold", [0.0, 0.01])
def test_wrong_logits_fail_their_request_alone(name: str, threshold: float) -> None:
    wrong, message = WRONG_LOGITS[name]
    llm = custom(Sometimes(wrong), tiny_llama(0), confidence_threshold=threshold)
    prompts = [[1, 2], [5, 2], [7]]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=6, seed=1))
    assert [output.error is not None for output in outputs] == [False, True, False]
    with pytest.raises(ValueError, match=f"draft 2 of the round: .*{message}|{message}"):
        raise ValueError(outputs[1].error)
