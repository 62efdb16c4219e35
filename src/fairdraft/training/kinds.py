"""New heads of every kind, with random weights.

Axes: C draft ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fairdraft.models import CausalLM
from fairdraft.speculators.heads import (
    Dflash2Config,
    Dflash2Head,
    DflashConfig,
    DflashHead,
    DsparkConfig,
    DsparkHead,
    Eagle3Config,
    Eagle3Head,
    Head,
    MtpConfig,
    MtpHead,
    SharedKvConfig,
    SharedKvHead,
    full_layers,
    join,
    key_shape,
    rotations,
)
from fairdraft.training.shape import HeadShape, base_shape, chosen_layers, last_layer

#: of a DFlash2 head, as published, unless told otherwise or there are fewer
SELECTOR_RANK, SELECTOR_TOP_K, CONV_GROUP_SIZE = 256, 16, 16
#: of a DSpark head, as published, unless told otherwise
MARKOV_RANK = 256


def new_head(
    kind: str, target: CausalLM, shape: HeadShape, target_ids: Tensor, num_drafts: int
) -> Head:
    """A head with random weights, sharing the target's embedding and output rows.

    Args:
        kind: One of `KINDS`.
        target: What it is to draft for; the head comes to its device.
        shape: What differs from the target's own layers.
        target_ids: Ids that it drafts, int64 [C], ascending.
        num_drafts: Drafts a round that it is trained for.

    Raises:
        ValueError: If there is no such kind, the target's layers give no shape, or the asked one
            does not fit.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind of head {kind!r}; choose one of {', '.join(KINDS)}")
    head = KINDS[kind](target, shape, target_ids, num_drafts)
    with torch.no_grad():
        for name, parameter in head.own_parameters().items():
            if parameter.ndim >= 2:
                scale = 0.02 if "o_proj" in name or "down_proj" in name else None
                deviation = scale or parameter.shape[1] ** -0.5
                parameter.normal_(0.0, deviation)
    head = head.to(target.device)
    join(head, target)
    if isinstance(head, Dflash2Head):
        # its convolutions change nothing at first, and all candidates' scores are 0
        head.reset()
    return head


def _eagle3(target: CausalLM, shape: HeadShape, ids: Tensor, num_drafts: int) -> Head:
    reason = "has one layer"
    shape.refuse("an EAGLE-3 head", num_modules=reason, num_layers=reason)
    base = base_shape(target, shape, len(ids), num_drafts)
    return Eagle3Head(Eagle3Config(**base, feature_layers=chosen_layers(target, shape)), ids)


def _mtp(target: CausalLM, shape: HeadShape, ids: Tensor, num_drafts: int) -> Head:
    kind = "a head for multi-token prediction"
    shape.refuse(kind, num_layers="has modules of one layer")
    count = shape.num_modules or 1
    if count not in (1, num_drafts):
        raise ValueError(
            f"num_modules = {count} with {num_drafts} drafts a round: train one module that is "
            "applied again, or a module a draft"
        )
    last = last_layer(target, shape, kind)
    base = base_shape(target, shape, len(ids), num_drafts)
    return MtpHead(MtpConfig(**base, feature_layers=last, num_modules=count), ids)


def _dflash(target: CausalLM, shape: HeadShape, ids: Tensor, num_drafts: int) -> Head:
    base = _block_shape("a DFlash head", (), target, shape, ids, num_drafts)
    return DflashHead(DflashConfig(**base), ids)


def _dflash2(target: CausalLM, shape: HeadShape, ids: Tensor, num_drafts: int) -> Head:
    own = ("selector_rank", "selector_top_k")
    base = _block_shape("a DFlash2 head", own, target, shape, ids, num_drafts)
    width = base["hidden_size"]
    config = Dflash2Config(
        **base,
        conv_group_size=CONV_GROUP_SIZE if width % CONV_GROUP_SIZE == 0 else 1,
        selector_rank=shape.selector_rank or min(SELECTOR_RANK, width),
        selector_top_k=shape.selector_top_k or min(SELECTOR_TOP_K, len(ids)),
    )
    return Dflash2Head(config, ids)


def _dspark(target: CausalLM, shape: HeadShape, ids: Tensor, num_drafts: int) -> Head:
    base = _block_shape("a DSpark head", ("markov_rank",), target, shape, ids, num_drafts)
    rank = shape.markov_rank or MARKOV_RANK
    # every query drafts, the one at the last decided token too, as published
    return DsparkHead(DsparkConfig(**base, anchor_first=True, markov_rank=rank), ids)


def _block_shape(
    kind: str,
    own: tuple[str, ...],
    target: CausalLM,
    shape: HeadShape,
    ids: Tensor,
    num_drafts: int,
) -> dict[str, Any]:
    """What every head of blocks takes from its target and shape; arguments as in `refuse`."""
    shape.refuse(kind, own=own, num_modules="has layers, not modules")
    base = base_shape(target, shape, len(ids), num_drafts)
    layers = {"feature_layers": chosen_layers(target, shape), "num_layers": shape.num_layers or 1}
    return base | layers


def _shared_kv_mtp(target: CausalLM, shape: HeadShape, ids: Tensor, num_drafts: int) -> Head:
    kind = "a head over its target's keys"
    shape.refuse(
        kind,
        own=("memory_layers",),
        num_modules="has layers, not modules",
        num_layers="has a layer for each of its memory_layers",
        num_key_value_heads="has the target's",
    )
    last = last_layer(target, shape, kind)
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
    base = base_shape(target, shape, len(ids), num_drafts) | {
        "num_key_value_heads": num_groups,
        "head_dim": head_dim,
        "rope_parameters": rotations(target),
    }
    config = SharedKvConfig(**base, feature_layers=last, memory_layers=tuple(layers))
    return SharedKvHead(config, ids)


#: method to what makes its head of a target, a shape, the ids that it drafts and drafts a round
KINDS: dict[str, Callable[[CausalLM, HeadShape, Tensor, int], Head]] = {
    "eagle3": _eagle3,
    "mtp": _mtp,
    "dflash": _dflash,
    "dflash2": _dflash2,
    "dspark": _dspark,
    "shared_kv_mtp": _shared_kv_mtp,
}
