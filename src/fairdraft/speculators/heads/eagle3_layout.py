"""The two public layouts of EAGLE-3 heads, read into one form.

`speculators`: configuration under `transformer_layer_config` and `speculators_config`, the layer
named `layers.0` (vllm-project/speculators, src/speculators/models/eagle3/config.py at 11ecdd3 and
core.py at 033c87f). `eagle`: a flat Llama configuration with `draft_vocab_size`, the layer named
`midlayer` (SafeAILab/EAGLE, eagle/model/cnets.py at 148042c; sgl-project/SpecForge writes the same,
configs/llama3-70B-ealge3.json at 82b62f6). Both store `d2t[i] = target id - i` and a mask `t2d`.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from transformers import LlamaConfig

from fairdraft.speculators.heads.config import Eagle3Config, default_feature_layers
from fairdraft.speculators.heads.layouts import (
    OWN_KEY,
    check_fused,
    kind_stated,
    layer_sizes,
    plain_llama,
    read_layer,
    refuse_additions,
    speculators_header,
    verifier_name,
    without_copies,
)

Layout = Literal["speculators", "eagle"]
_LAYER_NAMES: dict[Layout, str] = {"speculators": "layers.0.", "eagle": "midlayer."}


def layout_of(config: dict[str, Any], name: str) -> Layout:
    """Tells which layout a configuration is in.

    Raises:
        ValueError: If it is neither, or a head of another kind.
    """
    if "speculators_config" in config or "speculators_model_type" in config:
        kind = kind_stated(config)
        if kind != "eagle3":
            raise ValueError(f"{name!r} is a speculator of type {kind!r}, not 'eagle3'")
        return "speculators"
    if "draft_vocab_size" in config or "Eagle3" in "".join(config.get("architectures") or []):
        return "eagle"
    if "num_nextn_predict_layers" in config:
        raise ValueError(
            f"{name!r} holds modules for multi-token prediction, not an EAGLE-3 head; they go to "
            "method 'mtp'"
        )
    raise ValueError(
        f"{name!r} is no EAGLE-3 head: its config.json has neither 'speculators_config' nor "
        "'draft_vocab_size'. EAGLE-1 and EAGLE-2 heads are laid out otherwise and not read; a "
        "draft model of its own goes to method 'draft_model'"
    )


def states_eagle3(config: dict[str, Any]) -> bool:
    """Whether a configuration is one of an EAGLE-3 head, in either layout."""
    try:
        layout_of(config, "")
    except ValueError:
        return False
    return True


def read_config(config: dict[str, Any], target_layers: int | None, name: str) -> Eagle3Config:
    """Settles a head's shape from the content of config.json.

    Args:
        config: The content.
        target_layers: Layers of the target, for heads that do not say which states they read;
            None if they are not known.
        name: What messages call the head.

    Raises:
        ValueError: If it is no such head, or has parts that are not supported.
    """
    is_flat = layout_of(config, name) == "eagle"
    inner = config if is_flat else config["transformer_layer_config"]
    refuse_additions(config, inner, name)
    llama = read_layer(LlamaConfig, inner)
    layers = config.get("eagle_aux_hidden_state_layer_ids")
    layers = layers or (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    own = config.get(OWN_KEY) or {}
    if not layers:
        if target_layers is None:
            raise ValueError(
                f"{name!r} does not say which states it reads, and the usual ones follow from "
                "the number of the target's layers: pass it"
            )
        layers = default_feature_layers(target_layers)
    return Eagle3Config(
        **layer_sizes(llama),
        draft_vocab_size=config.get("draft_vocab_size") or llama.vocab_size,
        target_hidden_size=config.get("target_hidden_size") or llama.hidden_size,
        feature_layers=tuple(layers),
        norm_before_residual=bool(config.get("norm_before_residual", False)),
        target_layers=own.get("target_layers"),
        num_trained_steps=own.get("num_trained_steps"),
        target_name=verifier_name(config),
    )


def read_tensors(
    tensors: dict[str, Tensor], layout: Layout, config: Eagle3Config, name: str
) -> dict[str, Tensor]:
    """Renames tensors to ours, which are those of the `speculators` layout.

    Raises:
        ValueError: As `check_fused`.
    """
    check_fused(tensors, config, name)
    theirs, ours = _LAYER_NAMES[layout], _LAYER_NAMES["speculators"]
    return {
        ours + key.removeprefix(theirs) if key.startswith(theirs) else key: tensor
        for key, tensor in without_copies(tensors).items()
    }


def write_config(config: Eagle3Config, layout: Layout, dtype: torch.dtype) -> dict[str, Any]:
    """The content of config.json in a layout."""
    llama = plain_llama(config)
    own = {
        "target_layers": config.target_layers,
        "num_trained_steps": config.num_trained_steps,
    }
    shared: dict[str, Any] = {
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(config.feature_layers),
        "norm_before_residual": config.norm_before_residual,
        "torch_dtype": str(dtype).removeprefix("torch."),
        OWN_KEY: own,
    }
    if layout == "eagle":
        return {"architectures": ["LlamaForCausalLMEagle3"], **llama, **shared}
    return {
        "architectures": ["Eagle3Speculator"],
        **shared,
        **speculators_header("eagle3", config.num_trained_steps or 5, config.target_name),
        "transformer_layer_config": llama,
    }


def write_tensors(tensors: dict[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """Renames our tensors to a layout's."""
    ours, theirs = _LAYER_NAMES["speculators"], _LAYER_NAMES[layout]
    return {
        theirs + name.removeprefix(ours) if name.startswith(ours) else name: tensor
        for name, tensor in tensors.items()
    }
