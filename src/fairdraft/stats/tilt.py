"""An e-process that bets on the deviations seen so far in a few cells."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fairdraft.stats.mixture import log_mean_exp

__all__ = ["SHRINKAGES", "TiltProcess"]

#: pseudo-counts that pull the tilt towards one: small ones learn fast, large ones waste little
SHRINKAGES = np.array([30.0, 150.0, 750.0, 3750.0])


class TiltProcess:
    """Evidence that cells are not hit as often as their probabilities say.

    A token in cell c multiplies the process by r_c / (sum_c pi(c) r_c + eps0 (max r - min r)) with
    r_c = (observed_c + k) / (expected_c + k) over the batches that are complete, averaged over
    the shrinkages k. Each factor has mean at most 1, given the past, under every law within total
    variation eps0 of pi; so P(sup e >= 1 / alpha) <= alpha (Ville), whatever the prompts.

    Args:
        num_cells: m.
        eps0: Total variation that a token's law may be off without being wrong.
    """

    def __init__(self, num_cells: int, eps0: float = 0.0) -> None:
        self.eps0 = eps0
        self.observed = np.zeros(num_cells, np.int64)
        self.expected = np.zeros(num_cells)
        self._log = np.zeros(len(SHRINKAGES))

    @property
    def num_tokens(self) -> int:
        """Tokens counted so far."""
        return int(self.observed.sum())

    @property
    def log_e(self) -> float:
        """Natural log of the evidence, 0 before anything was seen."""
        return log_mean_exp(self._log)

    def add(
        self, observed: np.ndarray, expected: np.ndarray, reachable: np.ndarray | None = None
    ) -> None:
        """Adds a batch; only batches before it decide the bets.

        Args:
            observed: int [M], the cell each token fell in.
            expected: float [M, m], the cells' probabilities for each token; rows sum to 1. A cell
                of probability 0 may be hit.
            reachable: bool [M, m], the cells that each token could have fallen in whatever its
                law, known before it; None: all. It narrows the margin that eps0 costs.
        """
        if len(observed) == 0:
            return
        pull = SHRINKAGES[:, None]
        ratio = (self.observed + pull) / (self.expected + pull)
        mean = ratio @ expected.T
        if self.eps0 > 0.0:
            mean += self.eps0 * _spread(ratio, reachable)
        self._log += np.log(ratio[:, observed] / mean).sum(axis=1)
        self.observed += np.bincount(observed, minlength=len(self.observed))
        self.expected += expected.sum(axis=0)

    def state(self) -> dict[str, Any]:
        """Everything that `restore` needs, as JSON values."""
        return {
            "log": self._log.tolist(),
            "observed": self.observed.tolist(),
            "expected": self.expected.tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken, bit for bit.

        Raises:
            ValueError: If the state is of another number of cells.
        """
        if len(state["observed"]) != len(self.observed) or len(state["log"]) != len(self._log):
            raise ValueError(
                f"a state of {len(state['observed'])} cells cannot continue a process of "
                f"{len(self.observed)}: start a new audit"
            )
        self._log = np.array(state["log"], np.float64)
        self.observed = np.array(state["observed"], np.int64)
        self.expected = np.array(state["expected"], np.float64)


def _spread(ratio: np.ndarray, reachable: np.ndarray | None) -> np.ndarray:
    """Largest less smallest tilt, [4, 1] or [4, M]."""
    if reachable is None:
        return np.ptp(ratio, axis=1, keepdims=True)
    # rows share few patterns, so each is looked at once
    patterns, which = np.unique(reachable, axis=0, return_inverse=True)
    high = np.where(patterns, ratio[:, None, :], -math.inf).max(axis=2)
    low = np.where(patterns, ratio[:, None, :], math.inf).min(axis=2)
    return (high - low)[:, which.reshape(-1)]
