"""The public layouts of DFlash, DFlash2 and DSpark heads, read into one form.

`speculators`: configuration under `transformer_layer_config` and `speculators_config`, states
numbered as transformers does (vllm-project/speculators, src/speculators/models: dflash/config.py at
0a09610, dflash/core.py and dspark/core.py at 021e21b, dspark/config.py at 8965833,
dspark/model_definitions.py at d67f6b5). Flat: a Qwen3 configuration, states numbered by the layer
that they leave, one less: with `dflash_config` (z-lab/dflash, dflash/model.py at 1012959), or with
`markov_rank` beside the rest (deepseek-ai/DeepSpec, deepspec/modeling/dspark/qwen3/config.py at
041b652 and modeling.py at 5905deb). Tensors have the same names in all. What none has a key for is
under `OWN_KEY`, and `mask_embedding` is our own.
DFlash2 adds four numbers and the tensors of convolutions and selector, in both layouts
(vllm-project/speculators, src/speculators/models/dflash2: config.py at 961aeaa, core.py at 022a2f0,
model_definitions.py at 1f7db3a; z-lab/dflash, tests/fixtures/dflash2-config.json at 0a7587c).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from transformers import Qwen3Config

from fairdraft.speculators.heads.config import Dflash2Config, DflashConfig, DsparkConfig
from fairdraft.speculators.heads.layouts import (
    OWN_KEY,
    check_fused,
    kind_stated,
    layer_sizes,
    read_layer,
    speculators_header,
    verifier_name,
    without_copies,
)

Kind = Literal["dflash", "dflash2", "dspark"]
#: classes that configurations name: as written, and of the flat layouts
_CLASSES: dict[Kind, str] = {
    "dflash": "DFlashSpeculator",
    "dflash2": "DFlash2DraftModel",
    "dspark": "DSparkSpeculator",
}
_FLAT_CLASSES: dict[str, Kind] = {
    "DFlashDraftModel": "dflash",
    "DFlash2DraftModel": "dflash2",
    "Qwen3DSparkModel": "dspark",
}
#: what DFlash2 adds
_DFLASH2 = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
#: values that change what is computed, and the ones under which nothing changes
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "is_causal": (False,),
    "causal": (False,),
    "projector_type": ("dflash",),
    "shift_label": (False,),
    "input_embedding_scale": (1, 1.0),
    "output_multiplier": (1, 1.0),
    "final_logit_softcapping": (0, 0.0),
    "markov_head_type": ("vanilla",),
}


def kind_of(config: dict[str, Any]) -> Kind | None:
    """Which head of this family a configuration is of, in either layout."""
    kind = kind_stated(config)
    if kind is None:
        kind = _FLAT_CLASSES.get("".join(config.get("architectures") or []))
    return kind if kind in _CLASSES else None


def read_config(config: dict[str, Any], name: str) -> DflashConfig:
    """Settles a head's shape from the content of config.json.

    Args:
        config: The content.
        name: What messages call the head.

    Raises:
        ValueError: If it is no such head, or has parts that are not supported.
    """
    kind = kind_of(config)
    if kind is None:
        found = config.get("speculators_model_type") or config.get("architectures")
        raise ValueError(
            f"{name!r} is no head of method {' or '.join(_CLASSES)}, but {found!r}; leave the "
            "method out, and it follows from the head"
        )
    is_flat = "transformer_layer_config" not in config
    inner = config if is_flat else config["transformer_layer_config"]
    own, block = config.get(OWN_KEY) or {}, config | (config.get("dflash_config") or {})
    _refuse_additions(inner | block, name)
    qwen = read_layer(Qwen3Config, inner)
    others = set(qwen.layer_types or ()) - {"full_attention"}
    if others:
        raise ValueError(f"{name!r} has layers of {min(others)!r}, which is not supported")
    layers = block.get("target_layer_ids" if is_flat else "aux_hidden_state_layer_ids")
    if not layers:
        raise ValueError(f"{name!r} does not say which states of its target it reads")
    size = block.get("block_size")
    # in `speculators` a head without the key is older than it, and its first query drafts nothing
    is_first = bool(block.get("sample_from_anchor", is_flat and kind == "dspark"))
    if not isinstance(size, int):
        raise ValueError(f"{name!r} has block_size = {size!r}; it must say how long its blocks are")
    shape: dict[str, Any] = {
        **layer_sizes(qwen),
        "draft_vocab_size": block.get("draft_vocab_size") or qwen.vocab_size,
        "target_hidden_size": block.get("target_hidden_size") or qwen.hidden_size,
        "feature_layers": tuple(layer + is_flat for layer in layers),
        "target_layers": block.get("num_target_layers") or own.get("target_layers"),
        "num_trained_steps": size - (not is_first),
        "target_name": verifier_name(config),
        "num_layers": qwen.num_hidden_layers,
        "anchor_first": is_first,
        "mask_token_id": _mask(block, own, name),
    }
    if kind == "dflash":
        return DflashConfig(**shape)
    if kind == "dflash2":
        missing = [key for key in _DFLASH2 if key not in block]
        if missing:
            raise ValueError(f"{name!r} has no {missing[0]}, which method {kind!r} needs")
        return Dflash2Config(**shape, **{key: block[key] for key in _DFLASH2})
    return DsparkConfig(
        **shape,
        markov_rank=block.get("markov_rank", 256),
        logit_scale=float(block.get("logit_scale", 1.0)),
        has_confidence=bool(block.get("enable_confidence_head", not is_flat)),
        confidence_reads_token=bool(block.get("confidence_head_with_markov", not is_flat)),
    )


def read_tensors(tensors: dict[str, Tensor], config: DflashConfig, name: str) -> dict[str, Tensor]:
    """Leaves out what a head does not need.

    Raises:
        ValueError: As `check_fused`.
    """
    check_fused(tensors, config, name)
    return without_copies(tensors)


def write_config(config: DflashConfig, dtype: torch.dtype) -> dict[str, Any]:
    """The content of config.json in the layout `speculators`."""
    kind: Kind = "dflash"
    added: dict[str, Any] = {}
    if isinstance(config, Dflash2Config):
        kind, added = "dflash2", {key: getattr(config, key) for key in _DFLASH2}
    elif isinstance(config, DsparkConfig):
        kind = "dspark"
        added = {
            "markov_rank": config.markov_rank,
            "markov_head_type": "vanilla",
            "logit_scale": config.logit_scale,
            "enable_confidence_head": config.has_confidence,
            "confidence_head_with_markov": config.confidence_reads_token,
        }
    return {
        "architectures": [_CLASSES[kind]],
        "draft_vocab_size": config.draft_vocab_size,
        "block_size": config.block_size,
        "target_hidden_size": config.target_hidden_size,
        "aux_hidden_state_layer_ids": list(config.feature_layers),
        "mask_token_id": config.mask_token_id,
        "sample_from_anchor": config.anchor_first,
        **added,
        "torch_dtype": str(dtype).removeprefix("torch."),
        OWN_KEY: {
            "target_layers": config.target_layers,
            "mask_embedding": config.mask_token_id is None,
        },
        **speculators_header(kind, config.num_drafts, config.target_name),
        "transformer_layer_config": {
            "model_type": "qwen3",
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_attention_heads,
            "num_key_value_heads": config.num_key_value_heads,
            "head_dim": config.head_dim,
            "vocab_size": config.vocab_size,
            "max_position_embeddings": config.max_position_embeddings,
            "rms_norm_eps": config.rms_norm_eps,
            "hidden_act": config.hidden_act,
            "rope_parameters": dict(config.rope_parameters),
            "layer_types": ["full_attention"] * config.num_layers,
            "attention_bias": False,
            "tie_word_embeddings": False,
        },
    }


def _mask(block: dict[str, Any], own: dict[str, Any], name: str) -> int | None:
    mask = block.get("mask_token_id")
    if mask is None and not own.get("mask_embedding"):
        raise ValueError(f"{name!r} has no mask_token_id, so its masks cannot be embedded")
    return mask


def _refuse_additions(config: dict[str, Any], name: str) -> None:
    """Refuses what would be computed wrongly in silence."""
    kind = config.get("model_type", "qwen3")
    if kind != "qwen3":
        raise ValueError(f"{name!r} has layers of type {kind!r}; only 'qwen3' is supported")
    for key, neutral in _NEUTRAL.items():
        value = config.get(key)
        if value is not None and value not in neutral:
            raise ValueError(f"{name!r} sets {key} = {value!r}, which is not supported")
