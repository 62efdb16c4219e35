"""Addresses whose fields stay on the device, so that a kernel forms them without the host.

Axes: B draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraft import noise
from fairdraft.noise import Address, Stream
from fairdraft.noise.address import NODE_BITS, STREAM_SHIFT

FIELDS = ("key", "position", "anchor", "stream", "node", "sample")
#: most that a field holds; `key` has all 64 bits of an int64
_LIMITS = {"position": 32, "anchor": 32, "stream": 8, "node": 16, "sample": 16}


@dataclass(frozen=True)
class DeviceAddress:
    """The fields of B addresses; see `noise.address` for their meaning.

    Tensors are int64 [B] on the device of the logits and may change between replays of a graph; a
    value that does not fit its field becomes that row's error, never another address. Plain
    integers and 0-dimensional tensors hold for all rows.

    Attributes:
        stream: Purpose of the draws.
        key: Request keys, the 64 bits of `request_key` as int64.
        position: Index of the token being decided.
        anchor: Index of the first undecided token when the round began.
        node, sample: As in `noise.address`.
    """

    stream: Stream | int | Tensor
    key: Tensor | int
    position: Tensor | int
    anchor: Tensor | int = 0
    node: Tensor | int = 0
    sample: Tensor | int = 0

    def to_host(self, count: int, kept: np.ndarray | slice = slice(None)) -> Address:
        """The addresses of `count` rows, or of the kept ones, packed; waits for the device."""
        fields = {name: _host(getattr(self, name), count)[kept] for name in FIELDS}
        key = np.ascontiguousarray(fields.pop("key")).view(np.uint64)
        return noise.address(fields.pop("stream"), key=key, **fields)


def _host(value: Tensor | int, count: int) -> np.ndarray:
    if isinstance(value, Tensor):
        return np.broadcast_to(value.cpu().numpy(), count)
    return np.full(count, signed_key(value), np.int64)


def signed_key(value: int) -> int:
    """The bits of a key as a number that an int64 holds."""
    return int(value) - (1 << 64) if value >= 1 << 63 else int(value)


def check_count(at: Address, count: int) -> None:
    """Refuses addresses that are not one a row."""
    if len(at) != count:
        raise ValueError(f"address names {len(at)} draws for {count} rows; give one a row")


def device_fields(
    at: Address | DeviceAddress, count: int, device: torch.device, *, validate: bool = True
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """The six fields as int64 tensors on the device, and the stride of each, 0 or 1.

    Raises:
        ValueError: If a field has a wrong shape, dtype, device or value.
    """
    if isinstance(at, Address):
        return _uploaded(at, count, device)
    fields = [device_field(name, getattr(at, name), count, device, validate) for name in FIELDS]
    return tuple(tensor for tensor, _ in fields), tuple(stride for _, stride in fields)


def device_field(
    name: str, value: Any, count: int, device: torch.device, validate: bool = True
) -> tuple[Tensor, int]:
    """One field as an int64 tensor on the device, and its stride; see `device_fields`."""
    if not isinstance(value, Tensor):
        return _scalar(name, _integer(name, value), device), 0
    if validate and value.device != device:
        raise ValueError(_wrong_kind(name, value, device))
    return field_here(name, value, count, validate)


def field_here(name: str, value: Tensor, count: int, validate: bool) -> tuple[Tensor, int]:
    """The same of a tensor that is known to be on the device."""
    shape = value.shape
    if validate:
        if value.dtype is not torch.int64:
            raise ValueError(_wrong_kind(name, value, value.device))
        if not ((shape == (count,) or not shape) and value.is_contiguous()):
            raise ValueError(
                f"address field {name} has shape {tuple(shape)} and stride {value.stride()}; "
                f"give a contiguous vector of one value a row ({count})"
            )
    return value, 1 if shape else 0


def _wrong_kind(name: str, value: Tensor, device: torch.device) -> str:
    return (
        f"address field {name} is {value.dtype} on {value.device}; "
        f"give int64 on {device}, where the logits are"
    )


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(
            f"address field {name} = {value!r} is no integer; give one, or int64 tensors"
        )
    return index(value)


@lru_cache(maxsize=4096)
def _scalar(name: str, value: int, device: torch.device) -> Tensor:
    if name == "key":
        if not -(1 << 63) <= value < 1 << 64:
            raise ValueError(f"key = {value} does not fit 64 bits; make one with request_key(seed)")
    elif value >> _LIMITS[name]:
        raise ValueError(f"{name} = {value} is outside 0..{(1 << _LIMITS[name]) - 1}")
    return torch.full((), signed_key(value), dtype=torch.int64, device=device)


def _uploaded(
    at: Address, count: int, device: torch.device
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    check_count(at, count)
    c0, c1, c2, c3 = (at.counter[:, i].astype(np.int64) for i in range(4))
    node = c3 & ((1 << NODE_BITS) - 1)
    fields = np.stack([at.key.view(np.int64), c0, c1, c2 >> STREAM_SHIFT, node, c3 >> NODE_BITS])
    return tuple(torch.from_numpy(fields).to(device).unbind()), (1,) * len(FIELDS)
