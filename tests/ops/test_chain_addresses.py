"""The kernel names the draws of a chain as `noise.address` does, and refuses with its words."""

from __future__ import annotations

import numpy as np
import pytest

from fairdraft.ops.chain_addresses import chain_addresses


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("depth", [1, 5])
def test_the_kernel_names_what_the_specification_names(count: int, depth: int) -> None:
    random = np.random.default_rng(depth)
    for _ in range(20):
        keys = random.integers(0, 1 << 63, count).astype(np.uint64) << np.uint64(1)
        anchors = random.choice([0, 1, 700, (1 << 32) - 1 - depth], count)
        samples = random.choice([0, 1, (1 << 16) - 1], count)
        num_drafts = random.integers(0, depth + 1, count)
        for key, sample in ((keys, samples), (keys[0], samples), (keys, 3), (keys, samples[0])):
            at = (key, anchors, sample)
            expected = chain_addresses(at, num_drafts, depth)
            found = chain_addresses(at, num_drafts, depth, is_cpu=True)
            for one, other in zip(found, expected, strict=True):
                assert one.key.dtype == other.key.dtype == np.uint64
                assert one.counter.dtype == other.counter.dtype == np.uint32
                assert one.key.tolist() == other.key.tolist()
                assert one.counter.tolist() == other.counter.tolist()


@pytest.mark.parametrize(
    ("anchor", "sample", "message"),
    [
        ((1 << 32) - 2, 0, "position = 4294967296 is outside"),
        (-1, 0, "position = -1 is outside"),
        (5, 1 << 16, "sample = 65536 is outside"),
        (5, -1, "sample = -1 is outside"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(anchor: int, sample: int, message: str) -> None:
    at = (np.array([1], np.uint64), np.array([anchor]), np.array([sample]))
    for is_cpu in (False, True):
        with pytest.raises(ValueError, match=message):
            chain_addresses(at, np.array([2]), 2, is_cpu=is_cpu)
