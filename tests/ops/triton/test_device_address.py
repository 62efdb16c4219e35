"""`ops.DeviceAddress`: fields on the device name the same noise, and never another one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from fairdraft import ops
from fairdraft.noise import Stream
from fairdraft.ops import DeviceAddress, RowError
from fairdraft.ops.device_address import device_fields
from fairdraft.ops.triton.launch import launch_sample, temperature_tensor
from fairdraft.ops.triton.workspace import Workspace
from tests.ops.rows import addresses, random_logits
from tests.ops.triton.alike import assert_sampled_alike, device_address

CPU = torch.device("cpu")
LIMITS = {"position": 32, "anchor": 32, "node": 16, "sample": 16}


@triton.jit
def without_anchor(position, anchor, stream, node, sample):
    """A planted layout: the anchor never reaches the counter."""
    return (
        position.to(tl.uint32),
        (anchor * 0).to(tl.uint32),
        (stream << 24).to(tl.uint32),
        ((sample << 16) | node).to(tl.uint32),
    )


def launched(logits: torch.Tensor, at: DeviceAddress, **options: Any) -> torch.Tensor:
    count = len(logits)
    token_ids, error = torch.empty(2, count, dtype=torch.int64)
    margin = torch.empty(count, dtype=torch.float64)
    launch_sample(
        logits,
        temperature_tensor("temperature", 1.0, count, CPU),
        device_fields(at, count, CPU),
        (token_ids, margin, error),
        None,
        is_flat=False,
        arithmetic="portable",
        workspace=Workspace(CPU),
        **options,
    )
    assert not error.any()
    return token_ids


@pytest.mark.parametrize("stream", list(Stream))
def test_fields_as_tensors_and_as_numbers(stream: Stream) -> None:
    logits = random_logits((2, 40), seed=1).float()
    assert_sampled_alike(logits, device_address(2, stream=stream))
    largest = DeviceAddress(stream, 2**64 - 1, 2**32 - 1, 2**32 - 1, 2**16 - 1, 2**16 - 1)
    assert_sampled_alike(logits[:1], largest)
    mixed = replace(device_address(1), stream=stream, key=-1, anchor=0)
    assert_sampled_alike(logits[:1], mixed)


@pytest.mark.parametrize("impl", ["reference", "triton"])
def test_packed_addresses_and_their_fields_are_one(impl: Any) -> None:
    at = device_address(3, seed=5)
    logits = random_logits((3, 600), seed=2).float()
    options: dict[str, Any] = {"impl": impl, "arithmetic": "portable"}
    packed = ops.sample(logits, at.to_host(3), **options)
    assert torch.equal(ops.sample(logits, at, **options).token_ids, packed.token_ids)


@pytest.mark.parametrize("method", ["race", "gumbel"])
def test_fields_out_of_range_are_errors_of_their_rows(method: Any) -> None:
    count = 2 * len(LIMITS) + 2
    logits = random_logits((count, 80), seed=3).float()
    at = device_address(count, seed=6)
    good = ops.sample(logits, at, method=method, impl="reference").token_ids
    for i, (name, bits) in enumerate(LIMITS.items()):
        getattr(at, name)[2 * i + 1] = 1 << bits
        getattr(at, name)[2 * i + 2] = -1
    got = ops.sample(logits, at, method=method, impl="triton")
    assert got.error.tolist() == [0, *[RowError.ADDRESS] * (count - 2), 0]
    assert got.token_ids.tolist() == [good[0], *[-1] * (count - 2), good[-1]]


def test_a_stream_out_of_range_is_an_error_and_no_other_stream() -> None:
    streams = torch.tensor([int(Stream.TARGET), 256 + int(Stream.TARGET), -1])
    logits = random_logits((3, 80), seed=4).float()
    got = ops.sample(logits, replace(device_address(3), stream=streams), impl="triton")
    assert got.error.tolist() == [0, RowError.ADDRESS, RowError.ADDRESS]


def test_a_planted_layout_changes_tokens_where_it_differs() -> None:
    logits = torch.zeros(4, 900)
    at = device_address(4, seed=7)
    assert isinstance(at.anchor, torch.Tensor)
    at.anchor[0] = 0
    own = launched(logits, at)
    planted = launched(logits, at, address=without_anchor)
    assert torch.equal(own, ops.sample(logits, at, impl="reference").token_ids)
    assert planted[0] == own[0]
    assert (planted[1:] != own[1:]).all()
    expected = ops.sample(logits, replace(at, anchor=0), impl="reference").token_ids
    assert torch.equal(planted, expected)


FIELD = torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": FIELD.int()}, "address field key is torch.int32 on cpu"),
        ({"position": FIELD.double()}, "address field position is torch.float64"),
        ({"anchor": FIELD.to("meta")}, "address field anchor is torch.int64 on meta"),
        ({"node": torch.zeros(3, dtype=torch.int64)}, r"node has shape \(3,\)"),
        ({"sample": torch.zeros(2, 1, dtype=torch.int64)}, r"sample has shape \(2, 1\)"),
        ({"stream": torch.zeros(4, dtype=torch.int64)[::2]}, r"stream has .* stride \(2,\)"),
        ({"key": True}, "address field key = True is no integer"),
        ({"position": 2.7}, r"address field position = 2\.7 is no integer"),
        ({"key": 1 << 64}, "key = 18446744073709551616 does not fit 64 bits"),
        ({"key": -(1 << 63) - 1}, "does not fit 64 bits"),
        ({"position": 1 << 32}, r"position = 4294967296 is outside 0..4294967295"),
        ({"anchor": -1}, "anchor = -1 is outside"),
        ({"stream": 256}, "stream = 256 is outside 0..255"),
        ({"node": 1 << 16}, "node = 65536 is outside 0..65535"),
        ({"sample": -5}, "sample = -5 is outside"),
    ],
)
def test_fields_that_cannot_be_addresses_are_refused(change: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {"stream": FIELD + 1, "key": FIELD, "position": FIELD} | change
    with pytest.raises(ValueError, match=message):
        ops.sample(torch.zeros(2, 5), DeviceAddress(**fields), impl="triton")


def test_a_packed_address_of_other_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="address names 3 draws for 2 rows"):
        device_fields(addresses(3), 2, CPU)
