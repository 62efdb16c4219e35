"""`ops.sample` under filters in Triton kernels, interpreted: equal to filtering, then sampling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from fairdraft import ops
from fairdraft.noise import Trace
from fairdraft.noise.trace import TraceError
from fairdraft.ops import RowError, Sampled
from fairdraft.ops.triton import candidates, filtered
from fairdraft.ops.triton.workspace import Workspace
from tests.ops.rows import addresses, random_logits
from tests.ops.triton.alike import SAMPLED, assert_equal, device_address, guarded

VOCAB_SIZE = 1_300
_LOWEST = torch.finfo(torch.float32).min


def normal(scale: float = 3.0, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(VOCAB_SIZE, generator=generator)


def only(*ids: int, fill: float = -torch.inf) -> Tensor:
    row = torch.full((VOCAB_SIZE,), fill)
    row[list(ids)] = torch.linspace(-1, 1, len(ids)) if len(ids) > 1 else -300.0
    return row


def with_one(value: float) -> Tensor:
    row = normal()
    row[VOCAB_SIZE - 1] = value
    return row


def signed_zeros() -> Tensor:
    """Zeros of both signs tie, above small logits."""
    row = -normal().abs() - 1
    row[::97] = -0.0
    row[5::97] = 0.0
    return row


def out_of_order() -> Tensor:
    """In the second tile 2^x, as it is rounded, is less for the larger logit than for the other."""
    row = only(5, fill=-torch.inf)
    row[5], row[600], row[700] = 0.0, *(float.fromhex(x) for x in _UNLIKE)
    return row


_UNLIKE = ("-0x1.62cd12p-2", "-0x1.62cd14p-2")
#: logits, temperature, top_k, top_p, min_p
ROWS: dict[str, tuple[Tensor, float, int, float, float]] = {
    "top-k and top-p": (normal(), 1.0, 5, 0.9, 0.0),
    "all three": (normal(seed=2), 2.0, 9, 0.95, 0.2),
    "ties at the k-th across tiles": (normal(seed=3).round(), 1.0, 4, 1.0, 0.0),
    "top-p ends within ties": (signed_zeros(), 1.0, 6, 0.4, 0.0),
    "one token": (only(700), 1.0, 3, 0.5, 0.1),
    "fewer tokens than top-k": (only(3, 600, 1_299), 1.0, 50, 0.99, 0.0),
    "tokens masked by a number": (only(3, 600, 700, 1_299, fill=_LOWEST), 1.0, 3, 0.9, 0.0),
    "top-k of 1": (normal(seed=4), 1.0, 1, 1.0, 0.0),
    "min-p of 1": (normal(seed=5).round(), 1.0, -1, 1.0, 1.0),
    "top-p alone, few tokens": (only(*range(0, 1_300, 13)), 0.3, 0, 0.9, 0.0),
    "coldest": (normal(seed=6), 1e-5, 8, 0.9, 0.0),
    "hottest": (normal(seed=7), 1e8, 4, 0.6, 0.5),
    # what follows is searched: candidates do not fit, or do not settle it
    "a tile's largest goes by min-p, another stays": (out_of_order(), 1.0, 9, 1.0, 0.70716917),
    "flat": (torch.full((VOCAB_SIZE,), 2.5), 1.0, 3, 0.7, 0.0),
    "a top-k with many tokens": (normal(seed=8), 1.0, 200, 0.9, 0.01),
    "top-p alone, many tokens": (normal(1.0, seed=9), 1.0, 5_000, 0.8, 0.0),
    "a tiny top-p alone": (normal(seed=10), 1.0, 0, 1e-9, 0.0),
    # and these have no filter, or no draw
    "unfiltered": (normal(seed=11), 1.0, 0, 1.0, 0.0),
    "greedy": (normal(seed=12), 0.0, 3, 0.9, 0.0),
    "NaN": (with_one(torch.nan), 1.0, 3, 0.9, 0.0),
    "+inf": (with_one(torch.inf), 1.0, 3, 0.9, 0.0),
    "all masked": (torch.full((VOCAB_SIZE,), -torch.inf), 1.0, 3, 0.9, 0.0),
}
SEARCHED = 5
ERRORS = {"NaN": RowError.NAN, "+inf": RowError.INFINITE, "all masked": RowError.EMPTY}


def call_of(*names: str) -> dict[str, Any]:
    """The named rows, guarded, with a parameter a row."""
    chosen = [ROWS[name] for name in names]
    values = {
        name: torch.tensor([row[i + 1] for row in chosen])
        for i, name in enumerate(("temperature", "top_k", "top_p", "min_p"))
    }
    values |= {name: values[name].double() for name in ("temperature", "top_p", "min_p")}
    return values | {"logits": guarded(torch.stack([row[0] for row in chosen]))}


def assert_filtered_alike(
    call: dict[str, Any], *, arithmetic: ops.Arithmetic = "portable", **own: Any
) -> Sampled:
    """Draws equal those of `filter_logits`, then `sample`, both of the reference."""
    call = dict(call)
    logits, temperature = call.pop("logits"), call.pop("temperature", 1.0)
    at, stats = addresses(len(logits)), {"return_stats": own.get("return_stats", True)}
    kept = ops.filter_logits(logits, temperature=temperature, impl="reference", **call)
    expected = ops.sample(kept, at, temperature=temperature, impl="reference", **stats)
    own |= {"impl": "triton", "arithmetic": arithmetic, "temperature": temperature} | stats
    got = ops.sample(logits, at, **call, **own)
    assert_equal(got, expected, SAMPLED)
    if got.stats is not None and expected.stats is not None:
        # greedy rows and rows in error hold no total
        assert_equal(got.stats, expected.stats, ("row_max", "row_sum"))
        drawn = expected.stats.row_sum > 0
        for name in ("tile_max", "tile_sum"):
            have, want = getattr(got.stats, name)[drawn], getattr(expected.stats, name)[drawn]
            assert torch.equal(have, want), name
    return got


def test_every_kind_of_row_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []

    def draw(*args: Any) -> Any:
        searched.append(args)
        return _draw_filtered(*args)

    monkeypatch.setattr(filtered, "draw_filtered", draw)
    got = assert_filtered_alike(call_of(*ROWS), workspace=Workspace("cpu"))
    assert len(searched) == SEARCHED
    assert got.error.tolist() == [ERRORS.get(name, RowError.NONE) for name in ROWS]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_filtered_rows_are_exact_in_fast_arithmetic_too(dtype: torch.dtype) -> None:
    """Narrow logits tie often; one number holds for both rows."""
    logits = random_logits((2, 601), seed=2, dtype=dtype)
    call = {"logits": guarded(logits), "top_k": 6, "top_p": 0.9, "min_p": 0.01}
    assert_filtered_alike(call, arithmetic="fast", return_stats=False)


@pytest.mark.parametrize("vocab_size", [1, 2, 128, 513])
def test_narrow_rows(vocab_size: int) -> None:
    logits = random_logits((1, vocab_size), seed=vocab_size).float()
    assert_filtered_alike({"logits": logits, "top_k": 3, "top_p": 0.6, "temperature": 0.7})


@triton.jit
def _bound_of_half(keys, k, COUNT: tl.constexpr):
    return candidates.coarse_bound(keys, k // 2, COUNT)


_rank, _draw_filtered = candidates.rank, filtered.draw_filtered


@triton.jit
def _rank_without_ids(places, count, order, row_max, c):
    return _rank(places, count, (order >> 32) << 32, row_max, c)


@pytest.mark.parametrize(
    ("room", "name", "fault", "row"),
    [
        (filtered, "coarse_bound", _bound_of_half, "top-k and top-p"),
        (candidates, "rank", _rank_without_ids, "top-p ends within ties"),
    ],
)
def test_a_planted_fault_is_seen(
    monkeypatch: pytest.MonkeyPatch, room: Any, name: str, fault: Any, row: str
) -> None:
    """A bound that loses tokens, and masses before a token that count all that tie."""
    monkeypatch.setattr(room, name, fault)
    with pytest.raises(AssertionError, match="is not|tile_max"):
        assert_filtered_alike(call_of(row))


def test_bad_values_on_the_device_are_their_rows_errors() -> None:
    logits = torch.zeros(6, 5)
    call: dict[str, Any] = {
        "top_k": torch.tensor([2, -2, 2, 2, 2, 0]),
        "top_p": torch.tensor([0.9, 0.9, 0.0, torch.nan, 0.9, 1.0]),
        "min_p": torch.tensor([0.0, 0.0, 0.0, 0.0, 1.5, 0.0]),
    }
    got = ops.sample(logits, addresses(6), impl="triton", **call)
    assert got.error.tolist() == [0, *[RowError.PARAMETER] * 4, 0]
    assert got.token_ids[1:5].tolist() == [-1] * 4


def test_a_trace_digests_what_was_raced() -> None:
    trace, at = Trace(), device_address(1)
    call: dict[str, Any] = {"top_k": torch.tensor([2]), "top_p": 0.9, "trace": trace}
    logits = random_logits((1, 40), seed=5).float()
    for impl in ("reference", "triton"):
        ops.sample(logits, at, impl=impl, **call)
    assert len(trace) == 1
    trace.check()
    ops.sample(logits, at, impl="reference", trace=trace)
    with pytest.raises(TraceError, match="raced twice with different weights"):
        trace.check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top_k": -2}, "top_k = -2 must be at least 1"),
        ({"top_p": 0.0}, r"top_p = 0.0 must be in \(0, 1\]"),
        ({"min_p": [0.1, 2.0]}, "min_p = 2.0"),
        ({"top_k": torch.ones(2)}, r"top_k is torch.float32 \(2,\) on cpu; give a number, or an"),
        ({"top_p": torch.ones(3)}, r"top_p is torch.float32 \(3,\)"),
        ({"min_p": torch.ones(2, device="meta")}, "min_p is .* on meta"),
        (
            {"top_k": 5, "method": "gumbel"},
            "takes no filters on a GPU; filter by ops.filter_logits",
        ),
    ],
)
def test_bad_filters_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.sample(torch.zeros(2, 5), addresses(2), impl="triton", **change)
