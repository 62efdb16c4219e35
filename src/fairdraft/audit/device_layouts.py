"""The layouts of `layouts.py` inside Triton kernels: one device function in place of another.

A planted function takes the place of `noise.device.pack_counter`, the one function that forms a
counter in a kernel, for the length of a `with` block. Kernels get it as a constant and are compiled
anew for it, so a cache never mixes two layouts and nothing has to be cleared. Keys are the
requests' own: `layouts.py` gives the same addresses with `derives_keys=False`. Axes: N draws.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from fairdraft.audit import layouts
from fairdraft.audit.layouts import Layout
from fairdraft.noise import Stream
from fairdraft.noise import device as noise_device
from fairdraft.noise.device import pack_counter
from fairdraft.ops import DeviceAddress
from fairdraft.ops.device_address import device_fields
from fairdraft.ops.triton.reading import row_address

__all__ = ["DEVICE_LAYOUTS", "device_counters", "host_twin", "planted"]

_DRAFT, _RESIDUAL, _BONUS = (
    tl.constexpr(int(s)) for s in (Stream.DRAFT, Stream.RESIDUAL, Stream.BONUS)
)
_IN_PLACE = threading.Lock()


@triton.jit
def by_position(position, anchor, stream, node, sample):
    """Layout `salted`: anchor and node are dropped."""
    return pack_counter(position, anchor * 0, stream, node * 0, sample)


@triton.jit
def by_shared_position(position, anchor, stream, node, sample):
    """Layout `coupled`: and draft, residual and bonus are one stream."""
    is_shared = (stream == _DRAFT) | (stream == _RESIDUAL) | (stream == _BONUS)
    stream = tl.where(is_shared, _DRAFT, stream)
    return pack_counter(position, anchor * 0, stream, node * 0, sample)


#: what forms counters under each layout; a kernel cannot count, so whoever calls the ops under
#: `independent` gives positions that never come twice
DEVICE_LAYOUTS: dict[str, Any] = {
    "coupled": by_shared_position,
    "salted": by_position,
    "independent": pack_counter,
    "ours": pack_counter,
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Puts a layout in place of the device's addresses while the block runs.

    Only one can be in place at a time, in the whole process, and it goes however the block ends.

    Raises:
        ValueError: If the layout is unknown, or something else is in place already.
    """
    if name not in DEVICE_LAYOUTS:
        known = ", ".join(DEVICE_LAYOUTS)
        raise ValueError(f"layout = {name!r} is unknown; choose one of {known}")
    if not _IN_PLACE.acquire(blocking=False):
        raise ValueError(
            f"a layout is in place on the device already, so {name!r} cannot be; leave it first"
        )
    try:
        if noise_device.pack_counter is not pack_counter:
            raise ValueError(
                f"noise.device.pack_counter is replaced already, so layout {name!r} cannot be put "
                "in its place; undo the other replacement first"
            )
        noise_device.pack_counter = DEVICE_LAYOUTS[name]
        try:
            yield
        finally:
            noise_device.pack_counter = pack_counter
    finally:
        _IN_PLACE.release()


def host_twin(name: str) -> Layout:
    """The layout that gives the host's ops the addresses that `planted` gives the kernels."""
    make: Callable[..., Layout] = {
        "coupled": partial(layouts.coupled, derives_keys=False),
        "salted": partial(layouts.salted, derives_keys=False),
    }.get(name, layouts.ours)
    return make()


@triton.jit
def _counter_kernel(at, out_ptr, STRIDES: tl.constexpr, ADDRESS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    _, counter, _ = row_address(at, row, STRIDES, ADDRESS)
    for i in tl.static_range(4):
        tl.store(out_ptr + row * 4 + i, counter[i].to(tl.int64))


def device_counters(at: DeviceAddress, count: int, device: torch.device) -> np.ndarray:
    """The counters that kernels form now, uint32 [N, 4]."""
    fields, strides = device_fields(at, count, device)
    out = torch.zeros((count, 4), dtype=torch.int64, device=device)
    _counter_kernel[(count,)](fields, out, STRIDES=strides, ADDRESS=noise_device.pack_counter)
    return out.cpu().numpy().astype(np.uint32)
