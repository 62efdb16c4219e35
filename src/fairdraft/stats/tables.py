"""Counts for display: acceptance by slot and deviation by position."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairdraft.stats.families import Cells
from fairdraft.stats.tokens import Source
from fairdraft.stats.view import View

__all__ = ["PositionTable", "SlotTable"]

#: later slots are counted as this one
MAX_SLOT = 63
#: position p > 0 is in range floor(log2 p) + 1: 0, 1, 2-3, 4-7, ...
NUM_RANGES = 32


class SlotTable:
    """Drafts tested and accepted by slot, beside the sums of their acceptance probabilities."""

    def __init__(self) -> None:
        self.tested = np.zeros(MAX_SLOT + 1, np.int64)
        self.accepted = np.zeros(MAX_SLOT + 1, np.int64)
        self.expected = np.zeros(MAX_SLOT + 1)

    def add(self, view: View) -> None:
        """Adds tokens at which a draft of known law was tested at a known slot."""
        tokens, draft = view.tokens, view.draft
        if draft is None:
            return
        tested = (tokens.source == Source.ACCEPTED) | (tokens.source == Source.REPLACED)
        rows = np.flatnonzero(tested & (tokens.slot >= 0) & ~np.isnan(draft[:, 0]))
        if not len(rows):
            return
        prob = np.minimum(tokens.target[rows], draft[rows]).sum(axis=1)
        fixed = view.is_point_mass[rows]
        prob[fixed] = tokens.target[rows[fixed], tokens.drafted[rows[fixed]]]
        slot = np.minimum(tokens.slot[rows], MAX_SLOT)
        accepted = tokens.source[rows] == Source.ACCEPTED
        size = MAX_SLOT + 1
        self.tested += np.bincount(slot, minlength=size)
        self.accepted += np.bincount(slot[accepted], minlength=size)
        self.expected += np.bincount(slot, weights=prob, minlength=size)

    def state(self) -> dict[str, Any]:
        """Everything that `restore` needs, as JSON values."""
        used = int(np.flatnonzero(self.tested).max(initial=-1)) + 1
        return {name: getattr(self, name)[:used].tolist() for name in _SLOT_FIELDS}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken."""
        for name in _SLOT_FIELDS:
            getattr(self, name)[:] = 0
            getattr(self, name)[: len(state[name])] = state[name]


_SLOT_FIELDS = ("tested", "accepted", "expected")


class PositionTable:
    """Cells of one family by ranges of positions that double in length."""

    def __init__(self, num_cells: int) -> None:
        self.observed = np.zeros((NUM_RANGES, num_cells), np.int64)
        self.expected = np.zeros((NUM_RANGES, num_cells))

    def add(self, cells: Cells, position: np.ndarray) -> None:
        """Adds cells of tokens whose positions are int [N]."""
        at = np.minimum(np.frexp(position[cells.rows])[1], NUM_RANGES - 1)
        np.add.at(self.observed, (at, cells.observed), 1)
        np.add.at(self.expected, at, cells.expected)

    @staticmethod
    def limits(number: int) -> tuple[int, int]:
        """First and last position of a range."""
        return (0, 0) if number == 0 else (1 << (number - 1), (1 << number) - 1)

    def state(self) -> dict[str, Any]:
        """Everything that `restore` needs, as JSON values."""
        used = int(np.flatnonzero(self.observed.any(axis=1)).max(initial=-1)) + 1
        return {
            "observed": self.observed[:used].tolist(),
            "expected": self.expected[:used].tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken."""
        for name in ("observed", "expected"):
            table = getattr(self, name)
            table[:] = 0
            if state[name]:
                table[: len(state[name])] = state[name]
