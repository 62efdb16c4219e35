"""An e-process that bets on one exactly known alternative law."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairdraft.stats.mixture import log_mean_exp

__all__ = ["STAKES", "LikelihoodProcess", "likelihood_ratios"]

#: shares of the capital that are bet: all, and less for a fault that is partly there
STAKES = np.array([1.0, 0.3, 0.1])
#: with a tolerance, bets are kept within these odds, so that the margin stays small
MAX_ODDS = 8.0
# keeps the log of lost capital finite, so that a state is plain JSON
_LEAST = 1e-300
# an alternative that leaves less than this to the target's columns is no bet
_LEAST_SHARE = 1e-12


class LikelihoodProcess:
    """Evidence for an alternative law against the target.

    A token multiplies the process by 1 - m + m times its ratio, averaged over the stakes m. The
    ratios' mean is at most 1, given the past, so P(sup e >= 1 / alpha) <= alpha (Ville).
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self._log = np.zeros(len(STAKES))

    @property
    def log_e(self) -> float:
        """Natural log of the evidence, 0 before anything was seen."""
        return log_mean_exp(self._log)

    def add(self, ratio: np.ndarray) -> None:
        """Adds tokens whose ratios are `ratio`, float [M]; see `likelihood_ratios`."""
        factors = 1.0 - STAKES[:, None] + STAKES[:, None] * ratio
        self._log += np.log(np.maximum(factors, _LEAST)).sum(axis=1)
        self.num_tokens += len(ratio)

    def state(self) -> dict[str, Any]:
        """Everything that `restore` needs, as JSON values."""
        return {"log": self._log.tolist(), "num_tokens": self.num_tokens}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken, bit for bit."""
        self._log = np.array(state["log"], np.float64)
        self.num_tokens = int(state["num_tokens"])


def likelihood_ratios(
    column: np.ndarray, target: np.ndarray, alternative: np.ndarray, eps0: float = 0.0
) -> np.ndarray:
    """Returns alternative over target at the tokens seen, normalized to a mean of at most 1.

    With eps0 > 0 the odds are clipped to [1/8, 8] and divided by their mean under the target plus
    eps0 times their spread, which bounds the mean under every law within total variation eps0.

    Args:
        column: int [M], the tokens' columns.
        target: float64 [M, C], laws under test.
        alternative: float64 [M, C], the fault's laws; nonnegative.
        eps0: Tolerance, total variation a token.

    Returns:
        float64 [M]; 1 where the two laws share no column, or the token had probability 0.
    """
    rows = np.arange(len(column))
    possible = target > 0.0
    odds = np.divide(alternative, target, out=np.ones_like(target), where=possible)
    if eps0 > 0.0:
        odds = np.clip(odds, 1.0 / MAX_ODDS, MAX_ODDS)
        mean = np.einsum("nc,nc->n", odds, target) + eps0 * np.ptp(odds, axis=1)
        return odds[rows, column] / mean
    mean = np.einsum("nc,nc->n", odds, target)
    is_bet = possible[rows, column] & (mean > _LEAST_SHARE)
    return np.where(is_bet, odds[rows, column] / np.maximum(mean, _LEAST_SHARE), 1.0)
