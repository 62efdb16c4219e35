"""Heads that exist already, to be trained further."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch

from fairdraft.models import CausalLM
from fairdraft.speculators.heads import (
    Head,
    join,
    kind_of_head,
    load_dflash,
    load_head,
    load_mtp,
    load_shared_kv,
)

_LOADERS: dict[str, Callable[[Path, CausalLM], Head]] = {
    "eagle3": load_head,
    "mtp": load_mtp,
    "shared_kv_mtp": load_shared_kv,
    "dflash": load_dflash,
    "dflash2": load_dflash,
    "dspark": load_dflash,
}


def load_for_training(kind: str, folder: Path, target: CausalLM, num_drafts: int) -> Head:
    """A saved head in float32 whose own parameters learn; shape and drafted ids stay its own.

    Args:
        kind: The method that it is for.
        folder: Of the head.
        target: What it drafts for; the head comes to its device.
        num_drafts: Drafts a round that it is to be trained for.

    Raises:
        ValueError: If the folder holds no head of that kind for this target, or one that was
            trained for another number of drafts.
    """
    found = kind_of_head(folder) if folder.is_dir() else None
    if found != kind:
        holds = "no head" if found is None else f"a head of kind {found!r}"
        raise ValueError(f"{str(folder)!r} holds {holds}; a training of {kind!r} begins with one")
    head = _LOADERS[kind](folder, target)
    trained = head.config.num_trained_steps
    if trained not in (None, num_drafts):
        raise ValueError(
            f"{str(folder)!r} was trained for {trained} drafts a round, and {num_drafts} are asked "
            f"for; pass num_drafts = {trained}"
        )
    head = head.to(torch.float32)
    join(head, target)
    for parameter in head.own_parameters().values():
        parameter.requires_grad_(True)
    return head


def digest_of(head: Head) -> str:
    """16 hex digits that name the numbers of a head's own parameters."""
    digest = hashlib.blake2b(digest_size=8)
    for name, parameter in sorted(head.own_parameters().items()):
        digest.update(name.encode())
        digest.update(parameter.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()
