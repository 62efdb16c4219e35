"""Planted faults: each replaces one production function and counts how often it ran."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from fairdraft import noise
from fairdraft.noise import Stream
from fairdraft.ops import chain, rules, verify
from fairdraft.speculators import DraftModelSpeculator, SharedSampler
from fairdraft.speculators.sampler import Drawn

DRAFT, ACCEPT = int(Stream.DRAFT), int(Stream.ACCEPT)
TARGET, RESIDUAL, BONUS = int(Stream.TARGET), int(Stream.RESIDUAL), int(Stream.BONUS)


@dataclass
class CountCalls:
    """A replacement of one function.

    Attributes:
        make: From the original function to the faulty one.
        count: How often the faulty one ran.
    """

    make: Callable[[Callable[..., Any]], Callable[..., Any]]
    count: int = 0

    def plant(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> CountCalls:
        """Puts the replacement in place until the test ends."""
        faulty = self.make(getattr(owner, name))

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return faulty(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)
        return self


@dataclass(frozen=True)
class Fault:
    """One production function, and what to put in its place."""

    owner: Any
    name: str
    make: Callable[[Callable[..., Any]], Callable[..., Any]]

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> CountCalls:
        """Plants the fault; the result says how often it ran."""
        return CountCalls(self.make).plant(monkeypatch, self.owner, self.name)


@dataclass
class Fields:
    """The fields of an address, arrays that broadcast."""

    stream: np.ndarray
    key: np.ndarray
    position: np.ndarray
    anchor: np.ndarray
    node: np.ndarray
    sample: np.ndarray


def layout(rename: Callable[[Fields], Fields]) -> Fault:
    """A fault of the one address function."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def address(
            stream: Any, *, key: Any, position: Any, anchor: Any = 0, node: Any = 0, sample: Any = 0
        ) -> Any:
            # plain integers, so that they compare with the codes above
            streams = np.asarray(stream, np.int64)
            numbers = [np.asarray(field) for field in (position, anchor, node, sample)]
            at = Fields(streams, key, numbers[0], numbers[1], numbers[2], numbers[3])
            fields = rename(at)
            named = dict(fields.__dict__)
            return original(named.pop("stream"), **named)

        return address

    return Fault(noise, "address", make)


def _shared(at: Fields) -> Fields:
    is_shared = np.isin(at.stream, (DRAFT, RESIDUAL, BONUS))
    return replace(
        at, stream=np.where(is_shared, DRAFT, at.stream), anchor=0 * at.anchor, node=0 * at.node
    )


def _accept_as_draft(at: Fields) -> Fields:
    return replace(at, stream=np.where(at.stream == ACCEPT, DRAFT, at.stream))


def _off_by_one(at: Fields) -> Fields:
    is_draft = at.stream == DRAFT
    is_race = np.isin(at.stream, (DRAFT, RESIDUAL, BONUS))
    return replace(
        at,
        stream=np.where(is_race, TARGET, at.stream),
        position=at.position - is_draft,
        anchor=np.where(is_race, 0, at.anchor),
        node=np.where(is_race, 0, at.node),
    )


def _constant_over_steps(at: Fields) -> Fields:
    is_draft = at.stream == DRAFT
    return replace(
        at,
        position=np.where(is_draft, at.anchor, at.position),
        node=np.where(is_draft, 0, at.node),
    )


def _without_sample(at: Fields) -> Fields:
    return replace(at, sample=np.where(at.stream == DRAFT, 0, at.sample))


def _redrawn(at: Fields) -> Fields:
    is_draft = at.stream == DRAFT
    return replace(at, anchor=np.where(is_draft, 0, at.anchor), node=np.where(is_draft, 0, at.node))


def _by_position(at: Fields) -> Fields:
    is_used = np.isin(at.stream, (DRAFT, ACCEPT, RESIDUAL))
    return replace(at, anchor=np.where(is_used, 0, at.anchor), node=np.where(is_used, 0, at.node))


def clamped(limit: int) -> Fault:
    """Drafts are keyed by position alone, and positions stop at `limit`."""

    def rename(at: Fields) -> Fields:
        position = np.where(at.stream == DRAFT, np.minimum(at.position, limit), at.position)
        return _redrawn(replace(at, position=position))

    return layout(rename)


