"""Training a DFlash2 head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from fairdraft.models import CausalLM
from fairdraft.speculators.heads import Dflash2Config, Dflash2Head, Head
from fairdraft.training.corpus import Corpus
from fairdraft.training.dflash import block_shape
from fairdraft.training.head import HeadShape, settled, train_head
from fairdraft.training.settings import Settings

#: as published, unless told otherwise or there are fewer
SELECTOR_RANK, SELECTOR_TOP_K, CONV_GROUP_SIZE = 256, 16, 16


def new_head(target: CausalLM, shape: HeadShape, target_ids: Tensor, num_drafts: int) -> Head:
    """A head with random weights, sharing the target's embedding and output rows.

    Its convolutions change nothing at first, and all candidates' scores are 0.

    Raises:
        ValueError: If the target's layers give no shape, or the asked one does not fit.
    """
    shape.refuse(
        "a DFlash2 head",
        own=("selector_rank", "selector_top_k"),
        num_modules="has layers, not modules",
    )
    base = block_shape(target, shape, len(target_ids), num_drafts)
    width = base["hidden_size"]
    config = Dflash2Config(
        **base,
        conv_group_size=CONV_GROUP_SIZE if width % CONV_GROUP_SIZE == 0 else 1,
        selector_rank=shape.selector_rank or min(SELECTOR_RANK, width),
        selector_top_k=shape.selector_top_k or min(SELECTOR_TOP_K, len(target_ids)),
    )
    head = Dflash2Head(config, target_ids)
    settled(head, target)
    head.reset()
    return head


def train_dflash2(
    target: CausalLM,
    corpus: Corpus,
    folder: Path,
    settings: Settings,
    shape: HeadShape | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Trains a DFlash2 head; all the rest is as in `train_head`."""
    return train_head("dflash2", new_head, target, corpus, folder, settings, shape, **options)
