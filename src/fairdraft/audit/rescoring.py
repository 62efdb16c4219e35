"""Laws of texts by teacher forcing: what a local model gives each token, text by text.

Axes: N tokens of all texts one after the other, V ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fairdraft.models import CausalLM

__all__ = ["score_texts"]

# logits of one forward, in numbers: 256 MB as float32
_MOST_LOGITS = 1 << 26


def score_texts(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    width: int | None = None,
) -> np.ndarray:
    """Computes the law of every output token given all tokens before it, at temperature 1.

    Args:
        model: Forwarded in float32 logits; several texts at once.
        prompts: Ids before each text, at least one each.
        outputs: Ids of each text.
        width: V; None means the model's width. Ids past the model's own get 0.

    Returns:
        float32 [N, V], N the number of output tokens.

    Raises:
        ValueError: If an id is unknown to the model or a text is longer than its context.
    """
    wide = width or model.padded_vocab_size
    longest = max(len(p) + len(o) for p, o in zip(prompts, outputs, strict=True))
    rows = max(1, _MOST_LOGITS // (longest * wide))
    laws = []
    for first in range(0, len(prompts), rows):
        part = slice(first, first + rows)
        laws.extend(_laws(model, prompts[part], outputs[part]))
    law = np.concatenate(laws)
    if law.shape[1] > wide:
        raise ValueError(
            f"{model.name!r} has {law.shape[1]} ids and the law {wide}; give the larger number"
        )
    return np.pad(law, ((0, 0), (0, wide - law.shape[1])))


def _laws(
    model: CausalLM, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]
) -> Iterator[np.ndarray]:
    import torch

    texts = [[*p, *o][:-1] for p, o in zip(prompts, outputs, strict=True)]
    counts = torch.tensor([len(text) for text in texts])
    block = torch.zeros(len(texts), int(counts.max()), dtype=torch.int64)
    for row, text in zip(block, texts, strict=True):
        row[: len(text)] = torch.tensor(text, dtype=torch.int64)
    cache = model.new_cache(len(texts), block.shape[1])
    start = torch.zeros(len(texts), dtype=torch.int64)
    logits = model.forward(block, start, cache, num_tokens=counts)
    for row, prompt, text in zip(logits, prompts, texts, strict=True):
        yield torch.softmax(row[len(prompt) - 1 : len(text)], dim=-1).cpu().numpy()
