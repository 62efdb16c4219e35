"""Faults of the noise: draws that share numbers, by a wrong name or a weak generator.

All but the last two replace the one function that names draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fairdraft.audit.faults.fault import Fault, Function, Planting
from fairdraft.noise import Address, Stream, philox4x32
from fairdraft.noise.address import POSITION_BITS

__all__ = ["NOISE_FAULTS", "clamped"]

DRAFT, ACCEPT = int(Stream.DRAFT), int(Stream.ACCEPT)
TARGET, RESIDUAL, BONUS = int(Stream.TARGET), int(Stream.RESIDUAL), int(Stream.BONUS)


@dataclass
class Fields:
    """The fields of an address, arrays that broadcast."""

    stream: np.ndarray
    key: np.ndarray
    position: np.ndarray
    anchor: np.ndarray
    node: np.ndarray
    sample: np.ndarray

    @property
    def is_draft(self) -> np.ndarray:
        return self.stream == DRAFT

    @property
    def is_race(self) -> np.ndarray:
        """Draws of a verified round that race."""
        return np.isin(self.stream, (DRAFT, RESIDUAL, BONUS))


def _replacement(original: Function, rename: Callable[[Fields], Fields]) -> Function:
    def address(
        stream: Any, *, key: Any, position: Any, anchor: Any = 0, node: Any = 0, sample: Any = 0
    ) -> Address:
        # plain integers, so that they compare with the codes above
        streams = np.asarray(stream, np.int64)
        numbers = [np.asarray(field) for field in (position, anchor, node, sample)]
        fields = rename(Fields(streams, np.asarray(key), *numbers))
        named = dict(fields.__dict__)
        return original(named.pop("stream"), **named)

    return address


def renamed(name: str, title: str, rename: Callable[[Fields], Fields], source: str = "") -> Fault:
    """A fault that gives draws other addresses."""
    return Fault(
        name,
        title,
        "fairdraft.noise.address",
        lambda original, planting: _replacement(original, rename),
        "address",
        source,
    )


def _by_position(at: Fields, where: Any = True) -> Fields:
    """Draws named without anchor and node, all or some of them."""
    return replace(at, anchor=np.where(where, 0, at.anchor), node=np.where(where, 0, at.node))


def _shared(at: Fields) -> Fields:
    stream = np.where(at.is_race, DRAFT, at.stream)
    return _by_position(replace(at, stream=stream), at.is_race)


def _common(at: Fields) -> Fields:
    """What the types forbid: guesses of common noise, replaced and tested as drafts of a law."""
    stream = np.where(at.is_race, TARGET, at.stream)
    return _by_position(replace(at, stream=stream), at.is_race)


def _without_anchor(at: Fields) -> Fields:
    return _by_position(at)


def _redrawn(at: Fields) -> Fields:
    return _by_position(at, at.is_draft)


def _constant_over_steps(at: Fields) -> Fields:
    return replace(
        at,
        position=np.where(at.is_draft, at.anchor, at.position),
        node=np.where(at.is_draft, 0, at.node),
    )


def _off_by_one(at: Fields) -> Fields:
    stream = np.where(at.is_race, TARGET, at.stream)
    moved = replace(at, stream=stream, position=at.position - at.is_draft)
    return _by_position(moved, at.is_race)


def clamped(limit: int) -> Fault:
    """Drafts are named by position, and positions stop at `limit`."""

    def rename(at: Fields) -> Fields:
        position = np.where(at.is_draft, np.minimum(at.position, limit), at.position)
        return _redrawn(replace(at, position=position))

    return renamed(
        "clamped-positions",
        f"draft positions stop at {limit}, just before the context limit, so drafts share noise",
        rename,
        "vllm #54282",
    )


def _counted_from_seed(at: Fields) -> Fields:
    """For requests whose keys are their seeds; the counter wraps."""
    position = at.position + at.key.astype(np.int64) & (1 << POSITION_BITS) - 1
    return _by_position(replace(at, key=np.zeros_like(at.key), position=position))


def _without_sample(at: Fields) -> Fields:
    return replace(at, sample=np.where(at.is_draft, 0, at.sample))


def _accept_as_draft(at: Fields) -> Fields:
    return replace(at, stream=np.where(at.stream == ACCEPT, DRAFT, at.stream))


def _keyed_by_accept_word(original: Function, planting: Planting) -> Function:
    """The key of a draft's race is the word that the draft's test reads as its uniform."""

    def address(stream: Any, **fields: Any) -> Address:
        at = original(stream, **fields)
        inner = original(Stream.ACCEPT, **fields)
        is_draft = np.broadcast_to(np.asarray(stream, np.int64) == DRAFT, np.shape(stream))
        if not is_draft.all():
            return at
        words = philox4x32(inner.counter, inner.key).astype(np.uint64)
        if planting.trace is not None:
            planting.trace.record(inner, [b"key"] * len(inner))
        return Address(words[:, 0] << np.uint64(32) | words[:, 1], at.counter)

    return address


def _same_seed(original: Function, planting: Planting) -> Function:
    return lambda seed, prompt_token_ids=(): original(0, prompt_token_ids)


def _without_prompt(original: Function, planting: Planting) -> Function:
    return lambda seed, prompt_token_ids=(): original(seed)


def _column_hash(original: Function, planting: Planting) -> Function:
    """24 bits of (seed a ^ position b) c ^ column d: columns differ by constants."""

    def exponentials(at: Address, row: int, lanes: np.ndarray, level: int) -> np.ndarray:
        with np.errstate(over="ignore"):
            seed, position = at.key[row], np.uint64(at.counter[row, 0])
            stream = np.uint64(at.counter[row, 2])
            name = seed * np.uint64(19349663) ^ (position ^ stream) * np.uint64(73856093)
            mixed = name * np.uint64(8589934591) ^ lanes.astype(np.uint64) * np.uint64(479001599)
        u = ((mixed % np.uint64(1 << 24)).astype(np.float64) + 0.5) * 2.0**-24
        return -np.log1p(-u).astype(np.float32)

    return exponentials


def _coarse(bits: int) -> Callable[[Function, Planting], Function]:
    def make(original: Function, planting: Planting) -> Function:
        def exponentials(*args: Any) -> np.ndarray:
            u = -np.expm1(-original(*args).astype(np.float64))
            grid = 2.0**bits
            # as -log(u) of a uniform that is never 0 on its grid
            u = np.clip(np.ceil(u * grid), 1, grid - 1) / grid
            return -np.log1p(-u).astype(np.float32)

        return exponentials

    return make


NOISE_FAULTS = (
    renamed(
        "shared-noise",
        "draft, replacement and bonus of a position are drawn with the same noise",
        _shared,
        "vllm #54282, #47386",
    ),
    renamed(
        "common-below-ratio",
        "drafts and what replaces them share the target's noise, and a ratio of laws tests them",
        _common,
    ),
    renamed(
        "position-names",
        "draws are named by stream and position alone, so a re-tested position meets its old noise",
        _without_anchor,
    ),
    renamed(
        "constant-position",
        "all drafts of a proposal are drawn with the noise of its first position",
        _constant_over_steps,
    ),
    renamed(
        "off-by-one",
        "the draft of a position is drawn with the noise that sampled the token before it",
        _off_by_one,
    ),
    renamed(
        "seed-plus-position",
        "the counter is seed + position, so neighboring seeds share shifted noise",
        _counted_from_seed,
    ),
    renamed(
        "shared-proposal",
        "the samples of a request verify one and the same proposal",
        _without_sample,
    ),
    renamed(
        "accept-reads-draft",
        "the test of a draft reads the number that token 0 raced with when it was drawn",
        _accept_as_draft,
    ),
    renamed(
        "redrafted-position",
        "a position that is drafted again meets the noise of its first draft",
        _redrawn,
    ),
    Fault(
        "accept-reads-key",
        "the test of a draft reads the word that the draft's noise was keyed by",
        "fairdraft.noise.address",
        _keyed_by_accept_word,
        "address",
        "vllm #54282",
    ),
    Fault(
        "seed-ignored",
        "requests of one prompt share their noise, whatever their seeds",
        "fairdraft.noise.request_key",
        _same_seed,
        "address",
    ),
    Fault(
        "prompt-ignored",
        "requests of one seed share their noise, whatever their prompts",
        "fairdraft.noise.request_key",
        _without_prompt,
        "address",
        "vllm #50440",
    ),
    Fault(
        "column-hash",
        "noise is a multiply-and-xor hash of seed, position and column",
        "fairdraft.ops.race.exponentials",
        _column_hash,
        "address",
        "sglang up to 0.5.7",
    ),
    Fault(
        "coarse-noise",
        "uniforms have 8 bits, so the smallest exponential is 2^-8",
        "fairdraft.ops.race.exponentials",
        _coarse(8),
        "address",
        "vllm #43150",
    ),
)
