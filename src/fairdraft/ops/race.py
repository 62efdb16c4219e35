"""The two-level exponential race, the one sampler of every token (reference form).

Tiles race with E_t / w_t, then the tokens of the winning tile with E_j / v_j; the smallest score
wins, ties go to the lowest id. P(j) = (w_t / sum w) (v_j / s_t): exact, without prefix sums, and
independent of any order of summation. Source: competing exponentials (Devroye 1986, ch. V.2).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fairdraft.noise import Address, Level
from fairdraft.noise.exponential import exponentials
from fairdraft.ops.arithmetic import TILE


class TileWeights(Protocol):
    """What a race needs: weights [T, TILE] in [0, 1] and the tiles' own weights [T]."""

    @property
    def weights(self) -> np.ndarray: ...

    def tile_weights(self) -> np.ndarray: ...


def race(subject: TileWeights, at: Address, row: int) -> tuple[int, float]:
    """Draws one id; returns it with its margin (second best over best score, minus 1)."""
    tile, tile_margin = _first(subject.tile_weights(), at, row, Level.TILE, first_lane=0)
    token, token_margin = _first(
        subject.weights[tile], at, row, Level.TOKEN, first_lane=tile * TILE
    )
    return tile * TILE + token, min(tile_margin, token_margin)


def flat_race(weights: np.ndarray, at: Address, row: int) -> tuple[int, float]:
    """Draws one id with a number for every token (Gumbel-max, Maddison et al. 2014, eq. 2)."""
    return _first(weights, at, row, Level.TOKEN, first_lane=0)


def _first(
    weights: np.ndarray, at: Address, row: int, level: Level, first_lane: int
) -> tuple[int, float]:
    entrants = np.flatnonzero(weights > 0)
    assert len(entrants), "a race needs an entrant with a positive weight"
    times = exponentials(at, row, first_lane + entrants, level)
    scores = times / weights[entrants]
    winner = int(scores.argmin())
    best = float(scores[winner])
    second = float(np.partition(scores, 1)[1]) if len(scores) > 1 else np.inf
    return int(entrants[winner]), second / best - 1
