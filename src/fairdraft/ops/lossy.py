"""The lossy rules as formulas: their text does not follow the target's law, and they say so.

`Typical`: Cai et al. 2024 (Medusa, arXiv 2401.10774, section 2.3.1). `Threshold`: SGLang's
acceptance thresholds. `Synthetic`: drafts stand at given rates, for benchmarks of everything else.
p is the target's law and q the draft's. Each rule is a value of its own, never a name, so that none
is chosen by a word alone. Axes: K drafts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fairdraft.ops.arithmetic import FIXED_POINT, RowWeights, as_tiles, exact_sums, exp2_weights

#: what follows a rejected draft: p itself, p without the draft, or max(p - q, 0)
WHOLE, UNMATCHED, RESIDUAL = range(3)


@dataclass(frozen=True)
class Typical:
    """A draft x stands iff p(x) > min(epsilon, delta exp(-H(p))); a rejected one is redrawn from p.

    H is the entropy in nats. Given a path, the token at a row follows q on A and
    (1 - q(A)) p everywhere, A the set of drafts that stand there.

    Attributes:
        posterior_threshold: epsilon, in (0, 1].
        posterior_alpha: delta, above 0.
    """

    posterior_threshold: float = 0.09
    posterior_alpha: float = 0.3

    name = "typical"

    def __post_init__(self) -> None:
        _check("posterior_threshold", self.posterior_threshold, 1.0)
        _check("posterior_alpha", self.posterior_alpha, math.inf)

    def __str__(self) -> str:
        return f"{self.name} (lossy)"


@dataclass(frozen=True)
class Threshold:
    """A draft x stands if p(x) >= single, else with chance min(1, p(x) / acc).

    q is not read: a rejected draft is replaced from p without it, as a point mass is. With both
    thresholds at 1 that is exact.

    Attributes:
        accept_threshold_single: In (0, 1]; SGLang's --speculative-accept-threshold-single.
        accept_threshold_acc: In (0, 1]; SGLang's --speculative-accept-threshold-acc.
    """

    accept_threshold_single: float = 1.0
    accept_threshold_acc: float = 1.0

    name = "threshold"

    def __post_init__(self) -> None:
        _check("accept_threshold_single", self.accept_threshold_single, 1.0)
        _check("accept_threshold_acc", self.accept_threshold_acc, 1.0)

    def __str__(self) -> str:
        return f"{self.name} (lossy)"


@dataclass(frozen=True)
class Synthetic:
    """Draft i stands with a chance that looks at no law; rejected, it is replaced as under `token`.

    Greedy rows too. A draft that the target excludes (-inf, or forbidden) never stands.

    Attributes:
        rates: Chance that drafts 1 to i all stand, for i = 1 to K; never rising, in [0, 1].
    """

    rates: tuple[float, ...]

    name = "synthetic"

    def __post_init__(self) -> None:
        try:
            rates = tuple(float(rate) for rate in self.rates)
        except (TypeError, ValueError):
            raise ValueError(f"rates = {self.rates!r} must be numbers, one a draft") from None
        object.__setattr__(self, "rates", rates)
        if not rates:
            raise ValueError("rates is empty: give one a draft")
        for before, rate in zip((1.0, *rates), rates, strict=False):
            if not 0.0 <= rate <= before:
                raise ValueError(
                    f"rates = {list(rates)} must be in [0, 1] and never rise: each is the chance "
                    "that this draft and all before it stand"
                )

    @classmethod
    def of_length(cls, length: float, num_drafts: int) -> Synthetic:
        """Rates 1, .., 1, a fraction, 0, .. whose rounds emit `length` tokens on average."""
        if not 1.0 <= length <= num_drafts + 1:
            raise ValueError(
                f"length = {length!r} must be from 1 to {num_drafts + 1}, the most that "
                f"{num_drafts} drafts and one token more can be"
            )
        return cls(tuple(min(max(length - 1.0 - i, 0.0), 1.0) for i in range(num_drafts)))

    def __str__(self) -> str:
        return f"{self.name} (lossy)"


LossyRule = Typical | Threshold | Synthetic
LOSSY_RULES: dict[str, type[LossyRule]] = {
    rule.name: rule for rule in (Typical, Threshold, Synthetic)
}


def lossy_name(rule: Any) -> str | None:
    """What outputs say of a rule: its name if it is lossy, else None."""
    return rule.name if isinstance(rule, LossyRule) else None


class Numbers(NamedTuple):
    """A rule as numbers, for the walks.

    Attributes:
        kind: Its place in `LOSSY_RULES`.
        values: epsilon and delta, the two thresholds, or the chance of each draft given that the
            walk reached it [K].
        replaced: Whence a sampled draft is replaced; a point mass is unmatched where this says
            residual.
    """

    kind: int
    values: np.ndarray
    replaced: int

    @classmethod
    def of(cls, rule: LossyRule, num_drafts: int) -> Numbers:
        """The numbers of a rule for K drafts.

        Raises:
            ValueError: If it has no rate for one of them.
        """
        if isinstance(rule, Typical):
            values = [rule.posterior_threshold, rule.posterior_alpha]
            return cls(0, np.array(values, np.float64), WHOLE)
        if isinstance(rule, Threshold):
            values = [rule.accept_threshold_single, rule.accept_threshold_acc]
            return cls(1, np.array(values, np.float64), UNMATCHED)
        if len(rule.rates) < num_drafts:
            raise ValueError(
                f"rates = {list(rule.rates)} are {len(rule.rates)} for {num_drafts} drafts; give "
                "one a draft"
            )
        pairs = zip((1.0, *rule.rates), rule.rates, strict=False)
        chances = [rate / before if before > 0 else 0.0 for before, rate in pairs]
        return cls(2, np.array(chances[:num_drafts], np.float64), RESIDUAL)


def chance(kind: int, values: np.ndarray, r: int, p_x: float, certainty: float) -> float:
    """The chance that draft r + 1 stands, if the target does not exclude it; compiled as it is.

    `certainty` is exp(-H(p)), read by `Typical` alone.
    """
    if kind == 0:
        return 1.0 if p_x > min(values[0], values[1] * certainty) else 0.0
    if kind == 1:
        return 1.0 if p_x >= values[0] else min(1.0, p_x / values[1])
    return values[r]


def certainty(row: np.ndarray, c: np.float32, weights: RowWeights) -> float:
    """exp(-H(p)) of a row at c = log2(e) / T, to about 1e-6; 1 for a greedy row.

    With p_j = p_max 2^-((M - l_j) c) it is p_max 2^-(sum of p_j (M - l_j) c): no logarithm, and one
    power of two, by the portable polynomial.
    """
    if c == 0:
        return 1.0
    spread = row_spread(tile_spreads(row, c, weights), c, weights)
    best = FIXED_POINT / np.float64(weights.total)
    return float(exp2_weights(np.array([-spread], np.float32), np.float32(1))[0]) * float(best)


def tile_spreads(row: np.ndarray, c: np.float32, weights: RowWeights) -> np.ndarray:
    """Sums of w_j (m - l_j) c over tiles, float32 [T], m a tile's maximum: free of order.

    No term is above 1 / (e ln 2), so they are summed as weights are.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        lead = (weights.tile_max[:, None] - as_tiles(row, -np.inf)) * c
        terms = np.where(weights.weights > 0, weights.weights * lead, np.float32(0))
    return exact_sums(terms)


def row_spread(spreads: np.ndarray, c: np.float32, weights: RowWeights) -> float:
    """Sum of p_j (M - l_j) c from those of its tiles, summed as integers: free of order."""
    scale = weights.tile_scale.astype(np.float64)
    is_in = scale > 0
    lead = np.where(is_in, weights.row_max - weights.tile_max, 0).astype(np.float64) * np.float64(c)
    bits = scale * (spreads.astype(np.float64) + weights.tile_sum.astype(np.float64) * lead)
    units = (np.where(is_in, bits, 0.0) * FIXED_POINT).astype(np.int64).sum()
    return float(np.float64(units) / np.float64(weights.total))


def _check(name: str, value: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value <= most:
        upper = "a finite number" if most == math.inf else f"at most {most:g}"
        raise ValueError(f"{name} = {value!r} must be above 0 and {upper}")
    if math.isinf(value):
        raise ValueError(f"{name} = {value!r} must be finite")
