"""Scratch memory of the kernels, kept between calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from fairdraft.ops.sample import stats_shapes

_Kept = TypeVar("_Kept")

#: views of buffers that are kept, about thirty for every shape of a call
_MOST_VIEWS = 4096


class Workspace:
    """Buffers of one device that grow and are used again, so that later calls allocate nothing.

    Counters in it are zero between calls: kernels reset what they used. One workspace serves one
    stream at a time, and a CUDA graph keeps using the one that it was captured with.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._buffers: dict[str, Tensor] = {}
        self._counters: set[str] = set()
        self._is_in_use = False
        # making a view costs the host more than looking one up
        self._views: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        self._kept: dict[tuple[Any, ...], Any] = {}

    def begin(self) -> None:
        """Before the first kernel of a call; counters of one that was broken off become zeros."""
        if self._is_in_use:
            for name in self._counters:
                self._buffers[name].zero_()
        self._is_in_use = True

    def end(self) -> None:
        """After the last kernel of a call, which leaves zeros."""
        self._is_in_use = False

    def empty(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A buffer with anything in it."""
        return self._take(name, shape, dtype, torch.empty)

    def zeros(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A buffer of zeros that its users leave as zeros."""
        view = self._take(name, shape, dtype, torch.zeros)
        # only now: there may have been no memory for it
        self._counters.add(name)
        return view

    def kept(self, key: tuple[Any, ...], make: Callable[[], _Kept]) -> _Kept:
        """What `make` took of the buffers under `key`, until one of them grows."""
        found = self._kept.get(key)
        if found is None:
            found = make()
            self._kept[key] = found
        return found

    def poison(self) -> None:
        """Overwrites everything that a call must not read before it wrote it; for tests."""
        for name, buffer in self._buffers.items():
            if name not in self._counters:
                buffer.fill_(torch.nan if buffer.is_floating_point() else -4096)

    def _take(self, name, shape, dtype, make) -> Tensor:
        view = self._views.get((name, shape))
        if view is not None:
            assert view.dtype is dtype, name
            return view
        if len(self._views) >= _MOST_VIEWS:
            self._views.clear()
            self._kept.clear()
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            buffer = make(max(size, 1), dtype=dtype, device=self.device)
            self._buffers[name] = buffer
            self._views = {key: kept for key, kept in self._views.items() if key[0] != name}
            self._kept.clear()
        view = self._views[name, shape] = buffer[:size].view(shape)
        return view


def stats_buffers(
    workspace: Workspace, name: str, rows: int, num_tiles: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scratch for statistics of rows of T tiles, in the order of `TileStats`."""

    def made() -> Any:
        return tuple(
            workspace.empty(f"{name}_{field}", shape, dtype)
            for field, (shape, dtype) in stats_shapes(rows, num_tiles).items()
        )

    return workspace.kept((name, rows, num_tiles), made)
