"""Ways to name draws: the three layouts of public engines, and ours, as subjects of the audit.

A layout takes the place of `fairdraft.noise.address`, the one function that names draws, for the
length of a `with` block; everything else stays the product's. The layouts by position derive a key
of their own for each race from one block of the generator, as the engines do.

| layout | what names a draw |
| --- | --- |
| coupled | position; DRAFT, RESIDUAL and BONUS share it: the bug |
| salted | stream and position: the public fix |
| independent | a running counter: a generator that never repeats |
| ours | every field |

Axes: N draws.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fairdraft import noise
from fairdraft.noise import Address, Stream, Trace, philox4x32
from fairdraft.noise.address import POSITION_BITS, as_keys, pack
from fairdraft.noise.address import address as named_by_every_field
from fairdraft.noise.trace import Use, digest

__all__ = ["LAYOUTS", "SHARED", "Layout", "Role", "coupled", "independent", "ours", "salted"]

#: streams that `coupled` makes one
SHARED = (int(Stream.DRAFT), int(Stream.RESIDUAL), int(Stream.BONUS))
_RACES = (*SHARED, int(Stream.TARGET))
_IN_PLACE = threading.Lock()
_DERIVATION = digest(np.frombuffer(b"derivation of a key", np.uint8))


class Role(NamedTuple):
    """What a draw was for, before a layout named it."""

    stream: Stream
    position: int
    anchor: int
    node: int


@dataclass(frozen=True)
class _Fields:
    """The fields of N addresses, int64 (key: uint64), all of one shape [N]."""

    stream: np.ndarray
    key: np.ndarray
    position: np.ndarray
    anchor: np.ndarray
    node: np.ndarray
    sample: np.ndarray

    def named(self) -> Address:
        """The address that has every one of these fields."""
        return named_by_every_field(
            self.stream,  # type: ignore[arg-type]
            key=self.key,
            position=self.position,
            anchor=self.anchor,
            node=self.node,
            sample=self.sample,
        )


class Layout:
    """One way to name draws; in place of ours within a `with` block.

    Only one can be in place at a time, in the whole process, and it goes when the block ends,
    however it ends.

    Args:
        name: "coupled", "salted", "independent" or "ours".
        rename: Gives the addresses of fields.
        constant_position: The drafter draws every token of a proposal at the anchor's position.
        trace: Records the derivations of keys; `roles` then tells what an address was for.
    """

    def __init__(
        self,
        name: str,
        rename: Callable[[_Fields, Trace | None], Address],
        *,
        constant_position: bool = False,
        trace: Trace | None = None,
    ) -> None:
        self.name = name
        self.constant_position = constant_position
        self.trace = trace
        self._roles: dict[tuple[int, bytes], set[Role]] = {}
        self._rename = rename

    def address(
        self,
        stream: Any,
        *,
        key: Any,
        position: Any,
        anchor: Any = 0,
        node: Any = 0,
        sample: Any = 0,
    ) -> Address:
        """Stands in for `noise.address`: same arguments, same checks, other names."""
        # in full first: what ours refuses, every layout refuses
        named_by_every_field(
            stream, key=key, position=position, anchor=anchor, node=node, sample=sample
        )
        numbers = [np.asarray(field) for field in (position, anchor, node, sample)]
        parts = np.broadcast_arrays(np.asarray(stream), as_keys(key), *numbers)
        # plain integers, so that codes compare with the streams' numbers
        stream, key, *rest = (part.reshape(-1) for part in parts)
        # copies, since a broadcast view must not reach the kernels
        fields = _Fields(
            stream.astype(np.int64), key.copy(), *(part.astype(np.int64) for part in rest)
        )
        moved = fields
        if self.constant_position:
            is_draft = fields.stream == Stream.DRAFT
            moved = replace(fields, position=np.where(is_draft, fields.anchor, fields.position))
        at = self._rename(moved, self.trace)
        if self.trace is not None:
            self._note(fields, at)
        return at

    def _note(self, fields: _Fields, at: Address) -> None:
        for i, (key, counter) in enumerate(zip(at.key.tolist(), at.counter, strict=True)):
            role = Role(
                Stream(int(fields.stream[i])),
                int(fields.position[i]),
                int(fields.anchor[i]),
                int(fields.node[i]),
            )
            self._roles.setdefault((key, counter.tobytes()), set()).add(role)

    def roles(self, use: Use) -> frozenset[Role]:
        """Every purpose that asked for the address of a traced draw."""
        counter = pack(use.position, use.anchor, int(use.stream), use.node, use.sample)
        return frozenset(self._roles.get((use.key, counter.tobytes()), ()))

    def __enter__(self) -> Layout:
        if not _IN_PLACE.acquire(blocking=False):
            raise ValueError(
                f"a layout is in place already, so {self.name!r} cannot be; leave the other first"
            )
        if noise.address is not named_by_every_field:
            _IN_PLACE.release()
            raise ValueError(
                f"noise.address is replaced already, so layout {self.name!r} cannot be put in its "
                "place; undo the other replacement first"
            )
        noise.address = self.address  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        noise.address = named_by_every_field
        _IN_PLACE.release()


def coupled(
    *,
    constant_position: bool = False,
    derives_keys: bool = True,
    trace: Trace | None = None,
) -> Layout:
    """Draft, residual and bonus share the address (position); anchor and node are dropped.

    Args:
        constant_position, trace: See `Layout`.
        derives_keys: Each race has a key of its own, as in the engines; else the request's, as the
            layouts of kernels do.
    """

    def rename(fields: _Fields, trace: Trace | None) -> Address:
        is_shared = np.isin(fields.stream, SHARED)
        stream = np.where(is_shared, int(Stream.DRAFT), fields.stream)
        moved = replace(fields, stream=stream)
        return _keyed(moved, trace) if derives_keys else _by_position(moved).named()

    return Layout("coupled", rename, constant_position=constant_position, trace=trace)


def salted(
    *,
    constant_position: bool = False,
    derives_keys: bool = True,
    accept_from_key: bool = False,
    trace: Trace | None = None,
) -> Layout:
    """A draw is named by (stream, position); anchor and node are dropped.

    Args:
        constant_position: See `Layout`.
        derives_keys: See `coupled`.
        accept_from_key: The test of a draft reads the very block that the key of its replacement
            is made of, as in the engines. Nothing to measure: the trace names it.
        trace: See `Layout`.
    """

    if accept_from_key and not derives_keys:
        raise ValueError("accept_from_key reads the block of a derived key; leave derives_keys on")

    def rename(fields: _Fields, trace: Trace | None) -> Address:
        if not derives_keys:
            return _by_position(fields).named()
        if not accept_from_key:
            return _keyed(fields, trace)
        is_test = fields.stream == Stream.ACCEPT
        read = _keyed(fields, trace)
        blocks = replace(fields, stream=np.where(is_test, int(Stream.RESIDUAL), fields.stream))
        block = _by_position(blocks).named()
        return Address(
            np.where(is_test, block.key, read.key),
            np.where(is_test[:, None], block.counter, read.counter),
        )

    return Layout("salted", rename, constant_position=constant_position, trace=trace)


class _Independent(Layout):
    """See `independent`."""

    def __init__(self, key: int, first: int, trace: Trace | None) -> None:
        super().__init__("independent", self._count, trace=trace)
        self.key = key
        self.num_draws = first

    def state(self) -> int:
        """Draws named so far; `independent(first=...)` goes on from there."""
        return self.num_draws

    def _count(self, fields: _Fields, trace: Trace | None) -> Address:
        number = np.arange(len(fields.stream), dtype=np.int64) + self.num_draws
        self.num_draws += len(number)
        return named_by_every_field(
            fields.stream,  # type: ignore[arg-type]
            key=self.key,
            position=number & ((1 << POSITION_BITS) - 1),
            anchor=number >> POSITION_BITS,
        )


def independent(*, key: int = 0, first: int = 0, trace: Trace | None = None) -> _Independent:
    """A running counter in the fields position and anchor: no name ever comes twice.

    Requests do not matter to it, so a run repeats only from the same `key` and `first`.
    """
    if not 0 <= first < 1 << 62:
        raise ValueError(f"first = {first} is outside 0..2^62 - 1, the draws that it can number")
    return _Independent(key, first, trace)


def ours(*, constant_position: bool = False, trace: Trace | None = None) -> Layout:
    """The product's own addresses, so that all four are used alike."""
    return Layout(
        "ours",
        lambda fields, trace: fields.named(),
        constant_position=constant_position,
        trace=trace,
    )


LAYOUTS: dict[str, Callable[..., Layout]] = {
    "coupled": coupled,
    "salted": salted,
    "independent": independent,
    "ours": ours,
}


def _by_position(fields: _Fields) -> _Fields:
    return replace(fields, anchor=np.zeros_like(fields.anchor), node=np.zeros_like(fields.node))


def _keyed(fields: _Fields, trace: Trace | None) -> Address:
    """Addresses by stream and position; races get the key that the block of their name holds."""
    at = _by_position(fields).named()
    is_race = np.isin(fields.stream, _RACES)
    if trace is not None:
        blocks = at[np.flatnonzero(is_race)]
        trace.record(blocks, [_DERIVATION] * len(blocks))
    words = philox4x32(at.counter, at.key).astype(np.uint64)
    derived = words[..., 0] << np.uint64(32) | words[..., 1]
    return Address(np.where(is_race, derived, at.key), at.counter)
