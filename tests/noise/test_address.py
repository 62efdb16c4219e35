"""Addresses are injective on their fields and refuse what does not fit."""

from __future__ import annotations

import importlib
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairdraft import noise
from fairdraft.noise import Stream, pack

# the package re-exports the function of the same name
layout = importlib.import_module("fairdraft.noise.address")

FIELD_BITS = {
    "position": 32,
    "anchor": 32,
    "stream": 8,
    "node": 16,
    "sample": 16,
    "level": 1,
    "block": 23,
}
FIELDS = st.fixed_dictionaries(
    {name: st.integers(0, (1 << bits) - 1) for name, bits in FIELD_BITS.items()}
)


def test_exhaustive_on_shrunken_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "POSITION_BITS": 3, "ANCHOR_BITS": 3, "STREAM_BITS": 3, "BLOCK_BITS": 2,
        "SAMPLE_BITS": 2, "NODE_BITS": 2, "LEVEL_SHIFT": 2, "STREAM_SHIFT": 3,
    }.items():  # fmt: skip
        monkeypatch.setattr(layout, name, value)
    widths = (3, 3, 3, 2, 2, 1, 2)
    grid = np.array(list(itertools.product(*(range(1 << bits) for bits in widths))))
    position, anchor, stream, node, sample, level, block = grid.T
    counters = pack(position, anchor, stream, node, sample, level=level, block=block)
    assert len(np.unique(counters, axis=0)) == len(grid) == 1 << 16


@given(FIELDS, FIELDS)
def test_distinct_fields_are_distinct_counters(first: dict, second: dict) -> None:
    is_same = (pack(**first) == pack(**second)).all()
    assert is_same == (first == second)


@given(FIELDS)
def test_every_field_can_be_read_back(fields: dict) -> None:
    c0, c1, c2, c3 = (int(word) for word in pack(**fields))
    assert c0 == fields["position"] and c1 == fields["anchor"]
    assert c2 >> 24 == fields["stream"] and c2 >> 23 & 1 == fields["level"]
    assert c2 & (1 << 23) - 1 == fields["block"]
    assert c3 >> 16 == fields["sample"] and c3 & 0xFFFF == fields["node"]


@pytest.mark.parametrize("name", list(FIELD_BITS))
@pytest.mark.parametrize("offset", [-1, 0])
def test_out_of_range_fields_are_refused(name: str, offset: int) -> None:
    bad = -1 if offset else 1 << FIELD_BITS[name]
    with pytest.raises(ValueError, match=rf"{name} = {bad} is outside 0\.\."):
        pack(**(dict.fromkeys(FIELD_BITS, 0) | {name: bad}))


def test_one_bad_row_of_many_is_named() -> None:
    with pytest.raises(ValueError, match="sample = 65536"):
        noise.address(Stream.DRAFT, key=1, position=0, sample=np.array([0, 65536, 3]))


def test_fields_must_be_integers() -> None:
    with pytest.raises(ValueError, match="position must be integers"):
        noise.address(Stream.DRAFT, key=1, position=1.5)


@pytest.mark.parametrize("key", [-1, 1 << 64, True, 1.0, "abc"])
def test_keys_that_do_not_fit_are_refused(key: object) -> None:
    with pytest.raises(ValueError, match="key"):
        noise.address(Stream.DRAFT, key=key, position=1)


def test_broadcasting_and_indexing() -> None:
    at = noise.address(
        Stream.ACCEPT,
        key=np.array([[7], [8]], np.uint64),
        position=np.arange(3),
        anchor=5,
        node=1,
    )
    assert len(at) == 6
    assert at.key.tolist() == [7, 7, 7, 8, 8, 8]
    assert at[4].counter.tolist() == [[1, 5, Stream.ACCEPT << 24, 1]]
