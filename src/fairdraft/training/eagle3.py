"""Training an EAGLE-3 head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from fairdraft.models import CausalLM
from fairdraft.speculators.heads import Eagle3Config, Eagle3Head, Head
from fairdraft.training.corpus import Corpus
from fairdraft.training.head import HeadShape, base_shape, chosen_layers, settled, train_head
from fairdraft.training.settings import Settings


def new_head(target: CausalLM, shape: HeadShape, target_ids: Tensor, num_drafts: int) -> Head:
    """A head with random weights, sharing the target's embedding and output rows.

    Raises:
        ValueError: If the target's layers give no shape, or the asked one does not fit.
    """
    reason = "has one layer"
    shape.refuse("an EAGLE-3 head", num_modules=reason, num_layers=reason)
    base = base_shape(target, shape, len(target_ids), num_drafts)
    config = Eagle3Config(**base, feature_layers=chosen_layers(target, shape))
    return settled(Eagle3Head(config, target_ids), target)


def train_eagle3(
    target: CausalLM,
    corpus: Corpus,
    folder: Path,
    settings: Settings,
    shape: HeadShape | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Trains an EAGLE-3 head; all the rest is as in `train_head`."""
    return train_head("eagle3", new_head, target, corpus, folder, settings, shape, **options)
