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
from transformers import LlamaConfig, Qwen3Config

from fairdraft.speculators.heads.config import Eagle3Config, HeadConfig, default_feature_layers

Layout = Literal["speculators", "eagle"]
#: where we keep what neither layout has a key for
OWN_KEY = "fairdraft"
_LAYER_NAMES: dict[Layout, str] = {"speculators": "layers.0.", "eagle": "midlayer."}
# copies of the target's weights that trainers leave in a checkpoint
_NEEDLESS = ("verifier_lm_head.weight", "verifier_norm.weight")


def layout_of(config: dict[str, Any], name: str) -> Layout:
    """Tells which layout a configuration is in.

    Raises:
        ValueError: If it is neither, or a head of another kind.
    """
    if "speculators_config" in config or "speculators_model_type" in config:
        stated = config.get("speculators_config") or {}
        kind = config.get("speculators_model_type") or stated.get("algorithm")
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


def read_config(
    config: dict[str, Any], tensors: dict[str, Tensor], target_layers: int | None, name: str
) -> Eagle3Config:
    """Settles a head's shape from its configuration and tensors.

    Args:
        config: The content of config.json.
        tensors: Of the checkpoint, in our names (see `read_tensors`).
        target_layers: Layers of the target, for heads that do not say which states they read;
            None if they are not known.
        name: What messages call the head.

    Raises:
        ValueError: If the head has parts that are not supported, or its shapes disagree.
    """
    layout = layout_of(config, name)
    inner = config["transformer_layer_config"] if layout == "speculators" else config
    refuse_additions(config, inner, name)
    stated = {key: value for key, value in inner.items() if key not in ("architectures", "dtype")}
    llama = LlamaConfig(**stated)
    if "fc.weight" not in tensors:
        raise ValueError(f"{name!r} lacks fc.weight, which fuses the target's states")
    fused = tensors["fc.weight"].shape[1]
    target_hidden = config.get("target_hidden_size") or llama.hidden_size
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
    if fused != len(layers) * target_hidden:
        raise ValueError(
            f"{name!r}: fc.weight reads {fused} numbers, but {len(layers)} states of "
            f"{target_hidden} are stated"
        )
    verifier = (config.get("speculators_config") or {}).get("verifier") or {}
    return Eagle3Config(
        **llama_sizes(llama),
        draft_vocab_size=config.get("draft_vocab_size") or llama.vocab_size,
        target_hidden_size=target_hidden,
        feature_layers=tuple(layers),
        norm_before_residual=bool(config.get("norm_before_residual", False)),
        target_layers=own.get("target_layers"),
        num_trained_steps=own.get("num_trained_steps"),
        target_name=verifier.get("name_or_path"),
    )


def read_tensors(tensors: dict[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """Renames tensors to ours, which are those of the `speculators` layout."""
    theirs, ours = _LAYER_NAMES[layout], _LAYER_NAMES["speculators"]
    return {
        ours + name.removeprefix(theirs) if name.startswith(theirs) else name: tensor
        for name, tensor in tensors.items()
        if name not in _NEEDLESS
    }


def target_ids(tensors: dict[str, Tensor], config: HeadConfig, name: str) -> Tensor:
    """Target id of each draft id [C], from `d2t` and checked against `t2d`.

    Raises:
        ValueError: If the maps are missing, disagree, or leave the target's vocabulary.
    """
    count = config.draft_vocab_size
    base = torch.arange(count)
    if "d2t" not in tensors:
        if count < config.vocab_size:
            raise ValueError(
                f"{name!r} drafts {count} of {config.vocab_size} ids and has no d2t to say which"
            )
        return base
    offsets = tensors["d2t"]
    if offsets.shape != (count,) or offsets.is_floating_point():
        raise ValueError(f"{name!r}: d2t has shape {tuple(offsets.shape)}; expected ({count},)")
    ids = base + offsets.long()
    # a whole vocabulary whose map was never filled in is the identity
    if int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size:
        raise ValueError(
            f"{name!r}: d2t leads to id {int(ids.max())}; the target has 0 to "
            f"{config.vocab_size - 1}"
        )
    if bool((ids.diff() <= 0).any()):
        raise ValueError(f"{name!r}: d2t leads two draft ids to one target id, or out of order")
    mask = tensors.get("t2d")
    if mask is not None and not torch.equal(mask.bool().nonzero()[:, 0], ids):
        raise ValueError(f"{name!r}: t2d and d2t name different target ids")
    return ids


def write_config(config: Eagle3Config, layout: Layout, dtype: torch.dtype) -> dict[str, Any]:
    """The content of config.json in a layout."""
    llama = config.llama().to_dict()
    for key in ("transformers_version", "_name_or_path", "architectures", "dtype"):
        llama.pop(key, None)
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
    steps = config.num_trained_steps or 5
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        **shared,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": steps}],
            "verifier": {"name_or_path": config.target_name, "architectures": []},
        },
        "transformer_layer_config": llama,
    }


def write_tensors(tensors: dict[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """Renames our tensors to a layout's."""
    ours, theirs = _LAYER_NAMES["speculators"], _LAYER_NAMES[layout]
    return {
        theirs + name.removeprefix(ours) if name.startswith(ours) else name: tensor
        for name, tensor in tensors.items()
    }


def llama_sizes(llama: LlamaConfig | Qwen3Config) -> dict[str, Any]:
    """What a head's configuration takes over from its layer's as it is."""
    return {
        "hidden_size": llama.hidden_size,
        "intermediate_size": llama.intermediate_size,
        "num_attention_heads": llama.num_attention_heads,
        "num_key_value_heads": llama.num_key_value_heads or llama.num_attention_heads,
        "head_dim": llama.head_dim or llama.hidden_size // llama.num_attention_heads,
        "vocab_size": llama.vocab_size,
        "max_position_embeddings": llama.max_position_embeddings,
        "rms_norm_eps": llama.rms_norm_eps,
        "hidden_act": llama.hidden_act,
        "rope_parameters": dict(
            getattr(llama, "rope_parameters", None) or {"rope_type": "default"}
        ),
    }


def refuse_additions(config: dict[str, Any], inner: dict[str, Any], name: str) -> None:
    """Refuses what would be computed wrongly in silence."""
    kind = inner.get("model_type", "llama")
    if kind != "llama":
        raise ValueError(f"{name!r} has a layer of type {kind!r}; only 'llama' is supported")
    if inner.get("num_hidden_layers", 1) != 1:
        raise ValueError(
            f"{name!r} has {inner['num_hidden_layers']} layers; heads of one layer are supported"
        )
    for key in ("norm_before_fc", "attention_bias", "mlp_bias", "qkv_bias"):
        if config.get(key) or inner.get(key):
            raise ValueError(f"{name!r} sets {key}, which is not supported")
    if inner.get("sliding_window") and inner.get("use_sliding_window", True):
        raise ValueError(f"{name!r} attends to a sliding window, which is not supported")
    if (config.get("eagle_config") or {}).get("use_aux_hidden_state") is False:
        raise ValueError(f"{name!r} reads a single state without fc, which is not supported")
