"""The layout of heads for multi-token prediction: layers behind the target's own.

Of a target of L layers, module k is `model.layers.{L + k - 1}`: a decoder layer and `enorm`,
`hnorm`, `eh_proj` and `shared_head.norm`; `num_nextn_predict_layers` says how many there are. Names
and order are those of DeepSeek-V3 (deepseek-ai/DeepSeek-V3, README_WEIGHTS.md at 0b39205;
vllm-project/vllm, vllm/model_executor/models/deepseek_mtp.py at 03356f8, which also joins the
normed embedding before the normed state). Attention and MLP are Llama's. What that layout has no
key for, and the maps `d2t` and `t2d` of EAGLE-3's layouts, are our own.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig

from fairdraft.models import CausalLM
from fairdraft.speculators.heads.config import MtpConfig
from fairdraft.speculators.heads.layouts import (
    OWN_KEY,
    layer_sizes,
    plain_llama,
    read_layer,
    refuse_additions,
)

_MAPS = ("d2t", "t2d")
_COUNT = "num_nextn_predict_layers"
_THEIR_NORM, _OUR_NORM = "shared_head.norm.", "norm."
#: copies of the target's matrices that a module may bring
_COPIES = {"embed_tokens.weight": "embed_tokens", "shared_head.head.weight": "lm_head"}


def states_mtp(config: dict[str, Any]) -> bool:
    """Whether a configuration is that of a head alone, as `write_config` makes it."""
    own = config.get(OWN_KEY)
    return isinstance(own, dict) and own.get("head") == "mtp"


def read_config(config: dict[str, Any], name: str) -> MtpConfig:
    """Settles a head's shape from the content of config.json.

    Args:
        config: The content.
        name: What messages call the head.

    Raises:
        ValueError: If it is no such head, or has parts that are not supported.
    """
    if "speculators_config" in config or "speculators_model_type" in config:
        raise ValueError(
            f"{name!r} is in the layout of vllm-project/speculators, which is not read for method "
            "'mtp'; leave the method out, and it follows from the head"
        )
    count = config.get(_COUNT)
    if not isinstance(count, int) or count < 1:
        raise ValueError(
            f"{name!r} has no modules for multi-token prediction: its config.json has {_COUNT} = "
            f"{count!r}"
        )
    layers = config.get("num_hidden_layers")
    if not isinstance(layers, int) or layers < 1:
        raise ValueError(
            f"{name!r} has num_hidden_layers = {layers!r}; its modules are numbered from there on"
        )
    refuse_additions(config, config | {"num_hidden_layers": 1}, name)
    llama = read_layer(LlamaConfig, config)
    own = config.get(OWN_KEY) or {}
    return MtpConfig(
        **layer_sizes(llama),
        draft_vocab_size=own.get("draft_vocab_size") or llama.vocab_size,
        target_hidden_size=llama.hidden_size,
        feature_layers=(layers,),
        target_layers=layers,
        num_trained_steps=own.get("num_trained_steps"),
        target_name=own.get("target_name"),
        num_modules=count,
    )


def belongs(tensor: str, config: MtpConfig) -> bool:
    """Whether a tensor of a checkpoint is the head's, by its name."""
    return tensor in _MAPS or _place(tensor, config) is not None


def read_tensors(tensors: dict[str, Tensor], config: MtpConfig) -> dict[str, Tensor]:
    """Renames tensors to ours: `layers.0.` is the first module."""
    found = {}
    for name, tensor in tensors.items():
        place = _place(name, config)
        if place is None:
            found[name] = tensor
            continue
        module, rest = place
        if rest.startswith(_THEIR_NORM):
            rest = _OUR_NORM + rest.removeprefix(_THEIR_NORM)
        found[f"layers.{module}.{rest}"] = tensor
    return found


def drop_copies(tensors: dict[str, Tensor], target: CausalLM, name: str) -> None:
    """Removes copies of the target's matrices, which the modules share.

    Raises:
        ValueError: If one is no copy.
    """
    for key in list(tensors):
        what = _COPIES.get(key.split(".", 2)[-1])
        if what is None or not key.startswith("layers."):
            continue
        model: Any = target.model
        embedding = model.get_input_embeddings().weight
        output = model.get_output_embeddings()
        shared = embedding if what == "embed_tokens" or output is None else output.weight
        copy = tensors.pop(key)
        if copy.shape != shared.shape or not torch.equal(copy.to(shared), shared):
            raise ValueError(
                f"{name!r}: {key} differs from the {what} of {target.name!r}; modules with "
                "matrices of their own are not supported"
            )


def write_config(config: MtpConfig, dtype: torch.dtype) -> dict[str, Any]:
    """The content of config.json."""
    return {
        "architectures": ["FairdraftMtp"],
        **plain_llama(config),
        "num_hidden_layers": config.feature_layers[0],
        _COUNT: config.num_modules,
        "torch_dtype": str(dtype).removeprefix("torch."),
        OWN_KEY: {
            "head": "mtp",
            "draft_vocab_size": config.draft_vocab_size,
            "num_trained_steps": config.num_trained_steps,
            "target_name": config.target_name,
        },
    }


def write_tensors(tensors: dict[str, Tensor], config: MtpConfig) -> dict[str, Tensor]:
    """Renames our tensors to the layout's."""
    found = {}
    for name, tensor in tensors.items():
        if name in _MAPS:
            found[name] = tensor
            continue
        _, module, rest = name.split(".", 2)
        if rest.startswith(_OUR_NORM):
            rest = _THEIR_NORM + rest.removeprefix(_OUR_NORM)
        found[f"model.layers.{config.feature_layers[0] + int(module)}.{rest}"] = tensor
    return found


def _place(tensor: str, config: MtpConfig) -> tuple[int, str] | None:
    """Module and name within it, or None for a tensor of the target's."""
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", tensor)
    if match is None or int(match[1]) < config.feature_layers[0]:
        return None
    return int(match[1]) - config.feature_layers[0], match[2]
