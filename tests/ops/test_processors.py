"""Processors of rows against Hugging Face's own, path by path, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from fairdraft.ops import processors
from fairdraft.ops.processors import DraftedPaths
from fairdraft.ops.processors.bad_words import BadWords

#: sequences of the logits, of which the middle ones are processed
B, CHOSEN, K = 5, np.array([3, 1, 2]), 3
JUNK = 1 << 40


def example(vocab_size: int, seed: int = 0) -> tuple[torch.Tensor, DraftedPaths]:
    """Logits [B, K + 1, V] and ragged paths; junk wherever nothing may be read."""
    generator = np.random.default_rng(seed)
    num_decided = np.array([9, 2, 6])
    text = np.full((3, 12), JUNK)
    for c, length in enumerate(num_decided):
        text[c, :length] = generator.integers(0, min(vocab_size, 4), length)
    drafts = generator.integers(0, min(vocab_size, 4), (3, K))
    drafts[1, 1:] = -1
    drafts[2, 2] = vocab_size
    paths = DraftedPaths.of_round(
        text,
        np.array([4, 1, 6]),
        num_decided,
        drafts,
        np.array([3, 1, 3]),
        vocab_size=vocab_size,
        index=CHOSEN,
    )
    assert paths.num_rows.tolist() == [4, 2, 3]
    logits = torch.from_numpy(generator.normal(size=(B, K + 1, vocab_size)).astype(np.float32))
    return logits, paths


def assert_as_hf(logits: torch.Tensor, changed: torch.Tensor, paths: DraftedPaths, hf: Any) -> None:
    """Each row that may be read is what Hugging Face makes of it; other sequences are untouched."""
    for c, b in enumerate(CHOSEN):
        for row in range(paths.num_rows[c]):
            seen = torch.from_numpy(paths.before(c, row)[None].copy())
            expected = hf(c)(seen, logits[b, row][None].clone())
            assert torch.equal(changed[b, row], expected[0]), (c, row)
    for b in set(range(B)) - set(CHOSEN.tolist()):
        assert torch.equal(changed[b], logits[b])


WIDTHS = pytest.mark.parametrize("vocab_size", [1, 63, 1025])


@WIDTHS
def test_repetition_is_hugging_faces(vocab_size: int) -> None:
    logits, paths = example(vocab_size)
    factors = [1.5, 0.7, 1.0]
    changed = logits.clone()
    processors.apply_penalties(changed, paths, repetition=np.array(factors))
    assert_as_hf(logits, changed, paths, lambda c: RepetitionPenaltyLogitsProcessor(factors[c]))


@WIDTHS
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_ngrams_are_hugging_faces(vocab_size: int, size: int) -> None:
    for seed in range(5):
        logits, paths = example(vocab_size, seed)
        changed = logits.clone()
        processors.forbid_repeated_ngrams(changed, paths, np.full(3, size))
        assert_as_hf(logits, changed, paths, lambda c: NoRepeatNGramLogitsProcessor(size))


def test_bad_sequences_are_hugging_faces() -> None:
    words = [[3], [0, 1], [2, 2], [1, 0, 2], [0, 0, 0, 1], [1, 2, 3, 0, 1, 2, 3, 0, 1, 2]]
    for seed in range(5):
        logits, paths = example(63, seed)
        changed = logits.clone()
        processors.forbid_bad_words(changed, paths, [BadWords.of([], words)] * 3)
        assert_as_hf(logits, changed, paths, lambda c: NoBadWordsLogitsProcessor(words))


def test_min_tokens_is_hugging_faces() -> None:
    logits, paths = example(63)
    least, ends = np.array([7, 2, 1]), [5, 7]
    changed = logits.clone()
    processors.forbid_early_ends(changed, paths, least, [np.array(ends)] * 3)
    lengths = paths.prompt_length.tolist()
    assert_as_hf(
        logits,
        changed,
        paths,
        lambda c: MinNewTokensLengthLogitsProcessor(lengths[c], int(least[c]), ends),
    )


def test_presence_and_frequency_count_the_output_and_the_drafts() -> None:
    logits, paths = example(63)
    changed = logits.clone()
    processors.apply_penalties(changed, paths, presence=0.5, frequency=np.array([0.25, 0, -1.0]))
    for c, b in enumerate(CHOSEN):
        for row in range(paths.num_rows[c]):
            output = paths.before(c, row)[paths.prompt_length[c] :]
            count = torch.from_numpy(np.bincount(output, minlength=63).astype(np.float32))
            expected = logits[b, row] - count * [0.25, 0, -1.0][c] - (count > 0) * 0.5
            assert torch.equal(changed[b, row], expected)


def test_bias_and_masks_change_their_entries_alone() -> None:
    logits, _ = example(63)
    changed = logits.clone()
    processors.add_bias(changed, np.array([0, 4]), np.array([7, 62]), np.array([1.5, -2.0]))
    processors.forbid(changed, np.array([1]), np.array([2]), np.array([5]))
    processors.allow_only(changed, 3, np.array([8, 9]))
    expected = logits.clone()
    expected[0, :, 7] += 1.5
    expected[4, :, 62] -= 2.0
    expected[1, 2, 5] = -torch.inf
    expected[3] = -torch.inf
    expected[3, :, 8:10] = logits[3, :, 8:10]
    assert torch.equal(changed, expected)


def test_what_cannot_be_processed_is_refused() -> None:
    logits, paths = example(63)
    for value in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match=f"repetition = {value} must be above 0"):
            processors.apply_penalties(logits, paths, repetition=value)
    with pytest.raises(ValueError, match="presence = nan must be finite"):
        processors.apply_penalties(logits, paths, presence=np.nan)
    with pytest.raises(ValueError, match=r"frequency has shape \(2,\)"):
        processors.apply_penalties(logits, paths, frequency=np.zeros(2))
    with pytest.raises(ValueError, match=r"tensor \[B, R, V\], not \(5, 63\)"):
        processors.apply_penalties(logits[:, 0], paths)
    with pytest.raises(ValueError, match=r"tensor \[B, R, V\], not ndarray"):
        processors.forbid(np.zeros((1, 1, 1)), np.zeros(0), None, np.zeros(0))  # pyright: ignore
