"""What a training minimizes, and the figures that it shows of it.

Axes: T drafts a round, C draft ids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from fairdraft.speculators.heads import Head
from fairdraft.training.settings import Settings

H = TypeVar("H", bound=Head)


@dataclass(frozen=True)
class Losses:
    """Loss of a batch and what it is made of.

    Attributes:
        total: A scalar to minimize. All three are means over what counts, and 0 if nothing does.
        cross_entropy: Of each draft, nats [T], detached.
        acceptance: Mean of sum_x min(p, q) of each draft [T], detached: the chance that it is
            accepted at temperature 1 if it is reached.
    """

    total: Tensor
    cross_entropy: Tensor
    acceptance: Tensor


class BatchLosses(Generic[H]):
    """Losses of a head over batches, which a subclass is called with.

    Args:
        head: In training mode, sharing the target's matrices.
        settings: Of the training.
        losses: Computes them for one batch.
        num_positions: Positions whose rotations it takes.
        compiled: Compiles it.
    """

    def __init__(
        self,
        head: H,
        settings: Settings,
        losses: Callable[..., Losses],
        num_positions: int,
        *,
        compiled: bool,
    ) -> None:
        self._head, self._settings = head, settings
        positions = torch.arange(num_positions, device=head.first_weight.device)
        self._angles = head.angles(positions[None])
        self._losses = torch.compile(losses, dynamic=False) if compiled else losses

    def _of(self, *inputs: Any, **options: Any) -> Losses:
        """Losses of a batch: the head before its inputs, rotations and weights after them."""
        settings = self._settings
        weights = {"decay": settings.decay, "tv_weight": settings.tv_weight}
        return self._losses(self._head, *inputs, self._angles, **options, **weights)


def mean_of(values: Tensor, counted: Tensor | None) -> Tensor:
    """Mean over the first two axes, of the places that count; others get no gradient.

    Args:
        values: Figures [B, L, ...].
        counted: Which of them count, bool of that shape; None for all. Of none the mean is 0.
    """
    if counted is None:
        return values.mean((0, 1))
    return torch.where(counted, values, 0.0).sum((0, 1)) / counted.sum((0, 1)).clamp(min=1)


def distances(probs: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of q with p in nats, and sum_x min(p, q), each [...].

    Args:
        probs: p over the draft ids, not renormalized [..., C].
        log_q: Of the draft ids [..., C].
    """
    entropy = -(probs * log_q).sum(-1)
    return entropy, torch.minimum(probs, log_q.exp()).sum(-1)
