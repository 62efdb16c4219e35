"""False discovery control over e-values."""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["e_bh"]


def e_bh(log_e: Mapping[str, float], alpha: float) -> set[str]:
    """Returns the hypotheses that e-BH rejects; the expected share of false ones is <= alpha.

    The k largest are rejected for the largest k with e_(k) >= K / (k alpha), whatever their
    dependence (Wang and Ramdas, 2022). E-values are those at one stopping time: running maxima
    would lose the control.

    Args:
        log_e: Natural logs of e-values by name.
        alpha: Level, in (0, 1).
    """
    ranked = sorted(log_e, key=lambda name: -log_e[name])
    rejected: set[str] = set()
    for count, name in enumerate(ranked, start=1):
        if log_e[name] >= math.log(len(log_e) / (count * alpha)):
            rejected = set(ranked[:count])
    return rejected