#: draft, replacement and bonus share the noise of their position (the bug of the public engines)
SHARED_NOISE = layout(_shared)
#: the test of a draft uses the address that drew it
ACCEPT_AS_DRAFT = layout(_accept_as_draft)
#: the draft of position P uses the address that sampled the token of P - 1
OFF_BY_ONE = layout(_off_by_one)
#: every step of a proposal uses the address of its first
CONSTANT_OVER_STEPS = layout(_constant_over_steps)
#: the samples of a request draw the same drafts
SHARED_BY_SAMPLES = layout(_without_sample)
#: a position that is drafted again uses the address of its first draft
REDRAWN = layout(_redrawn)
#: drafts, tests and replacements are named by position alone
BY_POSITION = layout(_by_position)

#: a rejected draft is replaced from p
P_FOR_RESIDUAL = Fault(rules, "residual", lambda original: lambda p, q: p)
#: under rule `block`, a path's rho is the plain product of its ratios
UNCAPPED_RATIO = Fault(rules, "path_ratio", lambda original: lambda rho, p_x, q_x: rho * p_x / q_x)


def _kept_on_empty(original: Callable[..., Any]) -> Callable[..., Any]:
    def replacement(inputs: Any, row: Any, residual: Any, b: int, r: int) -> Any:
        if residual.any():
            return original(inputs, row, residual, b, r)
        return int(inputs.token_ids[b, r]), 0.0

    return replacement


#: a rejected draft stands if the residual is empty
KEPT_ON_EMPTY_RESIDUAL = Fault(chain, "replacement", _kept_on_empty)


def _changed_inputs(change: Callable[[Any], Any]) -> Fault:
    return Fault(verify, "_chain_inputs", lambda original: lambda *args: change(original(*args)))


def _cut_at_forbidden(inputs: Any) -> Any:
    depth = inputs.token_ids.shape[1]
    first = np.where(inputs.is_forbidden.any(1), inputs.is_forbidden.argmax(1), depth)
    return inputs._replace(num_drafts=np.minimum(inputs.num_drafts, first))


#: a forbidden draft and what follows are left out, so the row is sampled from p
FORBIDDEN_AS_ABSENT = _changed_inputs(_cut_at_forbidden)
#: a deterministic draft is verified as if it had been sampled from its softmax
SOFTMAXED_POINT_MASS = _changed_inputs(
    lambda inputs: inputs._replace(is_point_mass=np.zeros_like(inputs.is_point_mass))
)


def _drawn_at_one(original: Callable[..., Any]) -> Callable[..., Any]:
    def draw(self: SharedSampler, *args: Any, **kwargs: Any) -> Drawn:
        at_one = replace(self, temperature=np.ones_like(self.temperature))
        return original(at_one, *args, **kwargs)

    return draw


def _unfiltered_q(original: Callable[..., Any]) -> Callable[..., Any]:
    def draw(self: SharedSampler, logits: Any, *args: Any, **kwargs: Any) -> Drawn:
        return replace(original(self, logits, *args, **kwargs), logits=logits)

    return draw


#: drafts are drawn at temperature 1, whatever the request asked for
DRAWN_AT_ONE = Fault(SharedSampler, "draw", _drawn_at_one)
#: drafts are filtered, and the verifier is told the unfiltered law
UNFILTERED_Q = Fault(SharedSampler, "draw", _unfiltered_q)


def _looks_at_draft(original: Callable[..., Any]) -> Callable[..., Any]:
    def propose(self: DraftModelSpeculator, state: Any) -> Any:
        proposal = original(self, state)
        if not proposal.token_ids.shape[1]:
            return proposal
        law = proposal.draft_logits.softmax(-1)
        drawn = law.gather(-1, proposal.token_ids.clamp(min=0)[..., None])[..., 0]
        is_kept = ((drawn >= 0.25) & (proposal.token_ids >= 0)).cumprod(1)
        return replace(proposal, num_draft_tokens=is_kept.sum(1))

    return propose


#: a draft of q < .25 is dropped with what follows it
STOP_THAT_LOOKED = Fault(DraftModelSpeculator, "propose", _looks_at_draft)
