"""The rules once more, in float64 and nothing else: what a round must decide with its noise.

`token`: Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1; `block`: Sun et al. 2024 (arXiv
2403.10444), algorithm 2; `common_noise`: the target's own token, by the noise of plain decoding.
Exponential races as in `docs/derivation.md`, tiles of 512 ids first, then the ids of one tile. p is
the target's law and q the draft's. Every weight comes with its slack, what float32 arithmetic may
miss it by, so that a decision that could turn with rounding is told from one that could not.
Axes: K drafts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from fairdraft.audit.replay_part import RoundPart

__all__ = ["SLACK", "Decision", "decide", "law_of", "race", "until_broken"]

TILE = 512
#: relative error of a float32 weight, with room to spare
SLACK = 1e-5


class BrokenRow(Exception):
    """Logits that are no law: the walk that comes to them ends, and its request fails."""


class Decision(NamedTuple):
    """A token that is emitted, and whether no rounding could have made it another one."""

    token_id: int
    is_clear: bool


def decide(part: RoundPart, row: int) -> list[Decision]:
    """Decides one round again.

    Args:
        part: Some rows of a round of chains.
        row: Which of them.

    Returns:
        The tokens that the round emits, up to a broken row that it comes to; behind one that is
        not clear anything may follow.
    """
    noise = _Noise(part, row)
    if part.draft_logits is None or not noise.count:
        return until_broken(_match(part, row, noise))
    walk = _block if part.rule == "block" else _token
    return until_broken(walk(part, row, noise))


def until_broken(walk: Iterator[Decision]) -> list[Decision]:
    """What a walk decides before it comes to a broken row, or to its end."""
    decided: list[Decision] = []
    with suppress(BrokenRow):
        decided.extend(walk)
    return decided


class _Noise:
    """The draws of one round, by their addresses."""

    def __init__(self, part: RoundPart, row: int) -> None:
        self.count = int(part.num_drafts[row])
        self._anchor = int(part.anchor[row])
        self._request = {"key": int(part.key[row]), "sample": int(part.sample[row])}
        # every draw of these rounds is one of plain decoding
        self._is_plain = not self.count or part.rule == "common_noise"

    def _at(self, stream: Any, slot: int, node: int) -> Any:
        from fairdraft.noise import address

        position = self._anchor + slot
        if self._is_plain:
            return address(stream, position=position, **self._request)
        return address(stream, position=position, anchor=self._anchor, node=node, **self._request)

    def uniform(self, slot: int) -> float:
        """Of the test of draft `slot`, from 0."""
        from fairdraft.noise import Stream
        from fairdraft.noise.exponential import acceptance

        return float(acceptance(self._at(Stream.ACCEPT, slot, slot + 1))[0])

    def final(self, slot: int) -> Any:
        """Address of the token after `slot` drafts."""
        from fairdraft.noise import Stream

        stream = Stream.RESIDUAL if slot < self.count else Stream.BONUS
        return self._at(Stream.TARGET if self._is_plain else stream, slot, slot)


def _match(part: RoundPart, row: int, noise: _Noise) -> Iterator[Decision]:
    """Point masses, or no drafts: the target's own token at each slot, while it is the draft."""
    for slot in range(noise.count + 1):
        p = law_of(part.target_logits[row, slot], part.temperature[row])
        token = race(p, SLACK * p, noise.final(slot))
        yield token
        if slot < noise.count and token.token_id != part.draft_ids[row, slot]:
            return


def _token(part: RoundPart, row: int, noise: _Noise) -> Iterator[Decision]:
    """Draft by draft: kept if u q(x) < p(x), else replaced from max(p - q, 0)."""
    assert part.draft_logits is not None
    for slot in range(noise.count):
        p = law_of(part.target_logits[row, slot], part.temperature[row])
        q = law_of(part.draft_logits[row, slot], part.temperature[row])
        x = int(part.draft_ids[row, slot])
        u = noise.uniform(slot)
        is_clear = _is_apart(u * q[x], p[x])
        if p[x] > 0 and q[x] > 0 and u * q[x] < p[x]:
            yield Decision(x, is_clear)
            continue
        residual = np.maximum(p - q, 0.0)
        token = race(residual if residual.any() else p, SLACK * (p + q), noise.final(slot))
        yield Decision(token.token_id, is_clear and token.is_clear)
        return
    p = law_of(part.target_logits[row, noise.count], part.temperature[row])
    yield race(p, SLACK * p, noise.final(noise.count))


def _block(part: RoundPart, row: int, noise: _Noise) -> Iterator[Decision]:
    """The longest prefix whose test passes, tests made from the longest back.

    rho_i = min(rho_(i-1) p(x_i) / q(x_i), 1). With m_i the mass of max(rho_i p - q, 0) after i
    drafts, the prefix stands if u_i < m_i / (m_i + 1 - rho_i), the whole block if u_K < rho_K.
    """
    assert part.draft_logits is not None
    rho, weights, slacks, odds = 1.0, [], [], []
    for slot in range(noise.count + 1):
        p = law_of(part.target_logits[row, slot], part.temperature[row])
        if slot == noise.count:
            weights.append(p)
            slacks.append(SLACK * p)
            odds.append((rho, 1.0))
            break
        q = law_of(part.draft_logits[row, slot], part.temperature[row])
        residual = np.maximum(rho * p - q, 0.0)
        weights.append(residual if residual.any() else p)
        slacks.append(SLACK * (p + q))
        odds.append((residual.sum(), residual.sum() + 1.0 - rho))
        x = int(part.draft_ids[row, slot])
        rho = min(rho * p[x] / q[x], 1.0) if q[x] > 0 else 0.0
        if rho == 0:
            break
    length, is_clear = len(weights) - 1, True
    while length > 0:
        favorable, total = odds[length]
        u = noise.uniform(length - 1)
        # sums of differences: their error is that of the laws, not of the difference
        is_clear &= bool(abs(u * total - favorable) > length * SLACK)
        if favorable >= total or u * total < favorable:
            break
        length -= 1
    token = race(weights[length], slacks[length], noise.final(length))
    yield from (Decision(int(x), is_clear) for x in part.draft_ids[row, :length])
    yield Decision(token.token_id, is_clear and token.is_clear)


def _is_apart(a: float, b: float) -> bool:
    return bool(abs(a - b) > SLACK * (a + b))


def law_of(logits: Any, temperature: float) -> np.ndarray:
    """Law [V] of logits.

    Raises:
        BrokenRow: If they hold NaN or +inf, or nothing else than -inf.
    """
    if not np.isfinite(float(logits.max())):
        raise BrokenRow
    values = logits.double().numpy() / temperature
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def race(weights: np.ndarray, slack: np.ndarray, at: Any) -> Decision:
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
