"""Noise inside Triton kernels, interpreted: the counters and bits of the NumPy form."""

# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportCallIssue=false

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from fairdraft import noise
from fairdraft.noise import Stream
from fairdraft.noise import device as kernels
from fairdraft.noise import exponential as reference
from fairdraft.ops import DeviceAddress
from tests.ops.triton.alike import device_address

NAMES = ("position", "anchor", "stream", "node", "sample")


@triton.jit
def load_counter(fields):
    return kernels.pack_counter(
        tl.load(fields + 1), tl.load(fields + 2), tl.load(fields + 3), tl.load(fields + 4),
        tl.load(fields + 5),
    )  # fmt: skip


@triton.jit
def counter_kernel(fields, out):
    counter = load_counter(fields)
    for i in tl.static_range(4):
        tl.store(out + i, counter[i].to(tl.int64))


@triton.jit
def times_kernel(fields, out, first, IS_TILE: tl.constexpr, COUNT: tl.constexpr):
    key, counter = tl.load(fields), load_counter(fields)
    if IS_TILE:
        times = kernels.exponentials(key, counter, first, kernels.TILE_LEVEL, COUNT)
    else:
        times = kernels.exponentials(key, counter, first, kernels.TOKEN_LEVEL, COUNT)
    tl.store(out + tl.arange(0, COUNT), times)


@triton.jit
def words_kernel(high, low, out, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    high_words, low_words = tl.load(high + at).to(tl.uint32), tl.load(low + at).to(tl.uint32)
    tl.store(out + at, kernels.exponential(high_words, low_words))


@triton.jit
def uniform_kernel(fields, out):
    tl.store(out, kernels.accept_uniform(tl.load(fields), load_counter(fields)))


@triton.jit
def range_kernel(fields, out):
    position, anchor, stream = tl.load(fields + 1), tl.load(fields + 2), tl.load(fields + 3)
    node, sample = tl.load(fields + 4), tl.load(fields + 5)
    is_good = kernels.is_in_range(position, anchor, stream, node, sample)
    tl.store(out, is_good.to(tl.int64))


def fields_of(at: DeviceAddress, row: int) -> torch.Tensor:
    """Key and fields of one address in the kernels' order."""
    columns: list[torch.Tensor] = [getattr(at, name) for name in ("key", *NAMES)]
    return torch.stack([column[row] for column in columns])


@pytest.mark.parametrize("stream", list(Stream))
def test_counters_are_those_of_the_host(stream: Stream) -> None:
    at = device_address(4, seed=int(stream), stream=stream)
    at.position[0], at.anchor[0], at.node[0], at.sample[0] = 0, 0, 0, 0
    at.position[1], at.anchor[1], at.node[1], at.sample[1] = (
        (1 << 32) - 1, (1 << 32) - 1, (1 << 16) - 1, (1 << 16) - 1,
    )  # fmt: skip
    expected = at.to_host(4).counter
    for row in range(4):
        counter = torch.empty(4, dtype=torch.int64)
        counter_kernel[(1,)](fields_of(at, row), counter)
        assert counter.tolist() == expected[row].tolist()


@pytest.mark.parametrize("stream", list(Stream))
@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("first", [0, 512, (1 << 24) - 512])
def test_exponentials_have_the_bits_of_the_host(first: int, level: int, stream: Stream) -> None:
    """Even and odd lanes alike, from the first block of a counter and up to its last."""
    at = device_address(2, seed=3, stream=stream)
    lanes = first + np.arange(512)
    for row in range(2):
        times = torch.empty(512)
        times_kernel[(1,)](fields_of(at, row), times, first, level, 512)
        expected = reference.exponentials(at.to_host(2), row, lanes, level)
        assert np.array_equal(times.numpy().view(np.int32), expected.view(np.int32))


def test_exponentials_at_the_ends_of_their_words() -> None:
    """Where u is smallest, saturates, and changes from the series to the logarithm."""
    middle = int(reference.SERIES_LIMIT * 2**32)
    edges = [0, 1, 255, 2**31, 2**32 - 129, 2**32 - 128, 2**32 - 1, *range(middle - 20, middle + 5)]
    words = np.resize(np.array(edges, np.uint32), 64)
    high, low = (w.ravel() for w in np.meshgrid(words, [0, 1, 2**24 + 1, 2**32 - 1]))
    low = low.astype(np.uint32)
    times = torch.empty(256)
    signed = (torch.from_numpy(w.view(np.int32)) for w in (high, low))
    words_kernel[(1,)](*signed, times, 256)
    expected = reference.exponential32(high, low)
    assert np.array_equal(times.numpy().view(np.int32), expected.view(np.int32))


def test_the_uniforms_of_tests_have_the_bits_of_the_host() -> None:
    at = device_address(8, seed=4, stream=Stream.ACCEPT)
    expected = reference.acceptance(at.to_host(8))
    for row in range(8):
        uniform = torch.empty(1, dtype=torch.float64)
        uniform_kernel[(1,)](fields_of(at, row), uniform)
        assert uniform.item() == expected[row]


@pytest.mark.parametrize("name", ["position", "anchor", "node", "sample"])
def test_a_field_is_in_range_where_the_host_packs_it(name: str) -> None:
    bits = 32 if name in ("position", "anchor") else 16
    for value in (0, (1 << bits) - 1, 1 << bits, -1, -(1 << 63), (1 << 63) - 1):
        fields = torch.zeros(6, dtype=torch.int64)
        fields[1 + NAMES.index(name)] = value
        is_good = torch.empty(1, dtype=torch.int64)
        range_kernel[(1,)](fields, is_good)
        try:
            noise.address(Stream.TARGET, **{"key": 1, "position": 0} | {name: value})
        except ValueError:
            assert not is_good.item()
        else:
            assert is_good.item()
