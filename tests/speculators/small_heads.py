"""Small EAGLE-3 heads with random weights, and their laws from scratch.

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
from fairdraft.speculators.heads import Eagle3Config, Eagle3Head, load_head, save_head


def small_config(target: Any, **changes: Any) -> Eagle3Config:
    """A head for a tiny Llama, as wide as it."""
    shape: dict[str, Any] = {
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
    return Eagle3Config(**(shape | changes))


def save_small(
    target: Any,
    folder: Path,
    *,
    seed: int = 0,
    scale: float = 0.3,
    ids: list[int] | None = None,
    **changes: Any,
) -> Path:
    """Saves a random head in float32; `ids` are those that it can draft."""
    if ids is not None:
        changes["draft_vocab_size"] = len(ids)
    torch.manual_seed(seed)
    config = small_config(target, **changes)
    head = Eagle3Head(config, None if ids is None else torch.tensor(ids))
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, scale)
    save_head(head, folder, dtype=torch.float32)
    return folder


def with_head(target: Any, folder: Path, num_drafts: int = 3, **options: Any) -> LLM:
    """An LLM that drafts with the head of a folder."""
    names = ("draft_sample_method", "rejection_sample_method", "confidence_threshold")
    config = {name: options.pop(name) for name in names if name in options}
    config |= {"method": "eagle3", "model": folder, "num_speculative_tokens": num_drafts}
    return LLM(target, speculative_config=config, **options)


@functools.cache
def loaded(target: Any, folder: Path) -> Eagle3Head:
    """The head of a folder, joined to a target."""
    return load_head(folder, load_model(target))


@torch.inference_mode()
def law_from_scratch(target: Any, folder: Path, text: list[int], drafts: list[int]) -> Tensor:
    """Draft logits over the head's ids after a decided text and drafts, without any cache."""
    head = loaded(target, folder)
    states = target(torch.tensor([text]), output_hidden_states=True).hidden_states
    chosen = [states[layer][:, :-1] for layer in head.config.feature_layers]
    hidden, tokens = head.fuse(tuple(chosen)), [*text[1:], *drafts]
    keys: list[Tensor] = []
    values: list[Tensor] = []

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys.append(key)
        values.append(value)
        return functional.scaled_dot_product_attention(
            query,
            torch.cat(keys, 2),
            torch.cat(values, 2),
            is_causal=query.shape[2] > 1,
            enable_gqa=True,
        ).transpose(1, 2)

    length = len(text) - 1
    ids = torch.tensor([tokens[:length]])
    hidden = head(ids, hidden, head.angles(torch.arange(length)[None]), attend)[:, -1:]
    for slot in range(length, len(tokens)):
        angles = head.angles(torch.tensor([[slot]]))
        hidden = head(torch.tensor([[tokens[slot]]]), hidden, angles, attend)
    return head.logits(hidden)[0, -1]
