"""Rounds on the device, run where there is none: uncaptured, under a guard, without kernels.

Every round runs twice, as one does that is captured or redone, and whatever a capture would refuse
is refused: waiting for the device, copies from the host, shapes that depend on values. The ops are
those of the CPU; their kernels have tests of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fairdraft import ops
from fairdraft.engine import core
from fairdraft.engine.round_graph import RoundGraph

_WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique")
_INDEXING = ("index", "index_put", "index_put_")
_OF_TENSORS = ("numpy", "tolist", "item", "cpu", "__array__")
_FROM_HOST = ("from_numpy", "tensor", "as_tensor")


class WaitsForTheDevice(AssertionError):
    """A round did what no capture allows."""


class _Refusing(TorchDispatchMode):
    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self._guard = guard

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name in _INDEXING else ()
        has_mask = any(i is not None and i.dtype is torch.bool for i in indices)
        if self._guard.is_on and (name in _WAITING or has_mask):
            raise WaitsForTheDevice(name)
        return func(*args, **(kwargs or {}))


class Guard:
    """Refuses whatever a capture would, while it is on."""

    def __init__(self) -> None:
        self.is_on = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Refuses until the end."""
        # for as long as it is needed: libraries compare such functions with their own
        with pytest.MonkeyPatch.context() as patch, _Refusing(self):
            for holder, names in ((torch.Tensor, _OF_TENSORS), (torch, _FROM_HOST)):
                for name in names:
                    patch.setattr(holder, name, self._refused(name, getattr(holder, name)))
            self.is_on = True
            try:
                yield
            finally:
                self.is_on = False

    def _refused(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.is_on:
                raise WaitsForTheDevice(name)
            return function(*args, **kwargs)

        return call

    def free(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function inside which nothing is refused."""

        def call(*args: Any, **kwargs: Any) -> Any:
            was_on, self.is_on = self.is_on, False
            try:
                return function(*args, **kwargs)
            finally:
                self.is_on = was_on

        return call


def on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """An op whose calls for kernels go to the CPU's implementation."""

    def call(*args: Any, **options: Any) -> Any:
        if options.get("impl") == "triton":
            options |= {"impl": "cpu", "workspace": None}
            del options["validate"]
            if "key" in options:
                options["key"] = options["key"].numpy().view(np.uint64)
        return function(*args, **options)

    return call


def guard_rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lets engines run rounds on this machine as on a device; rows of each round that ran."""
    seen: list[int] = []
    guard = Guard()
    for name in ("sample", "verify_chain"):
        monkeypatch.setattr(ops, name, guard.free(on_host(getattr(ops, name))))
    run, body = RoundGraph.run, RoundGraph._run

    def counted(self: RoundGraph, fields: Any) -> Any:
        seen.append(fields.shape[1])
        return run(self, fields)

    def guarded(self: RoundGraph) -> None:
        # what is made on first use is made before the capture
        body(self)
        place = self._memory()
        with guard.held():
            body(self)
        assert self._memory() == place, "a captured round went to other memory"

    monkeypatch.setattr(RoundGraph, "run", counted)
    monkeypatch.setattr(RoundGraph, "_run", guarded)
    monkeypatch.setattr(core, "can_replay", lambda *_: True)
    return seen
