"""Growth and refusals of the cache; what it stores is tested through the models."""

from __future__ import annotations

import pytest
import torch

from fairdraft.models import RaggedCache


def write(
    cache: RaggedCache, slots: list[list[int]], value: float, read_length: int
) -> torch.Tensor:
    cache.begin(torch.tensor(slots), 0, read_length)
    states = torch.full((len(slots), 2, len(slots[0]), 3), value)
    return cache.update(states, states, 0)[0]


def test_growth_keeps_what_was_written() -> None:
    cache = RaggedCache(max_length=100)
    write(cache, [[0, 1], [5, 6]], 1.0, 7)
    assert cache.num_rows == 2
    assert cache.length == 64
    seen = write(cache, [[80], [7], [0]], 2.0, 81)
    assert cache.num_rows == 4
    assert cache.length == 101
    assert seen.shape == (3, 2, 96, 3)
    rows = seen[:, 0, :, 0]
    assert rows[0, :2].tolist() == [1, 1] and rows[0, 80] == 2
    assert rows[1, 5:8].tolist() == [1, 1, 2]
    assert rows.sum() == 2 + 2 + 2 + 2 + 2


def test_the_scratch_slot_is_never_read() -> None:
    cache = RaggedCache(max_length=100)
    seen = write(cache, [[99, 100]], 7.0, 100)
    assert seen.shape[2] == 100
    assert seen[0, 0, :, 0].nonzero().flatten().tolist() == [99]


def test_moving_leaves_the_source_empty() -> None:
    cache = RaggedCache(max_length=20)
    write(cache, [[0], [1]], 3.0, 2)
    cache.move_row(1, 0)
    seen = write(cache, [[5], [5]], 1.0, 6)[:, 0, :6, 0]
    assert seen.tolist() == [[0, 3, 0, 0, 0, 1], [0, 0, 0, 0, 0, 1]]


@pytest.mark.parametrize("sizes", [(0, 1, 1), (4, 0, 1), (4, 1, 0)])
def test_empty_sizes_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="= 0: a cache needs at least 1"):
        RaggedCache(*sizes)


def test_crop_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="smaller start"):
        RaggedCache(8).crop(-1)


@pytest.mark.parametrize("first_row", [0, 1])
def test_rows_from_one_slot_are_written_as_by_index(first_row: int) -> None:
    stored = []
    for first_slot in (None, 5):
        cache = RaggedCache(max_length=40)
        slots = torch.arange(5, 8).expand(2, -1)
        cache.begin(slots, first_row, 8, first_slot)
        states = torch.arange(2 * 2 * 3 * 4.0).view(2, 3, 2, 4).transpose(1, 2)
        cache.update(states, -states, 0)
        stored.append(cache.read(0, 2 + first_row, 8))
    for by_index, by_slot in zip(*stored, strict=True):
        assert torch.equal(by_index, by_slot) and by_slot.any()
