"""Rule `tree` once more, in float64 and nothing else: what a round must decide with its noise.

Recursive rejection sampling without replacement (Jeon et al. 2024, arXiv 2402.14160), with the
slack of `formulas`: what float32 weights may miss a number by. Axes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fairdraft.audit.formulas import SLACK, Decision, law_of, race, until_broken

if TYPE_CHECKING:
    from fairdraft.audit.replay_part import TreePart

__all__ = ["decide_tree"]


def decide_tree(part: TreePart, row: int) -> list[Decision]:
    """Decides one round again; see `formulas.decide`."""
    return until_broken(_walk(part, row))


def _walk(part: TreePart, row: int) -> Iterator[Decision]:
    step = _match if part.draft_logits is None else _reject
    decision, node = step(part, row, 0)
    yield decision
    while node:
        decision, node = step(part, row, node)
        yield decision


def _match(part: TreePart, row: int, node: int) -> tuple[Decision, int]:
    """Point masses: the target's own token, and the child that equals it, or 0."""
    p = law_of(part.target_logits[row, node], part.temperature[row])
    token = race(p, SLACK * p, _final_at(part, row, node))
    same = [c for c in part.children[row][node] if part.draft_ids[row, c - 1] == token.token_id]
    return token, same[0] if same else 0


def _reject(part: TreePart, row: int, node: int) -> tuple[Decision, int]:
    """Child by child, each from q without its elders: kept if u q(x) < r(x).

    r is p first; after a rejection it is max(r - q, 0), made a law before the next child.
    """
    from fairdraft.noise import Stream
    from fairdraft.noise.exponential import acceptance

    p = law_of(part.target_logits[row, node], part.temperature[row])
    rest, slack, is_clear = p, SLACK * p, True
    elders: list[int] = []
    for child in part.children[row][node]:
        if elders:
            mass = rest.sum()
            if mass == 0:
                break
            slack = (slack + rest * slack.sum() / mass) / mass
            rest = rest / mass
        assert part.draft_logits is not None
        logits = part.draft_logits[row, child - 1].clone()
        logits[elders] = -np.inf
        q = law_of(logits, part.temperature[row])
        x = int(part.draft_ids[row, child - 1])
        u = float(acceptance(_at(part, row, Stream.ACCEPT, child, -1))[0])
        is_clear &= bool(abs(u * q[x] - rest[x]) > SLACK * u * q[x] + slack[x])
        if rest[x] > 0 and q[x] > 0 and u * q[x] < rest[x]:
            return Decision(x, is_clear), child
        slack = slack + SLACK * q
        rest = np.maximum(rest - q, 0.0)
        elders.append(x)
    # an empty rest is a matter of rounding: p itself then
    weights, missed = (rest, slack) if rest.any() else (p, SLACK * p)
    token = race(weights, missed, _final_at(part, row, node))
    return Decision(token.token_id, is_clear and token.is_clear), 0


def _final_at(part: TreePart, row: int, node: int) -> Any:
    """Address of the token after a node."""
    from fairdraft.noise import Stream

    if not part.children[row][0]:
        return _at(part, row, Stream.TARGET, 0, 0)
    stream = Stream.RESIDUAL if part.children[row][node] else Stream.BONUS
    return _at(part, row, stream, node, 0)


def _at(part: TreePart, row: int, stream: Any, node: int, offset: int) -> Any:
    from fairdraft.noise import Stream, address

    anchor = int(part.anchor[row])
    return address(
        stream,
        key=int(part.key[row]),
        sample=int(part.sample[row]),
        position=anchor + int(part.tree.depths[node]) + offset,
        anchor=0 if stream == Stream.TARGET else anchor,
        node=node,
    )
