"""Loading a head for a target, or refusing it with a reason; saving it in a layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairdraft.models import CausalLM
from fairdraft.speculators.heads import (
    dflash_layout,
    eagle3_layout,
    mtp_layout,
    shared_kv_layout,
)
from fairdraft.speculators.heads.config import (
    Dflash2Config,
    DflashConfig,
    DsparkConfig,
    Eagle3Config,
    HeadConfig,
    MtpConfig,
    SharedKvConfig,
)
from fairdraft.speculators.heads.dflash import DflashHead
from fairdraft.speculators.heads.dflash2 import Dflash2Head
from fairdraft.speculators.heads.dspark import DsparkHead
from fairdraft.speculators.heads.eagle3_layout import Layout
from fairdraft.speculators.heads.files import read_json, read_weights, write_checkpoint
from fairdraft.speculators.heads.head import Head
from fairdraft.speculators.heads.layouts import target_ids
from fairdraft.speculators.heads.mtp import MtpHead
from fairdraft.speculators.heads.network import Eagle3Head
from fairdraft.speculators.heads.shared_kv import SharedKvHead
from fairdraft.speculators.heads.target_keys import check_keys

_MAPS = ("d2t", "t2d")
_HEADS: dict[type[HeadConfig], type[Head]] = {
    Eagle3Config: Eagle3Head,
    MtpConfig: MtpHead,
    SharedKvConfig: SharedKvHead,
    DflashConfig: DflashHead,
    Dflash2Config: Dflash2Head,
    DsparkConfig: DsparkHead,
}


def load_head(folder: str | Path, target: CausalLM) -> Eagle3Head:
    """Loads an EAGLE-3 head and joins it to its target.

    Args:
        folder: A checkpoint in either public layout.
        target: What it drafts for; the head takes its device and type.

    Returns:
        The head in evaluation mode, sharing what it has not of its own.

    Raises:
        ValueError: If the checkpoint is damaged, not supported, or of another target; the message
            says which of the two disagree in what.
    """
    layers = target.text_config.num_hidden_layers
    return _load(folder, target, lambda raw, name: eagle3_layout.read_config(raw, layers, name))


def load_mtp(folder: str | Path, target: CausalLM) -> MtpHead:
    """Loads a head for multi-token prediction and joins it to its target.

    Args:
        folder: A checkpoint as `mtp_layout` describes it; it may be the target's own folder, of
            which nothing but the modules is read.
        target: What it drafts for; the head takes its device and type.

    Returns:
        The head in evaluation mode, sharing the target's embedding and output rows.

    Raises:
        ValueError: As `load_head`.
    """
    return _load(folder, target, mtp_layout.read_config)


def load_shared_kv(folder: str | Path, target: CausalLM) -> SharedKvHead:
    """Loads a head that shares its target's keys and values, and joins it to its target.

    Args:
        folder: A checkpoint as `shared_kv_layout` describes it.
        target: What it drafts for; the head takes its device and type.

    Returns:
        The head in evaluation mode, sharing the target's embedding and output rows.

    Raises:
        ValueError: As `load_head`.
    """
    return _load(folder, target, shared_kv_layout.read_config)


def load_dflash(folder: str | Path, target: CausalLM) -> DflashHead:
    """Loads a DFlash, DFlash2 or DSpark head and joins it to its target.

    Args:
        folder: A checkpoint as `dflash_layout` describes it.
        target: What it drafts for; the head takes its device and type.

    Returns:
        The head in evaluation mode, sharing what it has not of its own.

    Raises:
        ValueError: As `load_head`.
    """
    return _load(folder, target, dflash_layout.read_config)


def _load(
    folder: str | Path,
    target: CausalLM,
    read_config: Callable[[dict[str, Any], str], HeadConfig],
) -> Any:
    """Loads a head whose configuration a layout reads, and joins it to its target.

    Args:
        folder: The checkpoint.
        target: What the head drafts for.
        read_config: Of the layout: from config.json and what messages call the head.

    Raises:
        ValueError: As `load_head`.
    """
    name, path = str(folder), Path(folder).expanduser()
    raw = read_json(path)
    config = read_config(raw, name)
    check_target(config, target, name)
    tensors = _read_tensors(path, raw, config, target, name)
    head = _HEADS[type(config)](
        config,
        target_ids(tensors, config, name),
        owns_embedding="embed_tokens.weight" in tensors,
        owns_output="lm_head.weight" in tensors,
    )
    _fill(head, {key: value for key, value in tensors.items() if key not in _MAPS}, name)
    head.to(target.device, target.dtype).eval().requires_grad_(False)
    join(head, target, name)
    return head


def _read_tensors(
    path: Path, raw: dict[str, Any], config: HeadConfig, target: CausalLM, name: str
) -> dict[str, Tensor]:
    """The tensors of a checkpoint in our names, as its layout has them."""
    if isinstance(config, MtpConfig):
        # the folder may be the target's, with many times as much in it
        found = read_weights(path, lambda key: mtp_layout.belongs(key, config))
        tensors = mtp_layout.read_tensors(found, config)
        mtp_layout.drop_copies(tensors, target, name)
        return tensors
    if isinstance(config, SharedKvConfig):
        check_keys(config, target, name)
        return read_weights(path)
    if isinstance(config, DflashConfig):
        return dflash_layout.read_tensors(read_weights(path), config, name)
    assert isinstance(config, Eagle3Config)
    layout = eagle3_layout.layout_of(raw, name)
    return eagle3_layout.read_tensors(read_weights(path), layout, config, name)


def kind_of_head(folder: Path) -> str | None:
    """The method that a folder's head is for, or None if the folder holds no head.

    A model that brings modules of its own is a model: method "mtp" has to be asked for.
    """
    try:
        config = read_json(folder)
    except (OSError, ValueError):
        return None
    if mtp_layout.states_mtp(config):
        return "mtp"
    if shared_kv_layout.states_shared_kv(config):
        return shared_kv_layout.KIND
    block = dflash_layout.kind_of(config)
    if block is not None:
        return block
    return "eagle3" if eagle3_layout.states_eagle3(config) else None


def join(head: Head, target: CausalLM, name: str = "the head") -> None:
    """Gives a head the target's embedding and output rows, where it has none.

    Raises:
        ValueError: If the target has none to give, or of another width.
    """
    embedding: Any = target.model.get_input_embeddings()
    output: Any = target.model.get_output_embeddings()
    if not head.owns_output and (output is None or getattr(output, "bias", None) is not None):
        raise ValueError(
            f"{name!r} has no lm_head of its own, and the output of {target.name!r} is no plain "
            "matrix that it could share"
        )
    width = head.config.hidden_size
    for owned, module, what in (
        (head.owns_embedding, embedding, "embed_tokens"),
        (head.owns_output, output, "lm_head"),
    ):
        if not owned and module.weight.shape[1] != width:
            raise ValueError(
                f"{name!r} is {width} wide and has no {what} of its own; that of "
                f"{target.name!r} is {module.weight.shape[1]} wide"
            )
    head.share(embedding.weight, embedding.weight if output is None else output.weight)


def check_target(config: HeadConfig, target: CausalLM, name: str) -> None:
    """Refuses a head that was made for another target.

    Raises:
        ValueError: If width, layers or vocabulary differ.
    """
    text = target.text_config
    made_for = f"; it was made for {config.target_name!r}" if config.target_name else ""
    if config.target_hidden_size != text.hidden_size:
        raise ValueError(
            f"{name!r} reads states of {config.target_hidden_size} numbers, and those of "
            f"{target.name!r} have {text.hidden_size}{made_for}"
        )
    layers = text.num_hidden_layers
    stated = config.target_layers
    if max(config.feature_layers) > layers or (stated is not None and stated != layers):
        wanted = stated if stated is not None else f"at least {max(config.feature_layers)}"
        raise ValueError(
            f"{name!r} reads the states {list(config.feature_layers)} of a target of {wanted} "
            f"layers, and {target.name!r} has {layers}{made_for}"
        )
    if config.vocab_size not in (target.vocab_size, target.padded_vocab_size):
        raise ValueError(
            f"{name!r} is made for {config.vocab_size} ids, and {target.name!r} has "
            f"{target.vocab_size}{made_for}"
        )


def save_head(
    head: Head,
    folder: str | Path,
    *,
    layout: Layout = "speculators",
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Writes a head without what it shares with its target.

    Args:
        head: The head.
        folder: Where to; made if missing, files of the same names are replaced.
        layout: "speculators" or "eagle"; of an EAGLE-3 head.
        dtype: Of the weights on disk.
    """
    tensors: dict[str, Tensor] = {
        name: parameter.to(dtype) for name, parameter in head.own_parameters().items()
    }
    config, ids = head.config, head.target_ids.cpu()
    if config.draft_vocab_size < config.vocab_size:
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill_(0, ids, True)
    if isinstance(config, MtpConfig):
        content = mtp_layout.write_config(config, dtype)
        tensors = mtp_layout.write_tensors(tensors, config)
    elif isinstance(config, SharedKvConfig):
        content = shared_kv_layout.write_config(config, dtype)
    elif isinstance(config, DflashConfig):
        content = dflash_layout.write_config(config, dtype)
    else:
        assert isinstance(config, Eagle3Config)
        content = eagle3_layout.write_config(config, layout, dtype)
        tensors = eagle3_layout.write_tensors(tensors, layout)
    write_checkpoint(Path(folder), content, tensors)


