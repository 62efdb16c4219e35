"""`ops.logprobs` against float64, on the host: values, ranks, first tokens, errors, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fairdraft import ops
from fairdraft.ops import Impl, RowError
from fairdraft.ops.logprobs import Logprobs
from tests.ops.rows import IMPLS, addresses, random_logits

TEMPERATURES = np.array([1.0, 0.3, 2.0, 1.0, 0.7])
#: of the sums of weights that rows are sampled by
STATS_ERROR = 4e-6


def exact(logits: Tensor, temperatures: np.ndarray) -> Tensor:
    return torch.log_softmax(logits.double() / torch.from_numpy(temperatures)[:, None], -1)


def rows_and_ids(vocab_size: int) -> tuple[Tensor, Tensor]:
    """Five rows with masks and ties; the tokens are likely, unlikely, masked and tied ones."""
    logits = random_logits((5, vocab_size), seed=vocab_size, dtype=torch.float32)
    logits[2] = logits[2].round()
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, vocab_size, 5))
    ids[0] = logits[0].argmax()
    return logits, ids


def assert_right(got: Logprobs, logits: Tensor, ids: Tensor, bound: float, top_n: int) -> None:
    law = exact(logits, TEMPERATURES)
    want = law.gather(1, ids[:, None])[:, 0]
    assert torch.equal(got.logprobs == -torch.inf, want == -torch.inf)
    finite = want > -torch.inf
    assert (got.logprobs - want)[finite].abs().max() <= bound
    chosen = logits.gather(1, ids[:, None])
    assert torch.equal(got.ranks, (logits > chosen).sum(1) + 1)
    order = np.argsort(-logits.numpy(), axis=-1, kind="stable")[:, :top_n]
    assert np.array_equal(got.top_ids.numpy(), order)
    top = law.gather(1, got.top_ids)
    gap = torch.where(top > -torch.inf, (got.top_logprobs - top).abs(), 0.0)
    assert gap.max() <= bound and torch.equal(got.top_logprobs == -torch.inf, top == -torch.inf)
    first = logits.gather(1, got.top_ids)
    ranks = (logits[:, None] > first[:, :, None]).sum(-1) + 1
    assert torch.equal(got.top_ranks, ranks)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("vocab_size", [2, 512, 1_025, 33_001])
def test_values_ranks_and_first_tokens(vocab_size: int, impl: Impl) -> None:
    logits, ids = rows_and_ids(vocab_size)
    call: dict[str, Any] = {"temperature": TEMPERATURES, "top_n": 5, "impl": impl}
    assert_right(ops.logprobs(logits, ids, **call), logits, ids, 1e-12, 5)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("vocab_size", [512, 33_001])
def test_statistics_of_sampling_stand_in_for_the_row(vocab_size: int, impl: Impl) -> None:
    logits, _ = rows_and_ids(vocab_size)
    drawn = ops.sample(logits, addresses(5), temperature=TEMPERATURES, return_stats=True, impl=impl)
    ids = drawn.token_ids
    call: dict[str, Any] = {"temperature": TEMPERATURES, "top_n": 3, "impl": impl}
    got = ops.logprobs(logits, ids, **call, stats=drawn.stats)
    assert_right(got, logits, ids, STATS_ERROR, 3)


def test_sums_of_statistics_are_as_exact_as_stated() -> None:
    """The laws in which rounding weighs most: flat ones, wide ones, and one peak."""
    generator = torch.Generator().manual_seed(3)
    normal = torch.randn(4, 150_000, generator=generator)
    logits = torch.cat([normal * torch.tensor([0.0, 1.0, 4.0, 20.0])[:, None], normal[:1]])
    logits[4, 77] = 40.0
    drawn = ops.sample(logits, addresses(5), temperature=TEMPERATURES, return_stats=True)
    got = ops.logprobs(logits, drawn.token_ids, temperature=TEMPERATURES, stats=drawn.stats)
    want = exact(logits, TEMPERATURES).gather(1, drawn.token_ids[:, None])[:, 0]
    assert (got.logprobs - want).abs().max() <= STATS_ERROR / 2


@pytest.mark.parametrize("impl", IMPLS)
def test_only_tiles_above_the_token_are_read(impl: Impl) -> None:
    """NaN planted after the statistics were made, in a tile that no answer depends on."""
    logits = torch.zeros(1, 1_536)
    logits[0, 600] = 3.0
    drawn = ops.sample(logits, addresses(1), return_stats=True, impl=impl)
    expected = ops.logprobs(logits, torch.tensor([600]), top_n=1, impl=impl)
    if impl == "cpu":
        logits[0, 1_100] = torch.nan
    got = ops.logprobs(logits, torch.tensor([600]), top_n=1, stats=drawn.stats, impl=impl)
    assert got.ranks.tolist() == [1] and got.top_ids.tolist() == [[600]]
    assert abs(float(got.logprobs) - float(expected.logprobs)) < STATS_ERROR


@pytest.mark.parametrize("impl", IMPLS)
def test_greedy_rows_are_point_masses(impl: Impl) -> None:
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0]]).repeat(3, 1)
    ids = torch.tensor([1, 2, 0])
    got = ops.logprobs(logits, ids, temperature=0.0, top_n=2, impl=impl)
    assert got.logprobs.tolist() == [0.0, -np.inf, -np.inf] and got.ranks.tolist() == [1, 1, 4]
    assert got.top_ids[0].tolist() == [1, 2] and got.top_logprobs[0].tolist() == [0.0, -np.inf]


@pytest.mark.parametrize("impl", IMPLS)
def test_rows_that_statistics_say_nothing_of_are_read(impl: Impl) -> None:
    """Greedy rows and rows with an error have none on the host."""
    logits, _ = rows_and_ids(1_025)
    logits[3, 9] = torch.nan
    call: dict[str, Any] = {"temperature": np.array([1.0, 0.0, 2.0, 1.0, 0.7]), "impl": impl}
    drawn = ops.sample(logits, addresses(5), return_stats=True, **call)
    call |= {"token_ids": drawn.token_ids, "top_n": 3}
    got, want = ops.logprobs(logits, **call, stats=drawn.stats), ops.logprobs(logits, **call)
    assert got.error.tolist() == [0, 0, 0, RowError.NAN, 0]
    assert torch.equal(got.ranks, want.ranks) and torch.equal(got.top_ids, want.top_ids)
    torch.testing.assert_close(
        got.logprobs, want.logprobs, rtol=0, atol=STATS_ERROR, equal_nan=True
    )


@pytest.mark.parametrize("impl", IMPLS)
def test_bad_rows_and_rows_without_a_token(impl: Impl) -> None:
    logits = torch.zeros(5, 600)
    logits[0, 3], logits[1, 4], logits[2] = torch.nan, torch.inf, -torch.inf
    ids = torch.tensor([1, 1, 1, -1, 599])
    got = ops.logprobs(logits, ids, top_n=2, impl=impl)
    assert got.error.tolist() == [RowError.NAN, RowError.INFINITE, RowError.EMPTY, 0, 0]
    assert got.logprobs.isnan().tolist() == [True] * 4 + [False]
    assert got.ranks.tolist() == [0, 0, 0, 0, 1]
    assert got.top_ids.tolist() == [[-1, -1]] * 3 + [[0, 1]] * 2
    none = ops.logprobs(logits[:0], ids[:0], top_n=2, impl=impl)
    assert none.logprobs.shape == (0,) and none.top_ids.shape == (0, 2)


def test_zeros_of_either_sign_are_equal_and_n_may_pass_the_vocabulary() -> None:
    logits = torch.tensor([[-0.0, 0.0, -1.0]])
    got = ops.logprobs(logits, torch.tensor([1]), top_n=9)
    assert got.top_ids.tolist() == [[0, 1, 2]] and got.top_ranks.tolist() == [[1, 1, 3]]
    assert got.ranks.tolist() == [1]


IDS = torch.zeros(2, dtype=torch.int64)
STATS = ops.TileStats(torch.zeros(2, 2), torch.zeros(2, 2), torch.zeros(2), IDS)


@pytest.mark.parametrize("impl", ["reference", "triton"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top_n": -1}, "top_n = -1 is no count"),
        ({"top_n": True}, "top_n = True is no count"),
        ({"token_ids": IDS[:1]}, r"token_ids has shape \(1,\)"),
        ({"token_ids": IDS.double()}, "token_ids .*float64"),
        ({"temperature": -1.0}, "temperature = -1.0 is not in"),
        ({"logits": torch.zeros(2, 3, 4)}, r"logits .*\(2, 3, 4\)"),
        ({"logits": torch.zeros(2, 0)}, "logits has a vocabulary of 0"),
        ({"stats": STATS}, r"stats.tile_max has shape \(2, 2\), not \(2, 1\): those of these rows"),
        ({"impl": "gpu"}, "impl = 'gpu' is unknown"),
    ],
)
def test_bad_calls_are_refused(change: dict[str, Any], message: str, impl: Impl) -> None:
    call: dict[str, Any] = {"logits": torch.zeros(2, 9), "token_ids": IDS, "impl": impl} | change
    with pytest.raises(ValueError, match=message):
        ops.logprobs(**call)


def test_statistics_of_a_device_are_refused_on_the_host() -> None:
    away = ops.TileStats(*(part.to("meta") for part in STATS.tensors()))
    with pytest.raises(ValueError, match="stats are on meta, the logits on the host"):
        ops.logprobs(torch.zeros(2, 600), IDS, stats=away)


def test_ids_outside_the_vocabulary_are_refused_on_the_host() -> None:
    for bad in (9, -2):
        with pytest.raises(ValueError, match=f"token_ids has {bad}, outside a vocabulary of 9"):
            ops.logprobs(torch.zeros(2, 9), IDS + bad)
