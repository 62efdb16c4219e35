"""The token rule once more, in float64 and nothing else: what a round must decide with its noise.

Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1; exponential races as in `docs/derivation.md`,
tiles of 512 ids first, then the ids of one tile. p is the target's law and q the draft's. Every
weight comes with its slack, what float32 arithmetic may miss it by, so that a decision that could
turn with rounding is told from one that could not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["Decision", "decide"]

TILE = 512
#: relative error of a float32 weight, with room to spare
SLACK = 1e-5


class Decision(NamedTuple):
    """A token that is emitted, and whether no rounding could have made it another one."""

    token_id: int
    is_clear: bool


def decide(part: Any, row: int) -> list[Decision]:
    """Walks one round of the token rule; point masses by sample-and-match.

    Args:
        part: Arrays of some rows of a round, as `Replayer` copies them.
        row: Which of them.

    Returns:
        The tokens that the round emits; behind one that is not clear anything may follow.
    """
    from fairdraft.noise import Stream, address
    from fairdraft.noise.exponential import acceptance

    count = int(part.num_drafts[row])
    temperature = float(part.temperature[row])
    request: dict[str, Any] = {"key": int(part.key[row]), "sample": int(part.sample[row])}
    anchor = int(part.anchor[row])
    decided: list[Decision] = []
    for slot in range(count + 1):
        p = _law(part.target_logits[row, slot], temperature)
        place = {"position": anchor + slot, "anchor": anchor if count else 0}
        stream = Stream.RESIDUAL if slot < count else Stream.BONUS if count else Stream.TARGET
        final = address(stream, **request, **place, node=slot)
        if slot == count or part.draft_logits is None:
            decided.append(_race(p, SLACK * p, final))
            if slot == count or decided[-1].token_id != part.draft_ids[row, slot]:
                return decided
            continue
        x = int(part.draft_ids[row, slot])
        q = _law(part.draft_logits[row, slot], temperature)
        u = float(acceptance(address(Stream.ACCEPT, **request, **place, node=slot + 1))[0])
        is_clear = bool(abs(u * q[x] - p[x]) > SLACK * (u * q[x] + p[x]))
        if p[x] > 0 and q[x] > 0 and u * q[x] < p[x]:
            decided.append(Decision(x, is_clear))
            continue
        residual = np.maximum(p - q, 0.0)
        weights = residual if residual.any() else p
        token = _race(weights, SLACK * (p + q), final)
        decided.append(Decision(token.token_id, is_clear and token.is_clear))
        return decided
    return decided


def _law(logits: Any, temperature: float) -> np.ndarray:
    values = logits.double().numpy() / temperature
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def _race(weights: np.ndarray, slack: np.ndarray, at: Any) -> Decision:
    """The winner of the tiles' race, then of the race in its tile."""
    from fairdraft.noise import Level

    tiles, slacks = _tiles(weights), _tiles(slack)
    tile = _first(tiles.sum(axis=1), slacks.sum(axis=1), at, 0, Level.TILE)
    first = tile.token_id * TILE
    token = _first(tiles[tile.token_id], slacks[tile.token_id], at, first, Level.TOKEN)
    return Decision(first + token.token_id, tile.is_clear and token.is_clear)


def _tiles(values: np.ndarray) -> np.ndarray:
    padded = np.zeros(-(-len(values) // TILE) * TILE)
    padded[: len(values)] = values
    return padded.reshape(-1, TILE)


def _first(
    weights: np.ndarray, slack: np.ndarray, at: Any, first_lane: int, level: int
) -> Decision:
    from fairdraft.noise.exponential import exponentials

    entrants = np.flatnonzero(weights + slack > 0)
    times = exponentials(at, 0, first_lane + entrants, level).astype(np.float64)
    weights, slack = weights[entrants], slack[entrants]
    with np.errstate(divide="ignore"):
        scores = times / weights
        earliest = times / (weights + slack)
        latest = times / np.maximum(weights - slack, 0.0)
    winner = int(scores.argmin())
    rivals = np.delete(earliest, winner)
    is_clear = not len(rivals) or bool(latest[winner] < rivals.min())
    return Decision(int(entrants[winner]), is_clear)
