"""Which of a target's keys and values a head may attend to, and whether they fit it.

Axes: G key/value heads, D head size.
"""

from __future__ import annotations

from typing import Any

import torch

from fairdraft.models import CausalLM
from fairdraft.models.cache import kept_layers
from fairdraft.speculators.heads.config import ROPE_TYPES, SharedKvConfig


def full_layers(target: CausalLM) -> list[int]:
    """Layers of a target that attend to every earlier token, from 0."""
    text = target.text_config
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        kinds = [next(iter(target.kinds))] * text.num_hidden_layers
    return [i for i, kind in enumerate(kinds) if target.kinds[kind].name == "full"]


@torch.inference_mode()
def key_shape(target: CausalLM, layer: int) -> tuple[int, int]:
    """G and D of what a layer keeps of a token, by running one.

    Raises:
        ValueError: If the layer keeps nothing of its own, or values of another size.
    """
    network: Any = target.model
    ids = torch.zeros(1, 1, dtype=torch.int64, device=target.device)
    kept = kept_layers(network(input_ids=ids, use_cache=True))
    keys = kept[layer].keys if layer < len(kept) else None
    if keys is None or keys.shape != kept[layer].values.shape:
        raise ValueError(
            f"layer {layer} of {target.name!r} keeps no keys and values of one size, which a head "
            "could attend to; choose another layer"
        )
    return keys.shape[1], keys.shape[3]


def rotations(target: CausalLM) -> dict[str, Any]:
    """The target's rotations, as `HeadConfig` has them.

    Raises:
        ValueError: If a head cannot turn its queries like the target turns its keys.
    """
    text = target.text_config
    rope = dict(getattr(text, "rope_parameters", None) or {})
    kind = rope.get("rope_type", "default")
    if kind not in ROPE_TYPES or "rope_theta" not in rope or "partial_rotary_factor" in rope:
        raise ValueError(
            f"{target.name!r} turns its keys in a way that a head does not follow: its "
            f"rope_parameters are {rope}"
        )
    return rope


def check_keys(config: SharedKvConfig, target: CausalLM, name: str) -> None:
    """Refuses a head that would attend to what its target does not keep.

    Raises:
        ValueError: If layers, sizes or rotations differ.
    """
    known = full_layers(target)
    missing = [layer for layer in config.memory_layers if layer not in known]
    if missing:
        raise ValueError(
            f"{name!r} attends to layer {missing[0]} of its target; layers of {target.name!r} that "
            f"keep every token are {known}"
        )
    for layer in config.memory_layers:
        found = key_shape(target, layer)
        if found != (config.num_key_value_heads, config.head_dim):
            raise ValueError(
                f"{name!r} attends to {config.num_key_value_heads} key/value heads of "
                f"{config.head_dim}; layer {layer} of {target.name!r} has {found[0]} of {found[1]}"
            )
    turned = rotations(target)
    if dict(config.rope_parameters) != turned:
        raise ValueError(
            f"{name!r} turns its queries by {dict(config.rope_parameters)}, and {target.name!r} "
            f"its keys by {turned}; it was made for another target"
        )
