"""What a training minimizes, and the figures that it shows of it.

Axes: T drafts a round, C draft ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Losses:
    """Loss of a batch and what it is made of.

    Attributes:
        total: A scalar to minimize.
        cross_entropy: Of each draft, nats [T], detached.
        acceptance: Mean of sum_x min(p, q) of each draft [T], detached: the chance that it is
            accepted at temperature 1 if it is reached.
    """

    total: Tensor
    cross_entropy: Tensor
    acceptance: Tensor


def distances(probs: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of q with p in nats, and sum_x min(p, q), each [...].

    Args:
        probs: p over the draft ids, not renormalized [..., C].
        log_q: Of the draft ids [..., C].
    """
    entropy = -(probs * log_q).sum(-1)
    return entropy, torch.minimum(probs, log_q.exp()).sum(-1)
