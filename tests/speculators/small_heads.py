"""Small heads with random weights, and their laws from scratch.

Axes: L tokens of a text, H width.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fairdraft import LLM
from fairdraft.models import load_model
from fairdraft.models.cache import kept_layers
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
    SlotHead,
    kind_of_head,
    load_dflash,
    load_head,
    load_mtp,
    load_shared_kv,
    save_head,
)
from fairdraft.speculators.heads.layer import Attend

#: kinds of heads, by what `save_small` is told
KINDS: dict[str, dict[str, Any]] = {
    "eagle3": {},
    "mtp, one module": {"num_modules": 1},
    "mtp, modules": {"num_modules": 4},
    "shared_kv_mtp": {"memory_layers": (1, 0)},
    "dflash": {"num_drafts": 5, "num_layers": 2},
    "dflash2": {"num_drafts": 5, "num_layers": 2, "selector_top_k": 4},
    "dspark": {"num_drafts": 5, "anchor_first": True, "markov_rank": 6},
}


def small_config(target: Any, **changes: Any) -> Eagle3Config:
    """An EAGLE-3 head for a tiny Llama, as wide as it."""
    return Eagle3Config(**(small_shape(target) | changes))


def small_shape(target: Any) -> dict[str, Any]:
    """Shape of a head for a tiny Llama."""
    return {
        "hidden_size": target.config.hidden_size,
        "intermediate_size": 40,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": target.config.vocab_size,
        "draft_vocab_size": target.config.vocab_size,
        "target_hidden_size": target.config.hidden_size,
        "feature_layers": (0, 1, 2),
        "max_position_embeddings": target.config.max_position_embeddings,
        "target_layers": target.config.num_hidden_layers,
    }


def rotations_of(target: Any) -> dict[str, Any]:
    """What a head's queries share with the keys of a tiny Llama."""
    return {
        "num_key_value_heads": target.config.num_key_value_heads,
        "head_dim": target.config.head_dim,
        "rope_parameters": dict(target.config.rope_parameters),
    }


def save_small(
    target: Any,
    folder: Path,
    *,
    seed: int = 0,
    scale: float = 0.3,
    ids: list[int] | None = None,
    num_modules: int | None = None,
    num_drafts: int | None = None,
    memory_layers: tuple[int, ...] | None = None,
    **changes: Any,
) -> Path:
    """Saves a random head in float32.

    Args:
        target: What it drafts for.
        folder: Where to.
        seed, scale: Of its weights.
        ids: Those that it can draft; None for all.
        num_modules: Of a head for multi-token prediction.
        num_drafts: Of a block of a DFlash head, or with a `markov_rank` of a DSpark head, or with a
            `selector_top_k` of a DFlash2 head.
        memory_layers: Of a head that shares its target's keys. None of these makes an EAGLE-3 head.
        changes: To its configuration.
    """
    if ids is not None:
        changes["draft_vocab_size"] = len(ids)
    torch.manual_seed(seed)
    target_ids = None if ids is None else torch.tensor(ids)
    shape = small_shape(target)
    if num_modules is not None or memory_layers is not None:
        shape["feature_layers"] = (target.config.num_hidden_layers,)
    shape |= changes
    if num_drafts is not None:
        shape["num_trained_steps"] = num_drafts
        if "markov_rank" in shape:
            head = DsparkHead(DsparkConfig(**shape), target_ids)
        elif "selector_top_k" in shape:
            shape.setdefault("conv_group_size", 8)
            shape.setdefault("selector_rank", 6)
            head = Dflash2Head(Dflash2Config(**shape), target_ids)
        else:
            head = DflashHead(DflashConfig(**shape), target_ids)
    elif num_modules is not None:
        head = MtpHead(MtpConfig(**shape, num_modules=num_modules), target_ids)
    elif memory_layers is not None:
        shape |= rotations_of(target) | changes
        head = SharedKvHead(SharedKvConfig(**shape, memory_layers=memory_layers), target_ids)
    else:
        head = Eagle3Head(Eagle3Config(**shape), target_ids)
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, scale)
    save_head(head, folder, dtype=torch.float32)
    return folder


def with_head(target: Any, folder: Path, num_drafts: int = 3, **options: Any) -> LLM:
    """An LLM that drafts with the head of a folder."""
    names = ("draft_sample_method", "rejection_sample_method", "confidence_threshold")
    names = (*names, "dspark_draft_topk")
    config = {name: options.pop(name) for name in names if name in options}
    config |= {"model": folder, "num_speculative_tokens": num_drafts}
    return LLM(target, speculative_config=config, **options)


