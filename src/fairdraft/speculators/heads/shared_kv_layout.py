"""The layout of heads that share their target's keys and values: our own.

The tensors have the names of `SharedKvHead`, config.json is a flat Llama configuration with what it
has no key for under `fairdraft`. The public assistants of Gemma 4 (`gemma4_assistant` in
transformers 5.24) have layers of Gemma's and an embedding of their own width; they are refused.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig

from fairdraft.speculators.heads.config import SharedKvConfig
from fairdraft.speculators.heads.layouts import (
    OWN_KEY,
    layer_sizes,
    plain_llama,
    read_layer,
    refuse_additions,
)

KIND = "shared_kv_mtp"
_PUBLIC = ("gemma4_assistant", "gemma4_unified_assistant")


def states_shared_kv(config: dict[str, Any]) -> bool:
    """Whether a configuration is one that `write_config` makes, or a public one that is refused."""
    own = config.get(OWN_KEY)
    is_ours = isinstance(own, dict) and own.get("head") == KIND
    return is_ours or config.get("model_type") in _PUBLIC


def read_config(config: dict[str, Any], name: str) -> SharedKvConfig:
    """Settles a head's shape from the content of config.json.

    Args:
        config: The content.
        name: What messages call the head.

    Raises:
        ValueError: If it is no such head, or has parts that are not supported.
    """
    if config.get("model_type") in _PUBLIC:
        raise ValueError(
            f"{name!r} is an assistant of Gemma 4 ({config['model_type']!r}); its layers are not "
            f"supported. Train a head: fairdraft train {KIND}"
        )
    own = config.get(OWN_KEY)
    if not isinstance(own, dict) or own.get("head") != KIND:
        raise ValueError(
            f"{name!r} is no head that shares its target's keys and values: its config.json has "
            f"no {OWN_KEY!r} that says so"
        )
    refuse_additions(config, config | {"num_hidden_layers": 1}, name)
    llama = read_layer(LlamaConfig, config)
    layers = own.get("memory_layers")
    if not isinstance(layers, list) or not all(isinstance(layer, int) for layer in layers):
        raise ValueError(f"{name!r} has memory_layers = {layers!r}; a list of layers is needed")
    if llama.num_hidden_layers != len(layers):
        raise ValueError(
            f"{name!r} has {llama.num_hidden_layers} layers and attends to the target's {layers}; "
            "each of its layers attends to one"
        )
    last = own.get("target_layers")
    if not isinstance(last, int) or last < 1:
        raise ValueError(
            f"{name!r} has target_layers = {last!r}; it reads the state after the last"
        )
    return SharedKvConfig(
        **layer_sizes(llama),
        draft_vocab_size=own.get("draft_vocab_size") or llama.vocab_size,
        target_hidden_size=llama.hidden_size,
        feature_layers=(last,),
        target_layers=last,
        num_trained_steps=own.get("num_trained_steps"),
        target_name=own.get("target_name"),
        memory_layers=tuple(layers),
    )


def write_config(config: SharedKvConfig, dtype: torch.dtype) -> dict[str, Any]:
    """The content of config.json."""
    return {
        "architectures": ["FairdraftSharedKvMtp"],
        **plain_llama(config),
        "num_hidden_layers": len(config.memory_layers),
        "torch_dtype": str(dtype).removeprefix("torch."),
        OWN_KEY: {
            "head": KIND,
            "memory_layers": list(config.memory_layers),
            "draft_vocab_size": config.draft_vocab_size,
            "target_layers": config.target_layers,
            "num_trained_steps": config.num_trained_steps,
            "target_name": config.target_name,
        },
    }
