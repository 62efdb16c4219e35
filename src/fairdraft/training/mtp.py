"""Training a head for multi-token prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from fairdraft.models import CausalLM
from fairdraft.speculators.heads import Head, MtpConfig, MtpHead
from fairdraft.training.corpus import Corpus
from fairdraft.training.head import HeadShape, base_shape, settled, train_head
from fairdraft.training.settings import Settings


def new_head(target: CausalLM, shape: HeadShape, target_ids: Tensor, num_drafts: int) -> Head:
    """A head with random weights, sharing the target's embedding and output rows.

    Raises:
        ValueError: If the target's layers give no shape, or the asked one does not fit.
    """
    shape.refuse("a head for multi-token prediction", num_layers="has modules of one layer")
    count = shape.num_modules or 1
    if count not in (1, num_drafts):
        raise ValueError(
            f"num_modules = {count} with {num_drafts} drafts a round: train one module that is "
            "applied again, or a module a draft"
        )
    text: Any = target.model.config.get_text_config(decoder=True)
    last = (text.num_hidden_layers,)
    if shape.feature_layers not in (None, last):
        raise ValueError(
            f"feature layers {list(shape.feature_layers or ())}: multi-token prediction reads the "
            f"last state, {last[0]}, alone"
        )
    base = base_shape(target, shape, len(target_ids), num_drafts)
    config = MtpConfig(**base, feature_layers=last, num_modules=count)
    return settled(MtpHead(config, target_ids), target)


def train_mtp(
    target: CausalLM,
    corpus: Corpus,
    folder: Path,
    settings: Settings,
    shape: HeadShape | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Trains modules for multi-token prediction; all the rest is as in `train_head`."""
    return train_head("mtp", new_head, target, corpus, folder, settings, shape, **options)