@functools.cache
def loaded(target: Any, folder: Path) -> Head:
    """The head of a folder, joined to a target."""
    loads = {"mtp": load_mtp, "shared_kv_mtp": load_shared_kv}
    loads |= dict.fromkeys(("dflash", "dflash2", "dspark"), load_dflash)
    load = loads.get(str(kind_of_head(folder)), load_head)
    return load(folder, load_model(target))


def law_from_scratch(target: Any, folder: Path, text: list[int], drafts: list[int]) -> Tensor:
    """As `law_of`, of the head of a folder."""
    return law_of(target, loaded(target, folder), text, drafts)


@torch.inference_mode()
def law_of(target: Any, head: Head, text: list[int], drafts: list[int]) -> Tensor:
    """Draft logits over the head's ids after a decided text and drafts, without any cache."""
    if isinstance(head, SharedKvHead):
        return shared_kv_law(target, head, text, drafts)
    states = target(torch.tensor([text]), output_hidden_states=True).hidden_states
    hidden = head.fuse(tuple(states[layer][:, :-1] for layer in head.config.feature_layers))
    if isinstance(head, DflashHead):
        output, before = block_outputs(head, hidden, text[-1])[0, len(drafts)], [*text, *drafts][-1]
        if isinstance(head, Dflash2Head):
            return candidate_law(head, output, before)
        law = head.logits(output)
        if isinstance(head, DsparkHead):
            law = law + head.bias(head.before(torch.tensor(before)))
        return law
    assert isinstance(head, SlotHead)
    ids, length = torch.tensor([[*text, *drafts]]), len(text) - 1
    positions = torch.arange(length)[None]
    if isinstance(head, MtpHead) and head.config.num_modules > 1:
        for module in range(len(drafts) + 1):
            tokens = ids[:, module + 1 : module + 1 + length]
            angles = head.angles(positions)
            hidden = head(tokens, hidden, angles, Remembered(), module)
        return head.logits(hidden, len(drafts))[0, -1]
    attend = Remembered()
    hidden = head(ids[:, 1 : 1 + length], hidden, head.angles(positions), attend)[:, -1:]
    for slot in range(length, ids.shape[1] - 1):
        angles = head.angles(torch.tensor([[slot]]))
        hidden = head(ids[:, slot + 1 : slot + 2], hidden, angles, attend)
    return head.logits(hidden)[0, -1]


def candidate_law(head: Dflash2Head, output: Tensor, before: int) -> Tensor:
    """Draft logits of a DFlash2 head from its output at a draft [H], candidate by candidate."""
    logits = head.logits(output).float()
    selector = head.candidate_selector
    context = selector.predecessor_codebook[before] * selector.project(output)
    law = torch.full_like(logits, -torch.inf)
    ranked = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))
    for i in ranked[: head.config.selector_top_k]:
        law[i] = logits[i] + (context * selector.successor_codebook[i]).sum()
    return law


def block_outputs(head: DflashHead, context: Tensor, last: int) -> Tensor:
    """Outputs of a block's drafts [1, T, H] behind a context [1, L, H]."""
    length, size = context.shape[1], head.config.block_size
    # of a text of one token there is no context
    made = head.context(context, head.angles(torch.arange(length)[None])) if length else None

    def attend_layer(layer: int) -> Attend:
        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            if made is not None:
                key, value = (torch.cat(p, 2) for p in zip(made[layer], (key, value), strict=True))
            found = functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
            return found.transpose(1, 2)

        return attend

    angles = head.angles(torch.arange(length, length + size)[None])
    return head.drafting(head.block(head.embed(torch.tensor([last])), angles, attend_layer))


def shared_kv_law(target: Any, head: SharedKvHead, text: list[int], drafts: list[int]) -> Tensor:
    """`law_from_scratch` of a head over the target's keys of all tokens but the last."""
    known = target(torch.tensor([text[:-1]]), output_hidden_states=True, use_cache=True)
    hidden = head.fuse((known.hidden_states[head.config.feature_layers[0]][:, -1:],))

    def recall(layer: int, query: Tensor) -> Tensor:
        kept = kept_layers(known)[layer]
        attended = functional.scaled_dot_product_attention(
            query, kept.keys, kept.values, enable_gqa=True
        )
        return attended.transpose(1, 2)

    angles = head.angles(torch.tensor([[len(text) - 2]]))
    outputs = hidden
    for step, token in enumerate([text[-1], *drafts]):
        hidden = head.carry(outputs) if step else hidden
        outputs = head.recall(torch.tensor([[token]]), hidden, angles, recall)
    return head.logits(outputs)[0, -1]


class Remembered:
    """Attention over everything that it was ever given."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.keys.append(key)
        self.values.append(value)
        attended = functional.scaled_dot_product_attention(
            query,
            torch.cat(self.keys, 2),
            torch.cat(self.values, 2),
            is_causal=query.shape[2] > 1,
            enable_gqa=True,
        )
        return attended.transpose(1, 2)
