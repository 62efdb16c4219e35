"""Many e-processes held as one: a capital that is shared equally when a process joins."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fairdraft.stats.mixture import log_sum_exp

__all__ = ["Merge"]


class Merge:
    """The mean of e-processes, also of those that can only bet later.

    Capital 1 is shared equally among the processes that could bet in the first batch. One that
    can bet for the first time later gets an equal share of what there is then, from everybody.
    Shares are moved between batches, on what is known there, so the total stays a supermartingale
    that began at 1: P(sup total >= 1 / alpha) <= alpha. Its running maximum is taken of the total,
    never of the parts.
    """

    def __init__(self) -> None:
        self._capital: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        self.log_e = 0.0
        self.sup_log_e = 0.0

    @property
    def members(self) -> tuple[str, ...]:
        """Processes that hold a share."""
        return tuple(self._capital)

    def update(self, log_e: Mapping[str, float]) -> None:
        """Follows the processes over one batch.

        Args:
            log_e: Natural log of each process that has seen an eligible token; one that is new
                joins with this batch behind it and gains or loses from the next on.
        """
        for name in self._capital:
            self._capital[name] += log_e[name] - self._seen[name]
        total = log_sum_exp(self._capital.values()) if self._capital else 0.0
        newcomers = [name for name in log_e if name not in self._capital]
        if newcomers:
            count = len(self._capital) + len(newcomers)
            kept = math.log(len(self._capital) / count) if self._capital else 0.0
            for name in self._capital:
                self._capital[name] += kept
            for name in newcomers:
                self._capital[name] = total - math.log(count)
        self._seen = dict(log_e)
        self.log_e = total
        self.sup_log_e = max(self.sup_log_e, total)

    def state(self) -> dict[str, Any]:
        """Everything that `restore` needs, as JSON values."""
        return {
            "capital": dict(self._capital),
            "seen": dict(self._seen),
            "log_e": self.log_e,
            "sup_log_e": self.sup_log_e,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken, bit for bit."""
        self._capital, self._seen = dict(state["capital"]), dict(state["seen"])
        self.log_e, self.sup_log_e = state["log_e"], state["sup_log_e"]
