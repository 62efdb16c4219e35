"""Eight cells of about equal target mass, ordered by how much the draft prefers a column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairdraft.stats.tokens import ScoredTokens

__all__ = ["NUM_OCTILES", "OCTILE_LABELS", "Octiles", "octiles_of"]

NUM_OCTILES = 8
OCTILE_LABELS = (
    "q/p lowest",
    *(f"q/p octile {number}" for number in range(2, NUM_OCTILES)),
    "q/p highest",
)


@dataclass(frozen=True)
class Octiles:
    """Cells by q/p of M tokens.

    Attributes:
        rows: int64 [M], the tokens, ascending.
        cell: int64 [M, C], the cell of every column.
        observed: int64 [M], the cell of the token that came out.
        expected: float64 [M, 8], the target's probability of each cell.
    """

    rows: np.ndarray
    cell: np.ndarray
    observed: np.ndarray
    expected: np.ndarray

    def mass(self, weights: np.ndarray) -> np.ndarray:
        """Sums weights [M, C] within cells, float64 [M, 8]."""
        place = self.cell + NUM_OCTILES * np.arange(len(self.cell))[:, None]
        total = np.bincount(place.ravel(), weights.ravel(), minlength=NUM_OCTILES * len(self.cell))
        return total.reshape(-1, NUM_OCTILES)


def octiles_of(rows: np.ndarray, tokens: ScoredTokens, draft: np.ndarray) -> Octiles:
    """Cuts columns, ordered by draft over target, at multiples of 1/8 of the target's mass.

    A column belongs to the cell that holds the middle of its mass, which depends on nothing but
    the two laws: the cells are declared before the token is seen.

    Args:
        rows: int [M], tokens whose draft law is known.
        tokens: N tokens.
        draft: float [N, C], draft laws.
    """
    target = tokens.target[rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        preference = draft[rows] / target
    # a column that neither law knows has no mass and no say
    np.nan_to_num(preference, copy=False, nan=0.0, posinf=np.inf)
    order = np.argsort(preference, axis=1, kind="stable")
    ordered = np.take_along_axis(target, order, axis=1)
    middle = np.cumsum(ordered, axis=1) - 0.5 * ordered
    cell = np.empty_like(order)
    ranked = np.minimum((NUM_OCTILES * middle).astype(np.int64), NUM_OCTILES - 1)
    np.put_along_axis(cell, order, ranked, axis=1)
    observed = cell[np.arange(len(rows)), tokens.column[rows]]
    octiles = Octiles(rows, cell, observed, np.empty(0))
    return Octiles(rows, cell, observed, octiles.mass(target))
