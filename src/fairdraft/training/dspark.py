"""Training a DSpark head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from fairdraft.models import CausalLM
from fairdraft.speculators.heads import DsparkConfig, DsparkHead, Head
from fairdraft.training.corpus import Corpus
from fairdraft.training.dflash import block_shape
from fairdraft.training.head import HeadShape, settled, train_head
from fairdraft.training.settings import Settings

#: as published, unless told otherwise
MARKOV_RANK = 256


def new_head(target: CausalLM, shape: HeadShape, target_ids: Tensor, num_drafts: int) -> Head:
    """A head with random weights, sharing the target's embedding and output rows.

    Every query drafts, the one at the last decided token too, as published.

    Raises:
        ValueError: If the target's layers give no shape, or the asked one does not fit.
    """
    shape.refuse("a DSpark head", own=("markov_rank",), num_modules="has layers, not modules")
    config = DsparkConfig(
        **block_shape(target, shape, len(target_ids), num_drafts),
        anchor_first=True,
        markov_rank=shape.markov_rank or MARKOV_RANK,
    )
    return settled(DsparkHead(config, target_ids), target)


def train_dspark(
    target: CausalLM,
    corpus: Corpus,
    folder: Path,
    settings: Settings,
    shape: HeadShape | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Trains a DSpark head; all the rest is as in `train_head`."""
    return train_head("dspark", new_head, target, corpus, folder, settings, shape, **options)
