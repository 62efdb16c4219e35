"""How far tokens can be from their target: bounds of a partition's averaged total variation.

Let D = 1/2 sum over the m cells of |mean over tokens of (true - target probability)|. D is at most
the mean total variation a token, so a bound of D speaks of the declared cells only. For a set A of
cells, hits(A) less the true probabilities' sum is a martingale whose steps lie within a range of
length 1. Mixing Hoeffding's exponential supermartingale over its parameter (Robbins; a normal
prior of weight `rho`) gives, at all n at once with probability 1 - d,

    |hits(A) - true(A)| <= sqrt((n + rho) / 2 (ln(1 / d) + 1/2 ln(1 + n / rho))).

The m cells have 2^(m - 1) - 1 sets up to complements. So with probability 1 - d, at every n,
|D - tv| <= w(n): one may look after every batch and stop on what one sees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["Bounds", "bounds", "equivalence_width", "expected_distance", "mixture_weight"]


@dataclass(frozen=True)
class Bounds:
    """Deviation of observed from expected counts.

    Attributes:
        tv: Half the sum of |observed - expected| over n; above D on average.
        floor: What a correct sampler shows at this n.
        lower: Lower bound of D, at least 0.
        upper: Upper bound of D, at most 1; 1 where nothing was seen.
    """

    tv: float
    floor: float
    lower: float
    upper: float

    @property
    def debiased(self) -> float:
        """The deviation less the floor, at least 0; for display."""
        return max(0.0, self.tv - self.floor)


def mixture_weight(eps: float) -> float:
    """The prior's weight that makes bounds tight near the n at which they reach `eps`."""
    return 0.5 / eps**2


def equivalence_width(num_tokens: float, num_cells: int, delta: float, rho: float) -> float:
    """Returns w(n), the half-width that holds at all n at once with probability 1 - delta.

    Args:
        num_tokens: n > 0.
        num_cells: m >= 2.
        delta: Probability that the bound is ever wrong.
        rho: Weight of the prior, set before the data; see `mixture_weight`.
    """
    log_sets = math.log(2.0 ** (num_cells - 1) - 1.0) if num_cells > 2 else 0.0
    level = log_sets + math.log(1.0 / delta) + 0.5 * math.log1p(num_tokens / rho)
    return math.sqrt((num_tokens + rho) * level / 2.0) / num_tokens


def bounds(observed: np.ndarray, expected: np.ndarray, delta: float, rho: float) -> Bounds:
    """Bounds D of one family.

    Args:
        observed: int [m], hits.
        expected: float [m], sums of target probabilities.
        delta: Probability that either bound is ever wrong.
        rho: Weight of the prior.
    """
    num_tokens = int(np.sum(observed))
    if num_tokens == 0:
        return Bounds(0.0, 0.0, 0.0, 1.0)
    tv = 0.5 * float(np.abs(observed - expected).sum()) / num_tokens
    probs = np.clip(expected / num_tokens, 0.0, 1.0)
    width = equivalence_width(num_tokens, len(observed), delta, rho)
    floor = expected_distance(0.0, probs, num_tokens)
    return Bounds(tv, floor, max(0.0, tv - width), min(1.0, tv + width))


def expected_distance(tv: float, probs: np.ndarray, num_tokens: float) -> float:
    """Returns about the distance that n tokens show if the true one is `tv`, spread evenly.

    The mean of |b + s Z| is summed over cells, b = 2 tv / m, s^2 = p (1 - p) / n, each s term
    capped by the cell's probability. With tv = 0 this is the floor of a correct sampler.
    """
    shift = 2.0 * tv / len(probs)
    total = 0.0
    for prob in probs:
        spread = math.sqrt(prob * (1.0 - prob) / num_tokens)
        if spread == 0.0:
            total += shift
            continue
        z = shift / spread
        noise = 2.0 * spread * math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        total += min(noise, 2.0 * prob) + shift * math.erf(z / math.sqrt(2.0))
    return 0.5 * total
