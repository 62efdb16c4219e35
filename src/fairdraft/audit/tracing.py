"""The address-trace check: deterministic, so it has no false alarms and needs no sample size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from fairdraft.noise import Trace

__all__ = ["AddressCheck", "Traceable", "check_addresses"]

MAX_COLLISIONS = 5


@runtime_checkable
class Traceable(Protocol):
    """A subject in this process whose draws have addresses."""

    def trace_addresses(self) -> Trace:
        """Generates some texts and returns the record of every draw."""
        ...


@dataclass(frozen=True)
class AddressCheck:
    """What the trace of some texts shows.

    Attributes:
        num_draws: Addresses in use.
        num_collisions: Addresses that raced two different things.
        collisions: The first of them, a sentence each.
    """

    num_draws: int
    num_collisions: int
    collisions: tuple[str, ...]


def check_addresses(subject: Traceable) -> AddressCheck:
    """Traces some texts of a subject; a clean one has no collision."""
    trace = subject.trace_addresses()
    found = trace.collisions
    return AddressCheck(len(trace), len(found), tuple(str(c) for c in found[:MAX_COLLISIONS]))
