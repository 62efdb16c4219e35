"""`ops.sample`: the CPU form equals the reference with ==, and both refuse or report bad rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairdraft import noise, ops
from fairdraft.noise import Stream, Trace
from fairdraft.ops import Impl, RowError
from fairdraft.ops.race import flat_race
from fairdraft.ops.sample import Method
from tests.ops.rows import IMPLS, SHAPES, addresses, random_logits

GOLDEN = Path(__file__).with_name("golden_tokens.json")


@pytest.mark.parametrize("method", ["race", "gumbel"])
@pytest.mark.parametrize("temperature", [0.0, 1e-4, 0.3, 1.0, 2.0, 1e6])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cpu_equals_reference(shape: tuple[int, int], temperature: float, method: Method) -> None:
    logits, at = random_logits(shape, seed=1), addresses(shape[0])
    kwargs: dict[str, Any] = {"temperature": temperature, "method": method, "return_stats": True}
    reference = ops.sample(logits, at, impl="reference", **kwargs)
    fast = ops.sample(logits, at, impl="cpu", **kwargs)
    assert torch.equal(fast.token_ids, reference.token_ids)
    assert torch.equal(fast.margin, reference.margin)
    assert torch.equal(fast.error, reference.error)
    for name in ("tile_max", "tile_sum", "row_max", "row_sum"):
        assert torch.equal(getattr(fast.stats, name), getattr(reference.stats, name)), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_sampled_as_their_float32_values(dtype: torch.dtype) -> None:
    logits, at = random_logits((4, 700), seed=2, dtype=dtype), addresses(4)
    expected = ops.sample(logits.float(), at).token_ids
    assert torch.equal(ops.sample(logits, at).token_ids, expected)


@pytest.mark.parametrize("stream", list(Stream))
def test_streams_differ_and_repeat(stream: Stream) -> None:
    logits = torch.zeros(1, 50_000)
    at = noise.address(stream, key=5, position=3)
    other = noise.address(Stream(stream % 6 + 1), key=5, position=3)
    first = ops.sample(logits, at).token_ids
    assert torch.equal(first, ops.sample(logits, at).token_ids)
    assert not torch.equal(first, ops.sample(logits, other).token_ids)


def test_golden_tokens() -> None:
    """Fifty tokens pin noise_version: Philox, packing, tile, arithmetic and key mix."""
    golden = json.loads(GOLDEN.read_text())
    assert golden["noise_version"] == noise.NOISE_VERSION
    for impl in IMPLS:
        assert golden_tokens(impl) == golden["token_ids"], impl


def golden_tokens(impl: Impl) -> list[int]:
    # logits from integer arithmetic, so that no library can change them
    ids = np.arange(5_000, dtype=np.int64)
    rows = [((ids * 2_654_435_761 + 97 * i) % 4_096) / 256.0 for i in range(50)]
    logits = torch.from_numpy(np.stack(rows).astype(np.float32))
    key = [noise.request_key(seed, [seed, 1]) for seed in range(50)]
    at = noise.address(
        Stream.DRAFT,
        key=np.array(key, np.uint64),
        position=np.arange(50) + 7,
        anchor=7,
        node=np.arange(50) % 5 + 1,
        sample=np.arange(50) % 3,
    )
    temperature = torch.tensor([0.5, 1.0, 2.0, 4.0, 0.7]).repeat(10)
    return ops.sample(logits, at, temperature=temperature, impl=impl).token_ids.tolist()


@pytest.mark.parametrize("impl", IMPLS)
def test_guard_columns_are_never_read(impl: Impl) -> None:
    memory = torch.full((4, 1_100), float("inf"))
    memory[:, :1_003] = random_logits((4, 1_003), seed=3)
    at = addresses(4)
    inside = ops.sample(memory[:, :1_003], at, impl=impl)
    assert torch.equal(inside.token_ids, ops.sample(memory[:, :1_003].clone(), at).token_ids)
    assert not inside.error.any()


@pytest.mark.parametrize("impl", IMPLS)
def test_ties_go_to_the_lowest_id_across_tiles(impl: Impl) -> None:
    logits = torch.full((1, 2_000), -5.0)
    logits[0, [600, 1_999, 300]] = 2.0
    got = ops.sample(logits, addresses(1), temperature=0.0, impl=impl)
    assert got.token_ids.tolist() == [300] and got.margin.tolist() == [0.0]


def test_a_tie_in_the_race_goes_to_the_lowest_id(monkeypatch: pytest.MonkeyPatch) -> None:
    ones = lambda at, row, lanes, level: np.ones(len(lanes), np.float32)  # noqa: E731
    monkeypatch.setattr("fairdraft.ops.race.exponentials", ones)
    token, margin = flat_race(np.array([0, 1, 1, 1], np.float32), addresses(1), 0)
    assert (token, margin) == (1, 0.0)


@pytest.mark.parametrize("impl", IMPLS)
def test_bad_rows_are_errors_of_their_own(impl: Impl) -> None:
    logits = random_logits((6, 1_030), seed=4)
    logits[1, 1_029] = float("nan")
    logits[2, 5] = float("inf")
    logits[3] = float("-inf")
    logits[4, 0] = torch.tensor(-0x400000, dtype=torch.int32).view(torch.float32)  # negative NaN
    temperature = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    got = ops.sample(logits, addresses(6), temperature=temperature, impl=impl)
    expected = [0, RowError.NAN, RowError.INFINITE, RowError.EMPTY, RowError.NAN, 0]
    assert got.error.tolist() == expected
    assert (got.token_ids[1:5] == -1).all()
    alone = ops.sample(logits[[0, 5]], addresses(6)[[0, 5]], temperature=temperature[[0, 5]])
    assert got.token_ids[[0, 5]].tolist() == alone.token_ids.tolist()


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("temperature", [1e-45, 1e-30, 1e-10, 1e-6, 1e-5, 1e-3])
def test_tiny_temperatures_are_greedy_or_as_good(impl: Impl, temperature: float) -> None:
    logits = torch.tensor([[80.0, 79.5, 0.0, -80.0]]).repeat(50, 1)
    got = ops.sample(logits, addresses(50), temperature=temperature, impl=impl)
    assert (got.token_ids == 0).all() and not got.error.any()


@pytest.mark.parametrize("impl", IMPLS)
def test_one_finite_entry_always_wins(impl: Impl) -> None:
    logits = torch.full((20, 3_000), float("-inf"))
    logits[:, 1_777] = -300.0
    got = ops.sample(logits, addresses(20), temperature=100.0, impl=impl)
    assert (got.token_ids == 1_777).all() and (got.margin == np.inf).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": -1.0}, "temperature = -1.0 is not in"),
        ({"temperature": float("nan")}, "temperature = nan"),
        ({"temperature": float("inf")}, "temperature = inf"),
        ({"temperature": 2e8}, r"temperature = 200000000\.0"),
        ({"temperature": [1.0, 1.0, 1.0]}, r"temperature has shape \(3,\)"),
        ({"method": "cdf"}, "method = 'cdf' is unknown"),
        ({"impl": "cuda"}, "impl = 'cuda' is unknown"),
        ({"address": addresses(3)}, "address names 3 draws for 2 rows"),
        ({"logits": torch.zeros(2, 5, dtype=torch.int64)}, "logits must be a floating-point"),
        ({"logits": torch.zeros(5)}, "logits must have 2 dimensions"),
        ({"logits": torch.zeros(2, 0)}, "logits has a vocabulary of 0"),
    ],
)
def test_bad_calls_are_refused(change: dict[str, Any], message: str) -> None:
    call: dict[str, Any] = {"logits": torch.zeros(2, 5), "address": addresses(2)} | change
    with pytest.raises(ValueError, match=message):
        ops.sample(**call)


def test_draft_and_target_draws_separate_in_a_wide_vocabulary() -> None:
    """Head far above a flat tail of 200k ids: streams disagree off the head, and both repeat.

    The tail holds 20 % of the mass; of 2,000 draws each stream shows 400 +- 18 tail tokens, and
    two independent tails agree on a token with chance 5e-6 a pair.
    """
    num_trials, vocab_size = 2_000, 200_000
    logits = torch.full((1, vocab_size), 0.0)
    logits[0, 0] = float(np.log(4.0 * (vocab_size - 1)))
    rows = logits.expand(100, -1).contiguous()
    drawn = {}
    for stream in (Stream.DRAFT, Stream.TARGET, Stream.RESIDUAL):
        tokens = []
        for start in range(0, num_trials, 100):
            at = noise.address(stream, key=9, position=start + np.arange(100), anchor=1, node=1)
            tokens.append(ops.sample(rows, at).token_ids)
        drawn[stream] = torch.cat(tokens)
        share = (drawn[stream] > 0).double().mean().item()
        assert abs(share - 0.2) < 6 * (0.16 / num_trials) ** 0.5
        again = ops.sample(rows, at).token_ids
        assert torch.equal(again, tokens[-1])
    for first, second in [(Stream.DRAFT, Stream.TARGET), (Stream.DRAFT, Stream.RESIDUAL)]:
        is_tail = (drawn[first] > 0) & (drawn[second] > 0)
        assert is_tail.sum() > 30
        assert (drawn[first][is_tail] == drawn[second][is_tail]).sum() == 0


def test_the_trace_sees_sampled_rows_only() -> None:
    trace = Trace()
    logits = random_logits((3, 40), seed=5)
    at = addresses(3)
    temperature = torch.tensor([1.0, 0.0, 1.0])
    ops.sample(logits, at, temperature=temperature, trace=trace)
    ops.sample(logits, at, temperature=temperature, trace=trace)
    assert len(trace) == 2
    trace.check()
    ops.sample(logits + torch.arange(40), at, temperature=temperature, trace=trace)
    assert len(trace.collisions) == 2
