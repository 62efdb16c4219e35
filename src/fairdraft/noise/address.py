"""Addresses: every random number is named by fields that have bits of their own.

| word | bits |
| --- | --- |
| c0 | position (32): index of the token being decided |
| c1 | anchor (32): index of the first undecided token when the round began |
| c2 | stream (8), level (1), block (23) |
| c3 | sample (16), node (16) |

A block of Philox has four words and serves two lanes: lane = 2 * block + half. Fields are never
added, xored or hashed into each other, so distinct addresses are distinct counters.
Axes: N draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fairdraft.noise.streams import Stream

POSITION_BITS = ANCHOR_BITS = 32
STREAM_BITS, LEVEL_BITS, BLOCK_BITS = 8, 1, 23
SAMPLE_BITS = NODE_BITS = 16
MAX_LANES = 1 << (BLOCK_BITS + 1)

LEVEL_SHIFT = BLOCK_BITS
STREAM_SHIFT = BLOCK_BITS + LEVEL_BITS


@dataclass(frozen=True)
class Address:
    """Packed addresses of N draws, at level 0 and block 0.

    Attributes:
        key: uint64 [N], the key of each draw's request.
        counter: uint32 [N, 4], the Philox counter; a sampler adds level and block in c2.
    """

    key: np.ndarray
    counter: np.ndarray

    def __len__(self) -> int:
        return len(self.key)

    def __getitem__(self, rows: Any) -> Address:
        key, counter = self.key[rows], self.counter[rows]
        return Address(key, counter) if key.ndim else Address(key[None], counter[None])


def _field(name: str, values: Any, bits: int) -> Any:
    """Returns a Python int that fits its bits, or an int64 array that is still to be checked."""
    if isinstance(values, int) and not isinstance(values, bool):
        if values >> bits:
            raise _out_of_range(name, values, bits)
        return int(values)
    array = np.asarray(values)
    if array.dtype == np.int64:
        return array
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, not {array.dtype}; cast it before the call")
    return array.astype(np.int64, copy=False)


def _check_arrays(fields: dict[str, tuple[Any, int]]) -> None:
    """Names the first entry of an array that does not fit its field."""
    for name, (values, bits) in fields.items():
        # a negative number shifts to -1
        is_bad = np.asarray(values) >> bits != 0
        if is_bad.any():
            raise _out_of_range(name, int(np.asarray(values)[is_bad].flat[0]), bits)


def _out_of_range(name: str, value: int, bits: int) -> ValueError:
    return ValueError(
        f"{name} = {value} is outside 0..{(1 << bits) - 1}; an address field has {bits} bits and "
        "is never wrapped, so use an index in range (or a new request key)"
    )


def pack(
    position: Any,
    anchor: Any,
    stream: Any,
    node: Any,
    sample: Any,
    *,
    level: Any = 0,
    block: Any = 0,
) -> np.ndarray:
    """Packs address fields into Philox counters; injective on its declared ranges.

    Args:
        position: Index of the token being decided, 32 bits.
        anchor: Index of the first undecided token when the round began, 32 bits.
        stream: Purpose of the draw, 8 bits (see `Stream`).
        node: 0 for the root, i for a chain's i-th draft, 16 bits.
        sample: Which of a request's n samples, 16 bits.
        level: 0 for tokens, 1 for tiles.
        block: lane >> 1, 23 bits.

    Returns:
        uint32 [..., 4] counters, fields broadcast against each other.

    Raises:
        ValueError: If a field is not an integer or does not fit its bits.
    """
    position = _field("position", position, POSITION_BITS)
    anchor = _field("anchor", anchor, ANCHOR_BITS)
    stream = _field("stream", stream, STREAM_BITS)
    level = _field("level", level, LEVEL_BITS)
    block = _field("block", block, BLOCK_BITS)
    sample = _field("sample", sample, SAMPLE_BITS)
    node = _field("node", node, NODE_BITS)
    # what sticks out of any field, in few calls: one costs more than its work on a few rows
    # a sign bit survives an or
    excess: Any = (position | anchor) >> POSITION_BITS | (sample | node) >> NODE_BITS
    excess = excess | stream >> STREAM_BITS | (level >> LEVEL_BITS | block >> BLOCK_BITS)
    if excess if isinstance(excess, int) else np.count_nonzero(excess):
        _check_arrays(
            {
                "position": (position, POSITION_BITS),
                "anchor": (anchor, ANCHOR_BITS),
                "stream": (stream, STREAM_BITS),
                "level": (level, LEVEL_BITS),
                "block": (block, BLOCK_BITS),
                "sample": (sample, SAMPLE_BITS),
                "node": (node, NODE_BITS),
            }
        )
    shape = np.shape(excess)
    counter = np.empty((*shape, 4), np.uint32)
    counter[..., 0] = position
    counter[..., 1] = anchor
    counter[..., 2] = stream << STREAM_SHIFT | (level << LEVEL_SHIFT | block)
    counter[..., 3] = sample << NODE_BITS | node
    return counter


def address(
    stream: Stream | np.ndarray,
    *,
    key: Any,
    position: Any,
    anchor: Any = 0,
    node: Any = 0,
    sample: Any = 0,
) -> Address:
    """Names the draws of one purpose; every draw of the product gets its address here.

    Args:
        stream: Purpose, one for all draws or one per draw.
        key: 64-bit request keys, uint64 (a Python int for one).
        position, anchor, node, sample: As in `pack`; arrays broadcast against each other.

    Returns:
        Address of the broadcast shape, flattened to [N].

    Raises:
        ValueError: If a field is out of range or a key does not fit 64 bits.
    """
    counter = pack(position, anchor, stream, node, sample)
    keys = as_keys(key)
    if keys.shape != counter.shape[:-1]:
        shape = np.broadcast(keys, counter[..., 0]).shape
        keys, counter = _spread(keys, shape), _spread(counter, (*shape, 4))
    return Address(np.ascontiguousarray(keys.reshape(-1)), counter.reshape(-1, 4))


def _spread(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A copy of the given shape; several times cheaper than a broadcast view of a few numbers."""
    if array.shape == shape:
        return array
    spread = np.empty(shape, array.dtype)
    spread[...] = array
    return spread


def as_keys(key: Any) -> np.ndarray:
    """Returns request keys as a uint64 array; refuses what does not fit 64 bits."""
    if isinstance(key, np.ndarray) and key.dtype == np.uint64:
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        if not 0 <= key < 1 << 64:
            raise ValueError(f"key = {key} does not fit 64 bits; make one with request_key(seed)")
        return np.asarray(key, np.uint64)
    array = np.asarray(key)
    if array.dtype.kind == "i" and array.dtype.itemsize == 8:
        return array.view(np.uint64)
    if array.dtype.kind in "ui":
        return array.astype(np.uint64)
    raise ValueError(f"key must be 64-bit integers, not {array.dtype}; see request_key(seed)")
