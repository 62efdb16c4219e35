"""Rounds with every processor, and what the processors make of them one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraft.ops import processors
from fairdraft.ops.processors import Bitmask, DraftedPaths, Edits, RowParams
from fairdraft.ops.processors.bad_words import BadWords
from fairdraft.ops.processors.edits import EVERY_ROW

#: lies where no token may be read
JUNK = 1 << 40
#: tokens that texts are made of, so that they repeat
FEW = 6


def drafted_paths(
    vocab_size: int, depth: int, lengths: Sequence[int], index: Sequence[int], seed: int = 0
) -> DraftedPaths:
    """Ragged texts of few tokens; the second sequence has one draft, the third a foreign one."""
    rng = np.random.default_rng(seed)
    few, count = min(vocab_size, FEW), len(lengths)
    text = np.full((count, max(lengths) + 2), JUNK)
    for c, length in enumerate(lengths):
        text[c, :length] = rng.integers(0, few, length)
    drafts = rng.integers(0, few, (count, depth))
    given = np.full(count, depth)
    if count > 1:
        given[1] = min(depth, 1)
        drafts[1, 1:] = -1
    if count > 2 and depth:
        drafts[2, -1] = vocab_size
    decided = np.array(lengths)
    return DraftedPaths.of_round(
        text, decided // 3, decided, drafts, given, vocab_size=vocab_size, index=np.array(index)
    )


def everything(vocab_size: int, seed: int = 0, **changes: Any) -> RowParams:
    """Every parameter at once; tokens of the text have a bias, an end and bad words among them."""
    rng = np.random.default_rng(seed)
    few = min(vocab_size, FEW)
    biased = rng.permutation(vocab_size)[: min(vocab_size, 40)]
    words = rng.integers(0, few, (4, 2)).tolist()
    values: dict[str, Any] = {
        "allowed_ids": np.flatnonzero(rng.random(vocab_size) < 0.8),
        "bias_ids": biased,
        "bias": rng.normal(size=len(biased)),
        "min_tokens": 9,
        "end_ids": np.unique([0, vocab_size - 1]),
        "repetition": 1.3,
        "presence": 0.3,
        "frequency": 0.7,
        "bad_words": BadWords.of(words[:2], [*words[2:], [vocab_size // 2]]),
        "ngram_size": 3,
    }
    return RowParams(vocab_size=vocab_size, **values | changes)


def apply_in_order(
    logits: Tensor,
    paths: DraftedPaths,
    params: Sequence[RowParams],
    bitmasks: Sequence[Bitmask] = (),
) -> None:
    """The processors one after another, as the engine calls them on the host."""
    vocab_size = logits.shape[-1]
    for c, row, bits in bitmasks:
        is_out = torch.from_numpy(np.unpackbits(bits, bitorder="little")[:vocab_size] == 0)
        rows = slice(None) if row == EVERY_ROW else slice(row, row + 1)
        logits[int(paths.index[c]), rows, is_out] = -torch.inf
    for c, own in enumerate(params):
        if own.allowed_ids is not None:
            processors.allow_only(logits, int(paths.index[c]), own.allowed_ids)
    processors.add_bias(
        logits,
        np.repeat(paths.index, [len(own.bias_ids) for own in params]),
        np.concatenate([own.bias_ids for own in params]),
        np.concatenate([own.bias for own in params]).astype(np.float64),
    )
    least = np.array([own.min_tokens for own in params])
    processors.forbid_early_ends(logits, paths, least, [own.end_ids for own in params])
    processors.apply_penalties(
        logits,
        paths,
        repetition=np.array([own.repetition for own in params]),
        presence=np.array([own.presence for own in params]),
        frequency=np.array([own.frequency for own in params]),
    )
    processors.forbid_bad_words(logits, paths, [own.bad_words for own in params])
    sizes = np.array([own.ngram_size for own in params])
    processors.forbid_repeated_ngrams(logits, paths, sizes)


def assert_edited_alike(
    logits: Tensor,
    paths: DraftedPaths,
    params: Sequence[RowParams],
    bitmasks: Sequence[Bitmask] = (),
    *,
    device: str = "cpu",
    **options: Any,
) -> tuple[Tensor, Edits]:
    """Kernels give the numbers that the processors give one after another; returns the logits."""
    expected = logits.clone()
    apply_in_order(expected, paths, params, bitmasks)
    edits = processors.pack_edits(
        paths, params, dtype=logits.dtype, device=device, bitmasks=bitmasks, **options
    )
    got = logits.to(device, copy=True)
    processors.edit_rows(got, edits)
    same = (got.cpu() == expected) | (got.cpu().isnan() & expected.isnan())
    assert same.all(), f"{torch.nonzero(~same).tolist()[:9]} differ"
    return got, edits
