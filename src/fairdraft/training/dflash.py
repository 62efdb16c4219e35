"""Training a DFlash head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from fairdraft.models import CausalLM
from fairdraft.speculators.heads import DflashConfig, DflashHead, Head
from fairdraft.training.corpus import Corpus
from fairdraft.training.head import HeadShape, base_shape, chosen_layers, settled, train_head
from fairdraft.training.settings import Settings


def new_head(target: CausalLM, shape: HeadShape, target_ids: Tensor, num_drafts: int) -> Head:
    """A head with random weights, sharing the target's embedding and output rows.

    Raises:
        ValueError: If the target's layers give no shape, or the asked one does not fit.
    """
    shape.refuse("a DFlash head", num_modules="has layers, not modules")
    config = DflashConfig(**block_shape(target, shape, len(target_ids), num_drafts))
    return settled(DflashHead(config, target_ids), target)


def block_shape(
    target: CausalLM, shape: HeadShape, num_ids: int, num_drafts: int
) -> dict[str, Any]:
    """What every head of blocks takes from its target and shape."""
    base = base_shape(target, shape, num_ids, num_drafts)
    layers = {"feature_layers": chosen_layers(target, shape), "num_layers": shape.num_layers or 1}
    return base | layers


def train_dflash(
    target: CausalLM,
    corpus: Corpus,
    folder: Path,
    settings: Settings,
    shape: HeadShape | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Trains a DFlash head; all the rest is as in `train_head`."""
    return train_head("dflash", new_head, target, corpus, folder, settings, shape, **options)
