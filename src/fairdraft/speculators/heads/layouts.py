"""What the layouts of heads have in common, read and written in one way."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import LlamaConfig, Qwen3Config

from fairdraft.speculators.heads.config import HeadConfig

L = TypeVar("L", LlamaConfig, Qwen3Config)

#: where we keep what no layout has a key for
OWN_KEY = "fairdraft"
# copies of the target's weights that trainers leave in a checkpoint
_COPIES = ("verifier_lm_head.weight", "verifier_norm.weight")


def read_layer(kind: type[L], config: dict[str, Any]) -> L:
    """A head's layers as transformers says them, from what its configuration states."""
    return kind(
        **{key: value for key, value in config.items() if key not in ("architectures", "dtype")}
    )


def layer_sizes(layer: LlamaConfig | Qwen3Config) -> dict[str, Any]:
    """What a head's configuration takes over from its layer's as it is."""
    return {
        "hidden_size": layer.hidden_size,
        "intermediate_size": layer.intermediate_size,
        "num_attention_heads": layer.num_attention_heads,
        "num_key_value_heads": layer.num_key_value_heads or layer.num_attention_heads,
        "head_dim": layer.head_dim or layer.hidden_size // layer.num_attention_heads,
        "vocab_size": layer.vocab_size,
        "max_position_embeddings": layer.max_position_embeddings,
        "rms_norm_eps": layer.rms_norm_eps,
        "hidden_act": layer.hidden_act,
        "rope_parameters": dict(
            getattr(layer, "rope_parameters", None) or {"rope_type": "default"}
        ),
    }


def plain_llama(config: HeadConfig) -> dict[str, Any]:
    """A head's shape as a Llama configuration, without what says nothing of it."""
    llama = config.llama().to_dict()
    for key in ("transformers_version", "_name_or_path", "architectures", "dtype"):
        llama.pop(key, None)
    return llama


def kind_stated(config: dict[str, Any]) -> str | None:
    """The kind of head that a configuration in the layout `speculators` states."""
    stated = config.get("speculators_config") or {}
    return config.get("speculators_model_type") or stated.get("algorithm")


def verifier_name(config: dict[str, Any]) -> str | None:
    """The target's name, as the layout `speculators` has it."""
    verifier = (config.get("speculators_config") or {}).get("verifier") or {}
    return verifier.get("name_or_path")


def speculators_header(kind: str, num_drafts: int, target_name: str | None) -> dict[str, Any]:
    """What the layout `speculators` says of a head besides its shape."""
    return {
        "speculators_model_type": kind,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": num_drafts}],
            "verifier": {"name_or_path": target_name, "architectures": []},
        },
    }


def without_copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors without copies of the target's, which a head shares."""
    return {key: tensor for key, tensor in tensors.items() if key not in _COPIES}


def check_fused(tensors: dict[str, Tensor], config: HeadConfig, name: str) -> None:
    """Refuses a head whose first matrix does not fuse the states that it is said to read.

    Raises:
        ValueError: If the matrix is missing or of another width.
    """
    if "fc.weight" not in tensors:
        raise ValueError(f"{name!r} lacks fc.weight, which fuses the target's states")
    fused, wanted = tensors["fc.weight"].shape[1], len(config.feature_layers)
    if fused != wanted * config.target_hidden_size:
        raise ValueError(
            f"{name!r}: fc.weight reads {fused} numbers, but {wanted} states of "
            f"{config.target_hidden_size} are stated"
        )


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