def convert_head(
    source: str | Path,
    folder: str | Path,
    layout: Layout,
    *,
    target_layers: int | None = None,
    target_name: str | None = None,
) -> Eagle3Config:
    """Rewrites a head in another layout; every tensor keeps its numbers and type.

    Args:
        source: A checkpoint in either layout.
        folder: Where to.
        layout: The layout to write.
        target_layers: Layers of the target, for a head that does not say which states it reads.
        target_name: The target's name; None keeps what the head says.

    Returns:
        What the head is made of.

    Raises:
        ValueError: If the head is damaged, not supported, or does not say what it reads.
    """
    name, path = str(source), Path(source).expanduser()
    raw = read_json(path)
    config = eagle3_layout.read_config(raw, target_layers, name)
    given = eagle3_layout.layout_of(raw, name)
    tensors = eagle3_layout.read_tensors(read_weights(path), given, config, name)
    target_ids(tensors, config, name)
    changes: dict[str, Any] = {"target_layers": config.target_layers or target_layers}
    if target_name is not None:
        changes["target_name"] = target_name
    config = dataclasses.replace(config, **changes)
    content = eagle3_layout.write_config(config, layout, tensors["fc.weight"].dtype)
    write_checkpoint(Path(folder), content, eagle3_layout.write_tensors(tensors, layout))
    return config


def _fill(head: Head, weights: dict[str, Tensor], name: str) -> None:
    expected = head.state_dict()
    missing = sorted(expected.keys() - weights.keys())
    if missing:
        raise ValueError(
            f"{name!r} lacks {len(missing)} tensors, {missing[0]!r} first; it is incomplete"
        )
    extra = sorted(weights.keys() - expected.keys())
    if extra:
        raise ValueError(
            f"{name!r} holds {len(extra)} tensors that {head.kind} has not, {extra[0]!r} first"
        )
    for key, tensor in weights.items():
        if tensor.shape != expected[key].shape:
            raise ValueError(
                f"{name!r}: {key} has shape {tuple(tensor.shape)}; its configuration calls for "
                f"{tuple(expected[key].shape)}"
            )
    head.load_state_dict({key: tensor.float() for key, tensor in weights.items()})
