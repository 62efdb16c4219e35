"""The trace: records which address raced what, and fails when one address raced two things.

Deterministic, so it has no false alarms: an address may be met again only with the same digest
(a replay), or after its first use was discarded for a reason that read no draw made there
(the redo rule, `docs/derivation.md`). Guesses under common noise are logged and not checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from fairdraft.noise.address import NODE_BITS, STREAM_SHIFT, Address
from fairdraft.noise.streams import Stream


class Discard(StrEnum):
    """The reasons for dropping an unverified proposal that are blind to what was drawn."""

    LOAD = "load"
    TIMEOUT = "timeout"
    CRASH = "crash"
    PREEMPTION = "preemption"
    WRONG_PREFIX = "wrong_prefix"


class Role(StrEnum):
    """What a race was for."""

    #: its winner or its test counts, so its address serves once
    DECISION = "decision"
    #: it guesses the winner of the target's race at the same address (rule `common_noise`)
    GUESS = "guess"


@dataclass(frozen=True)
class Use:
    """One use of an address: `digest` of what was raced there, and the discard reason if any."""

    key: int
    position: int
    anchor: int
    stream: Stream
    node: int
    sample: int
    digest: bytes
    discarded: Discard | None = None
    role: Role = Role.DECISION


@dataclass(frozen=True)
class Collision:
    """One address that raced two different things."""

    first: Use
    second: Use

    def __str__(self) -> str:
        u = self.first
        return (
            f"{u.stream.name} draw at position {u.position}, anchor {u.anchor}, node {u.node}, "
            f"sample {u.sample} of key {u.key:016x} was raced twice with different weights"
        )


class TraceError(AssertionError):
    """Raised by `Trace.check` when an address was used for two different draws."""


@dataclass
class Trace:
    """Records addresses, digests and fates; pass it to the ops or to the engine.

    Attributes:
        collisions: Every address that was used with two digests, in order of detection.
        role: Of what is recorded through this object.
    """

    collisions: list[Collision] = field(default_factory=list)
    role: Role = Role.DECISION
    _uses: dict[tuple[int, bytes], Use] = field(default_factory=dict)
    _guesses: dict[tuple[int, bytes, bytes], Use] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._uses)

    def __iter__(self):
        return iter(self._uses.values())

    @property
    def guesses(self) -> tuple[Use, ...]:
        """Every guess, in order; neither iteration nor the length counts them."""
        return tuple(self._guesses.values())

    def for_guesses(self) -> Trace:
        """The same record, to write guesses to: any number may share an address, unchecked."""
        return replace(self, role=Role.GUESS)

    def record(self, at: Address, digests: Iterable[bytes]) -> None:
        """Notes one use for each address; a second digest is a collision."""
        for key, counter, digest in zip(at.key, at.counter, digests, strict=True):
            name = (int(key), counter.tobytes())
            use = _use(int(key), counter, digest, self.role)
            if self.role is Role.GUESS:
                self._guesses[*name, digest] = use
                continue
            first = self._uses.get(name)
            if first is not None and first.digest != digest and first.discarded is None:
                self.collisions.append(Collision(first, use))
            else:
                self._uses[name] = use

    def discard(self, key: int, anchor: int, reason: Discard, *, sample: int = 0) -> int:
        """Marks a round's drafts as dropped for a value-blind reason; returns how many."""
        marked, reason = 0, Discard(reason)
        for name, use in self._uses.items():
            is_round = (use.key, use.anchor, use.sample) == (key, anchor, sample)
            if is_round and use.stream == Stream.DRAFT:
                self._uses[name] = Use(**{**use.__dict__, "discarded": reason})
                marked += 1
        return marked

    def check(self) -> None:
        """Raises TraceError, naming the first collision, unless every address is clean."""
        if self.collisions:
            raise TraceError(f"{len(self.collisions)} collisions; the first: {self.collisions[0]}")


def digest(*parts: np.ndarray) -> bytes:
    """Eight bytes that identify what was raced: logits, temperature, tested token."""
    mix = hashlib.blake2b(digest_size=8)
    for part in parts:
        mix.update(np.ascontiguousarray(part).tobytes())
    return mix.digest()


def _use(key: int, counter: np.ndarray, digest_: bytes, role: Role) -> Use:
    c0, c1, c2, c3 = (int(word) for word in counter)
    return Use(
        key=key,
        position=c0,
        anchor=c1,
        stream=Stream(c2 >> STREAM_SHIFT),
        node=c3 & ((1 << NODE_BITS) - 1),
        sample=c3 >> NODE_BITS,
        digest=digest_,
        role=role,
    )
