"""A law over cells and counts of them: checks, and partitions that group rare cells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

SUM_TOLERANCE = 1e-9


def checked_probs(probs: ArrayLike) -> np.ndarray:
    """Returns the probabilities flat, in float64, scaled to sum to 1 to the last bit.

    Raises:
        ValueError: If one is negative or not finite, or their sum is not 1 within 1e-9.
    """
    law = np.asarray(probs, dtype=np.float64).reshape(-1)
    if law.size == 0 or not np.isfinite(law).all() or (law < 0.0).any():
        raise ValueError("probabilities must be finite and nonnegative, and there must be some")
    total = law.sum()
    if abs(total - 1.0) > SUM_TOLERANCE:
        raise ValueError(f"probabilities sum to {total!r}, not to 1")
    return law / total


def checked_counts(counts: ArrayLike, law: np.ndarray) -> np.ndarray:
    """Returns the counts flat, in float64, one for each cell of the law.

    Raises:
        ValueError: If their number differs from the law's, or one is negative or no integer.
    """
    observed = np.asarray(counts).reshape(-1).astype(np.float64)
    if observed.shape != law.shape:
        raise ValueError(f"{observed.size} counts for a law of {law.size} cells")
    if (observed < 0.0).any() or (observed != np.floor(observed)).any():
        raise ValueError("counts must be nonnegative integers")
    if observed.sum() == 0.0:
        raise ValueError("no trial was counted")
    return observed


def impossible_cells(observed: np.ndarray, law: np.ndarray) -> list[int]:
    """Returns the cells that were observed although their probability is zero."""
    return [int(cell) for cell in np.flatnonzero((law == 0.0) & (observed > 0.0))]


@dataclass(frozen=True)
class Partition:
    """A grouping of cells, declared before the counts are seen.

    Attributes:
        labels: int64, one group number for each cell, 0..num_groups-1.
    """

    labels: np.ndarray

    @property
    def num_groups(self) -> int:
        return int(self.labels.max()) + 1

    def apply(self, values: ArrayLike) -> np.ndarray:
        """Returns the sums over each group of counts or probabilities, float64 [num_groups].

        Raises:
            ValueError: If there is not one value for each cell.
        """
        flat = np.asarray(values, dtype=np.float64).reshape(-1)
        if flat.size != self.labels.size:
            raise ValueError(f"{flat.size} values for a partition of {self.labels.size} cells")
        return np.bincount(self.labels, weights=flat, minlength=self.num_groups)

    @classmethod
    def by_score(cls, probs: ArrayLike, score: ArrayLike, num_groups: int = 8) -> Partition:
        """Cuts the cells, ordered by score, into groups of about equal probability.

        Score log(q / p) gives the octiles that see draft-residual coupling best. Cells of
        probability zero form the last group, so that a hit there still shows.

        Raises:
            ValueError: If `num_groups` < 2 or the shapes differ.
        """
        law = checked_probs(probs)
        order_by = np.asarray(score, dtype=np.float64).reshape(-1)
        if num_groups < 2 or order_by.shape != law.shape:
            raise ValueError(f"{order_by.size} scores and {num_groups} groups for {law.size} cells")
        order = np.argsort(order_by, kind="stable")
        middle = np.cumsum(law[order]) - 0.5 * law[order]
        labels = np.empty(law.size, dtype=np.int64)
        labels[order] = np.minimum((middle * num_groups).astype(np.int64), num_groups - 1)
        return cls._compact(labels, law)

    @classmethod
    def by_mass(cls, probs: ArrayLike, min_prob: float) -> Partition:
        """Keeps each cell of at least `min_prob` and packs the rarer ones, in order, into groups.

        Every group reaches `min_prob`, the last one by joining its neighbor; cells of probability
        zero form a group of their own.

        Raises:
            ValueError: If `min_prob` is outside (0, 1].
        """
        if not 0.0 < min_prob <= 1.0:
            raise ValueError(f"min_prob is a probability in (0, 1], got {min_prob}")
        law = checked_probs(probs)
        labels = np.arange(law.size, dtype=np.int64)
        rare = np.flatnonzero((law > 0.0) & (law < min_prob))
        group, mass, groups = law.size, 0.0, []
        for cell in rare:
            labels[cell] = group
            mass += law[cell]
            if mass >= min_prob:
                groups.append(group)
                group, mass = group + 1, 0.0
        if mass > 0.0:
            common = np.flatnonzero(law >= min_prob)
            neighbor = groups[-1] if groups else int(common[np.argmin(law[common])])
            labels[labels == group] = neighbor
        return cls._compact(labels, law)

    @classmethod
    def _compact(cls, labels: np.ndarray, law: np.ndarray) -> Partition:
        labels = np.where(law > 0.0, labels, labels.max() + 1)
        return cls(np.unique(labels, return_inverse=True)[1].reshape(-1).astype(np.int64))
