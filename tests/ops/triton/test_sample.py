"""`ops.sample` in Triton kernels, interpreted: equal to the reference, errors row by row."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fairdraft import noise, ops
from fairdraft.noise import Stream, Trace
from fairdraft.ops import RowError
from fairdraft.ops.triton.workspace import Workspace
from tests.ops.rows import addresses, random_logits
from tests.ops.triton.alike import SAMPLED, assert_equal, assert_sampled_alike, guarded

TEMPERATURES = [0.0, 0.3, 1.0, 2.0, 1e8]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def bad_rows(vocab_size: int) -> torch.Tensor:
    """Good rows at both ends; NaN, +inf, nothing, one token, NaN beside +inf between them."""
    logits = random_logits((7, vocab_size), seed=4).float()
    logits[1, vocab_size - 1] = float("nan")
    logits[2, 5] = float("inf")
    logits[3] = float("-inf")
    logits[4] = float("-inf")
    logits[4, vocab_size // 2] = -300.0
    logits[5, 0], logits[5, vocab_size - 1] = float("inf"), float("nan")
    return logits


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("vocab_size", [1, 63, 512, 513, 1_025])
def test_kernels_equal_the_reference(vocab_size: int, temperature: float) -> None:
    logits = random_logits((2, vocab_size), seed=vocab_size).float()
    has_fast = temperature == 1.0
    assert_sampled_alike(guarded(logits), addresses(2), has_fast, temperature=temperature)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_temperature_a_row_greedy_ones_between(dtype: torch.dtype) -> None:
    logits = random_logits((6, 601), seed=2, dtype=dtype)
    temperature = torch.tensor([1.0, 0.0, 0.3, 9e-6, 1e-5, 1e8])
    got, _ = assert_sampled_alike(guarded(logits), addresses(6), temperature=temperature)
    assert not got.error.any()


def test_no_rows_draw_nothing() -> None:
    got, _ = assert_sampled_alike(torch.empty(0, 7), addresses(0), return_stats=True)
    assert got.token_ids.shape == (0,) and got.stats is not None


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_far_apart_in_memory(temperature: float) -> None:
    logits = random_logits((4, 700), seed=3).float()
    every_other = logits[::2]
    assert every_other.stride(0) == 1_400
    assert_sampled_alike(every_other, addresses(2), temperature=temperature)
    one_row = logits[:1].expand(2, -1)
    assert_sampled_alike(one_row, addresses(2), temperature=temperature)


def test_ties_go_to_the_lowest_id_across_tiles() -> None:
    logits = torch.full((2, 2_000), -5.0)
    logits[0, [600, 1_999, 300]] = 2.0
    logits[1, [1_999, 600]] = 2.0
    got, _ = assert_sampled_alike(logits, addresses(2), temperature=0.0)
    assert got.token_ids.tolist() == [300, 600] and got.margin.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("vocab_size", [40, 540])
def test_bad_rows_are_errors_of_their_own(vocab_size: int, temperature: float) -> None:
    logits = bad_rows(vocab_size)
    got, _ = assert_sampled_alike(
        guarded(logits), addresses(7), vocab_size > 512, temperature=temperature
    )
    kinds = [0, RowError.NAN, RowError.INFINITE, RowError.EMPTY, 0, RowError.NAN, 0]
    assert got.error.tolist() == kinds
    assert got.token_ids[4] == vocab_size // 2
    good = [0, 4, 6]
    alone = ops.sample(logits[good], addresses(7)[good], temperature=temperature, impl="reference")
    assert torch.equal(got.token_ids[good], alone.token_ids)


def test_bad_temperatures_on_the_device_are_errors_of_their_rows() -> None:
    bad = [-1.0, float("nan"), float("inf"), 2e8, -1e-30]
    temperature = torch.tensor([1.0, *bad, 0.0])
    logits = random_logits((7, 600), seed=6).float()
    for arithmetic in ("portable", "fast"):
        got = ops.sample(
            logits, addresses(7), temperature=temperature, impl="triton", arithmetic=arithmetic
        )
        assert got.error.tolist() == [0, *[RowError.PARAMETER] * 5, 0]
        assert got.token_ids[1:6].tolist() == [-1] * 5
        good = [0, 6]
        alone = ops.sample(
            logits[good], addresses(7)[good], temperature=temperature[good], impl="reference"
        )
        assert torch.equal(got.token_ids[good], alone.token_ids)


def test_statistics_are_those_of_the_reference() -> None:
    """Greedy and failed rows hold no total; their tiles are whatever the pass left."""
    logits = bad_rows(540)
    temperature = torch.tensor([1.0, 1.0, 1.0, 0.0, 2.0, 1.0, 0.0])
    at = addresses(7)
    got, expected = assert_sampled_alike(logits, at, temperature=temperature, return_stats=True)
    assert got.stats is not None and expected.stats is not None
    drawn = [0, 4]
    for name in ("tile_max", "tile_sum"):
        have, want = getattr(got.stats, name)[drawn], getattr(expected.stats, name)[drawn]
        assert torch.equal(have, want), name


def test_one_workspace_serves_calls_of_any_shape() -> None:
    workspace = Workspace("cpu")
    for vocab_size, count, method in [
        (1_025, 2, "race"),
        (540, 7, "gumbel"),
        (63, 3, "race"),
        (540, 7, "race"),
        (1_025, 2, "gumbel"),
    ]:
        is_bad = count == 7
        logits = bad_rows(vocab_size) if is_bad else random_logits((count, vocab_size), 8).float()
        options: dict[str, Any] = {"method": method, "workspace": workspace}
        assert_sampled_alike(logits, addresses(count), method == "gumbel", **options)


def test_out_is_written_and_returned() -> None:
    logits, at = random_logits((3, 600), seed=9).float(), addresses(3)
    out = ops.sample(torch.zeros(3, 600), at, impl="triton", return_stats=True)
    got = ops.sample(
        logits, at, impl="triton", arithmetic="portable", return_stats=True, out=out, validate=False
    )
    assert got is out
    expected = ops.sample(logits, at, impl="reference", return_stats=True)
    assert_equal(got, expected, SAMPLED)
    assert got.stats is not None and expected.stats is not None
    assert torch.equal(got.stats.row_sum, expected.stats.row_sum)


def test_the_trace_holds_what_the_reference_recorded() -> None:
    logits = bad_rows(600)
    temperature = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    trace = Trace()
    for impl in ("reference", "triton"):
        ops.sample(logits, addresses(7), temperature=temperature, impl=impl, trace=trace)
    assert len(trace) == 2
    trace.check()


AT = noise.address(Stream.TARGET, key=1, position=torch.arange(2).numpy())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(2, 5, dtype=torch.float64)}, "kernels read float32, bfloat16"),
        ({"logits": torch.zeros(2, 5, dtype=torch.int64)}, "logits is torch.int64"),
        ({"logits": torch.zeros(5)}, "give 2 dimensions"),
        ({"logits": torch.zeros(2, 1, 5)}, "give 2 dimensions"),
        ({"logits": torch.zeros(5, 2).T}, "strides"),
        ({"logits": torch.zeros(2, 0)}, "logits has a vocabulary of 0"),
        ({"address": AT[:1]}, "address names 1 draws for 2 rows"),
        ({"temperature": -1.0}, "temperature = -1.0 is not in"),
        ({"temperature": float("nan")}, "temperature = nan is not in"),
        ({"temperature": torch.ones(3)}, r"temperature is torch.float32 \(3,\)"),
        ({"temperature": torch.ones(2, dtype=torch.int64)}, "temperature is torch.int64"),
        ({"temperature": torch.ones(4)[::2]}, "temperature is torch.float32"),
        ({"temperature": torch.ones(2, device="meta")}, "temperature is .* on meta"),
        ({"method": "cdf"}, "method = 'cdf' is unknown"),
        ({"impl": "cuda"}, "impl = 'cuda' is unknown"),
        ({"arithmetic": "exact"}, "arithmetic = 'exact' is unknown"),
        ({"impl": "cpu", "arithmetic": "fast"}, "impl 'cpu' computes 'portable' only"),
        ({"impl": "reference", "arithmetic": "fast"}, "impl 'reference' computes 'portable'"),
        ({"impl": "cpu", "workspace": Workspace("cpu")}, "out and workspace are for tensors"),
        ({"impl": "triton", "logits": torch.zeros(2, 5, device="meta")}, "tensors are on meta"),
        ({"impl": "cpu", "logits": torch.zeros(2, 5, device="meta")}, "impl = 'cpu' reads host"),
    ],
)
def test_bad_calls_are_refused(change: dict[str, Any], message: str) -> None:
    call: dict[str, Any] = {"logits": torch.zeros(2, 5), "address": AT, "impl": "triton"} | change
    with pytest.raises(ValueError, match=message):
        ops.sample(**call)


def test_an_out_that_does_not_fit_is_refused() -> None:
    logits = torch.zeros(2, 5)
    plain = ops.sample(logits, AT, impl="triton")
    with pytest.raises(ValueError, match="out has no stats"):
        ops.sample(logits, AT, impl="triton", out=plain, return_stats=True)
    with pytest.raises(ValueError, match=r"out.token_ids is torch.int64 \(2,\)"):
        ops.sample(logits[:1], AT[:1], impl="triton", out=plain)


def test_kernels_need_a_gpu_or_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        ops.sample(torch.zeros(2, 5), AT, impl="triton")
