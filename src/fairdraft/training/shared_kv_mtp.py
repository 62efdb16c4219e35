"""Training a head that shares its target's keys and values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from fairdraft.models import CausalLM
from fairdraft.speculators.heads import (
    Head,
    SharedKvConfig,
    SharedKvHead,
    full_layers,
    key_shape,
    rotations,
)
from fairdraft.training.corpus import Corpus
from fairdraft.training.head import HeadShape, base_shape, settled, train_head
from fairdraft.training.settings import Settings

KIND = "a head over its target's keys"


def new_head(target: CausalLM, shape: HeadShape, target_ids: Tensor, num_drafts: int) -> Head:
    """A head with random weights, sharing the target's embedding and output rows.

    Raises:
        ValueError: If the target keeps no keys that it could attend to, or the shape does not fit.
    """
    shape.refuse(
        KIND,
        own=("memory_layers",),
        num_modules="has layers, not modules",
        num_layers="has a layer for each of its memory_layers",
        num_key_value_heads="has the target's",
    )
    text: Any = target.model.config.get_text_config(decoder=True)
    last = (text.num_hidden_layers,)
    if shape.feature_layers not in (None, last):
        raise ValueError(
            f"feature layers {list(shape.feature_layers or ())}: {KIND} reads the last state, "
            f"{last[0]}, alone"
        )
    known = full_layers(target)
    layers = shape.memory_layers or tuple(known[-1:])
    if not layers or not set(layers) <= set(known):
        raise ValueError(
            f"memory layers {list(layers)}: layers of {target.name!r} that keep every token are "
            f"{known}"
        )
    shapes = {key_shape(target, layer) for layer in layers}
    if len(shapes) > 1:
        raise ValueError(
            f"memory layers {list(layers)}: their key/value heads differ, {sorted(shapes)} by "
            "number and size; choose layers of one kind"
        )
    [(num_groups, head_dim)] = shapes
    base = base_shape(target, shape, len(target_ids), num_drafts) | {
        "num_key_value_heads": num_groups,
        "head_dim": head_dim,
        "rope_parameters": rotations(target),
    }
    config = SharedKvConfig(**base, feature_layers=last, memory_layers=tuple(layers))
    return settled(SharedKvHead(config, target_ids), target)


def train_shared_kv_mtp(
    target: CausalLM,
    corpus: Corpus,
    folder: Path,
    settings: Settings,
    shape: HeadShape | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Trains a head that shares its target's keys; all the rest is as in `train_head`."""
    return train_head("shared_kv_mtp", new_head, target, corpus, folder, settings, shape, **options)
