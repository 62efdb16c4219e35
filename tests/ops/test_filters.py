"""`ops.filter_logits` against the Hugging Face warpers, and the two forms against each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fairdraft import ops
from fairdraft.ops import Impl
from fairdraft.ops.sample import Method
from tests.ops.rows import IMPLS, addresses, random_logits

SETTINGS = [
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 10_000},
    {"top_p": 0.9},
    {"top_p": 1e-4},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 40, "top_p": 0.8, "min_p": 0.02},
]


def hugging_face(logits: torch.Tensor, temperature: float, **setting: float) -> torch.Tensor:
    from transformers.generation import logits_process as hf

    ids = torch.LongTensor([[0]])
    scores = hf.TemperatureLogitsWarper(temperature)(ids, logits.double())
    if "top_k" in setting:
        scores = hf.TopKLogitsWarper(int(setting["top_k"]))(ids, scores)
    if "top_p" in setting:
        scores = hf.TopPLogitsWarper(setting["top_p"])(ids, scores)
    if "min_p" in setting:
        scores = hf.MinPLogitsWarper(setting["min_p"])(ids, scores)
    return scores > -torch.inf


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_keeps_what_hugging_face_keeps(
    setting: dict[str, Any], temperature: float, impl: Impl
) -> None:
    logits = random_logits((6, 1_500), seed=1)
    got = ops.filter_logits(logits, temperature=temperature, impl=impl, **setting)
    kept = got > -torch.inf
    assert torch.equal(kept, hugging_face(logits, temperature, **setting))
    assert torch.equal(got[kept], logits.float()[kept])


@pytest.mark.parametrize("vocab_size", [1, 2, 63, 513, 4_097])
def test_cpu_equals_reference_with_a_setting_a_row(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    logits = random_logits((40, vocab_size), seed=2)
    # coarse logits, so that ties are everywhere
    logits = torch.where(torch.arange(40)[:, None] % 2 == 0, logits, logits.round())
    setting: dict[str, Any] = {
        "temperature": rng.choice([0.0, 0.5, 1.0, 2.0], 40),
        "top_k": rng.choice([-1, 0, 1, 5, 50], 40),
        "top_p": rng.choice([1.0, 0.9, 0.5, 1e-3], 40),
        "min_p": rng.choice([0.0, 0.1, 0.9], 40),
    }
    reference = ops.filter_logits(logits, impl="reference", **setting)
    assert torch.equal(ops.filter_logits(logits, impl="cpu", **setting), reference)
    assert (reference > -torch.inf).any(-1).all()


@pytest.mark.parametrize("method", ["race", "gumbel"])
@pytest.mark.parametrize("impl", IMPLS)
def test_sampling_under_filters_is_filtering_then_sampling(impl: Impl, method: Method) -> None:
    logits, at = random_logits((5, 1_025), seed=4), addresses(5)
    setting: dict[str, Any] = {"top_k": [0, 5, 50, 1, 3], "top_p": 0.9, "min_p": 0.01}
    temperature = np.array([1.0, 0.5, 2.0, 1.0, 0.0])
    options: dict[str, Any] = {"temperature": temperature, "impl": impl}
    kept = ops.filter_logits(logits, **options, **setting)
    options |= {"method": method, "return_stats": True}
    expected = ops.sample(kept, at, **options)
    got = ops.sample(logits, at, **options, **setting)
    unfiltered = ops.sample(logits, at, **options, top_k=0, top_p=1.0, min_p=0)
    assert torch.equal(got.token_ids, expected.token_ids)
    assert torch.equal(got.margin, expected.margin)
    assert got.stats is not None and expected.stats is not None
    for have, want in zip(got.stats.tensors(), expected.stats.tensors(), strict=True):
        assert torch.equal(have, want)
    assert torch.equal(unfiltered.token_ids, ops.sample(logits, at, **options).token_ids)


@pytest.mark.parametrize("impl", IMPLS)
def test_ties(impl: Impl) -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 1.0, 0.0]])
    top_k = ops.filter_logits(logits, top_k=2, impl=impl) > -torch.inf
    assert top_k.tolist() == [[True, True, True, True, False]]
    # mass before ids 0, 2, 3 is .447, .611, .775: ties are taken by id
    top_p = ops.filter_logits(logits, top_p=0.62, impl=impl) > -torch.inf
    assert top_p.tolist() == [[True, True, True, False, False]]


@pytest.mark.parametrize("impl", IMPLS)
def test_greedy_and_bad_rows_come_back_as_they_are(impl: Impl) -> None:
    logits = random_logits((4, 30), seed=3)
    logits[1, 3] = float("nan")
    logits[2, 4] = float("inf")
    logits[3] = float("-inf")
    temperature = torch.tensor([0.0, 1.0, 1.0, 1.0])
    got = ops.filter_logits(logits, temperature=temperature, top_k=2, impl=impl)
    assert torch.equal(got.nan_to_num(7.0), logits.float().nan_to_num(7.0))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"top_k": -2}, "top_k = -2 must be at least 1"),
        ({"top_p": 0.0}, r"top_p = 0.0 must be in \(0, 1\]"),
        ({"top_p": 1.1}, r"top_p = 1.1 must be in \(0, 1\]"),
        ({"top_p": float("nan")}, "top_p = nan"),
        ({"min_p": -0.1}, "min_p = -0.1"),
        ({"min_p": [0.1, 2.0]}, "min_p = 2.0"),
        ({"temperature": float("nan")}, "temperature = nan"),
    ],
)
def test_bad_parameters_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.filter_logits(torch.zeros(2, 5), **setting)
    with pytest.raises(ValueError, match=message):
        ops.sample(torch.zeros(2, 5), addresses(2), **setting)
