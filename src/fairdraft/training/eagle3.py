"""Training an EAGLE-3 head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from fairdraft.models import CausalLM
from fairdraft.speculators.heads import Eagle3Config, Eagle3Head, Head, default_feature_layers
from fairdraft.training.corpus import Corpus
from fairdraft.training.head import HeadShape, base_shape, settled, train_head
from fairdraft.training.settings import Settings


def new_head(target: CausalLM, shape: HeadShape, target_ids: Tensor, num_drafts: int) -> Head:
    """A head with random weights, sharing the target's embedding and output rows.

    Raises:
        ValueError: If the target's layers give no shape, or the asked one does not fit.
    """
    text: Any = target.model.config.get_text_config(decoder=True)
    layers = shape.feature_layers or default_feature_layers(text.num_hidden_layers)
    if max(layers) > text.num_hidden_layers:
        raise ValueError(
            f"feature layers {list(layers)}: {target.name!r} has the states 0 to "
            f"{text.num_hidden_layers}"
        )
    if shape.num_modules is not None:
        raise ValueError(f"num_modules = {shape.num_modules}: an EAGLE-3 head has one layer")
    base = base_shape(target, shape, len(target_ids), num_drafts)
    config = Eagle3Config(**base, feature_layers=tuple(layers))
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
