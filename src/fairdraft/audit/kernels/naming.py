"""Names what a trace's collisions have in common."""

from __future__ import annotations

from fairdraft.audit.layouts import Layout, Role
from fairdraft.noise import Stream, Trace
from fairdraft.stats.templates import TEMPLATES

__all__ = ["REDRAWN", "RETESTED", "SHARED", "STEPS", "names_of"]

#: the words that the law test uses for the same bug
SHARED = next(template.title for template in TEMPLATES if template.name == "shared noise")
STEPS = "the drafts of one proposal share noise"
RETESTED = "a draft proposed again is tested with its old number"
REDRAWN = "a position proposed again is drafted with its old noise"
OTHER = "one address serves two draws"
_ORDER = (SHARED, STEPS, RETESTED, REDRAWN, OTHER)


def names_of(trace: Trace, layout: Layout) -> tuple[str, ...]:
    """Returns what collided, the most telling first; nothing if the trace is clean."""
    found = {_name(layout.roles(collision.second)) for collision in trace.collisions}
    return tuple(name for name in _ORDER if name in found)


def _name(roles: frozenset[Role]) -> str:
    streams = {role.stream for role in roles}
    if Stream.DRAFT in streams and streams & {Stream.RESIDUAL, Stream.BONUS}:
        return SHARED
    if streams == {Stream.ACCEPT}:
        return RETESTED
    if streams == {Stream.DRAFT}:
        nodes: dict[int, set[int]] = {}
        for role in roles:
            nodes.setdefault(role.anchor, set()).add(role.node)
        return STEPS if any(len(each) > 1 for each in nodes.values()) else REDRAWN
    return OTHER
