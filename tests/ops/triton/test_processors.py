"""Processors in Triton kernels, interpreted: bit for bit what they are one after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from fairdraft.ops import processors
from fairdraft.ops.processors import Bitmask, DraftedPaths, Guard, RowParams, Tally
from fairdraft.ops.processors.bad_words import BadWords
from fairdraft.ops.processors.edits import EVERY_ROW, NUM_PROBES
from fairdraft.ops.triton import processors as kernels
from tests.ops.triton.alike import guarded
from tests.ops.triton.edited import (
    assert_edited_alike,
    drafted_paths,
    everything,
)

#: sequences of the logits, of which three are processed
B, CHOSEN, LENGTHS = 5, (3, 1, 2), (24, 2, 9)
SINGLE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "allowed": {"allowed_ids": np.array([0, 31, 32, 36])},
    "bias": {"bias_ids": np.array([7, 2, 36]), "bias": np.array([0.1, -3.0, 1e30])},
    "ends": {"min_tokens": 8, "end_ids": np.array([4, 36])},
    "repetition": {"repetition": 0.7},
    "presence": {"presence": -0.3},
    "frequency": {"frequency": 0.1},
    "words": {"bad_words": BadWords.of([[1, 2], [5]], [[0, 3], [1, 2, 4]])},
    "ngrams": {"ngram_size": 2},
    "no token twice": {"ngram_size": 1},
}


def rows_of(vocab_size: int, depth: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows in wider memory, zeros of both signs and a masked, a NaN and an infinite token."""
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(B, depth + 1, vocab_size, generator=generator)
    logits[..., : vocab_size // 9] *= 0
    for at, value in ((1, -torch.inf), (2, torch.nan), (3, torch.inf)):
        logits[at, 0, 5 % vocab_size] = value
    return guarded(logits.to(dtype))


@pytest.mark.parametrize("name", SINGLE)
def test_each_parameter_alone_equals_its_processor(name: str) -> None:
    paths = drafted_paths(37, 3, LENGTHS, CHOSEN)
    own = RowParams(vocab_size=37, **SINGLE[name])
    off = RowParams(vocab_size=37)
    got, _ = assert_edited_alike(rows_of(37, 3), paths, [own, off, own])
    assert torch.equal(got[[0, 1, 4]].nan_to_num(1.5), rows_of(37, 3)[[0, 1, 4]].nan_to_num(1.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("vocab_size", "depth"), [(1, 0), (63, 3), (4_100, 1)])
def test_all_together_equal_the_processors(vocab_size: int, depth: int, dtype: torch.dtype) -> None:
    """Ragged drafts, none at all, a foreign one; a bitmask of one row and one of all."""
    for seed in range(2 if (vocab_size, dtype) == (63, torch.float32) else 1):
        paths = drafted_paths(vocab_size, depth, LENGTHS, CHOSEN, seed)
        params = [everything(vocab_size, seed + c) for c in range(3)]
        rng = np.random.default_rng(seed)
        bits = rng.integers(0, 256, (2, -(-vocab_size // 8)), np.uint8)
        masks = [Bitmask(0, depth, bits[0]), Bitmask(2, EVERY_ROW, bits[1])]
        logits = rows_of(vocab_size, depth, dtype)
        assert_edited_alike(logits, paths, params, masks)


def test_rows_around_the_edited_ones_are_left_alone() -> None:
    """Guard columns stay as they are, and so do rows of a tensor that is cut by steps."""
    wide = torch.full((2 * B, 6, 50), 7.0)
    rows = wide[::2, 1:5, 3:40]
    paths = drafted_paths(37, 3, LENGTHS, CHOSEN)
    edits = processors.pack_edits(paths, [everything(37, c) for c in range(3)])
    processors.edit_rows(rows, edits)
    inside = torch.zeros_like(wide, dtype=torch.bool)
    inside[::2, 1:5, 3:40][list(CHOSEN)] = True
    assert (wide[~inside] == 7).all() and (wide[inside] != 7).any()


def test_more_entries_than_a_program_takes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_ENTRIES", tl.constexpr(2))
    paths = drafted_paths(37, 2, (30, 5, 8), CHOSEN)
    assert_edited_alike(rows_of(37, 2), paths, [everything(37, c) for c in range(3)])


def test_empty_batches_and_texts() -> None:
    none = drafted_paths(9, 2, (0,), (0,)).select(np.zeros(0, np.int64))
    edits = processors.pack_edits(none, [])
    logits = torch.ones(2, 3, 9)
    processors.edit_rows(logits, edits)
    assert (logits == 1).all() and len(processors.guard_rows(logits, edits)) == 0
    assert_edited_alike(rows_of(9, 2), drafted_paths(9, 2, (0,), (0,)), [everything(9)])


def tallied(paths: DraftedPaths, counted: list[int], **options: Any) -> list[Tally]:
    """Counts of the first tokens of each text, taken in two steps."""
    tallies = []
    for c, length in enumerate(counted):
        tally = Tally(paths.vocab_size, **options)
        for end in (length // 2, length):
            tally.count(paths.token_ids[c, :end], int(paths.prompt_length[c]))
        tallies.append(tally)
    return tallies


@pytest.mark.parametrize("counted", [LENGTHS, (20, 0, 9)])
@pytest.mark.parametrize("reads_prompt", [True, False])
def test_counts_that_are_kept_give_the_same(counted: Any, reads_prompt: bool) -> None:
    """What is not counted yet is read as drafts are, but before every row."""
    paths = drafted_paths(37, 3, LENGTHS, CHOSEN)
    change = {} if reads_prompt else {"repetition": 1.0}
    params = [everything(37, c, **change) for c in range(3)]
    tallies = tallied(paths, counted, reads_prompt=reads_prompt)
    assert_edited_alike(rows_of(37, 3), paths, params, tallies=tallies)


def test_a_tally_counts_as_the_paths_do_and_refuses_what_it_cannot() -> None:
    rng = np.random.default_rng(1)
    text = rng.integers(0, 400, 900)
    tally = Tally(400)
    for end in (0, 1, 70, 300, 900):
        tally.count(text[:end], 300)
    in_prompt, in_output = (np.bincount(t, minlength=400) for t in (text[:300], text[300:]))
    assert sorted(tally.token_ids.tolist()) == np.flatnonzero(in_prompt + in_output).tolist()
    expected = 2 * in_output + (in_prompt > 0)
    assert tally.codes.tolist() == expected[tally.token_ids].tolist()
    with pytest.raises(ValueError, match="900 tokens are counted, the text has 5"):
        tally.count(text[:5], 300)
    with pytest.raises(ValueError, match="token 900 of a text is 400; ids go to 399"):
        tally.count(np.append(text, 400), 300)


def guards_of(count: int, token_id: int) -> list[Guard]:
    return [Guard(c, np.full(NUM_PROBES, token_id)) for c in range(count)]


@pytest.mark.parametrize("has_other", [False, True])
def test_a_row_without_a_token_is_found_and_stood_in_for(has_other: bool) -> None:
    """Rows: the third of the first sequence is empty, the other one's only past its last draft."""
    vocab_size = 4_200
    paths = drafted_paths(vocab_size, 3, LENGTHS, CHOSEN)
    logits = torch.full((B, 4, vocab_size), -torch.inf)
    logits[..., vocab_size - 1] = 2.0
    logits[3, 2] = -torch.inf
    logits[1, 2] = -torch.inf
    logits[2, 0, 7], logits[2, 0, -1] = torch.nan, -torch.inf
    other = torch.full_like(logits, 5.0)
    expected = logits.clone()
    expected[3, 2:] = 5.0 if has_other else 0.0
    params = [RowParams(vocab_size=vocab_size)] * 3
    edits = processors.pack_edits(paths, params, guards=guards_of(3, 0))
    first = processors.guard_rows(logits, edits, stand_in=other if has_other else None)
    assert first.tolist() == [2, 4, 4]
    assert torch.equal(logits.nan_to_num(9.0), expected.nan_to_num(9.0))


@triton.jit
def _rounded_once(x, logits_ptr):
    return x


@triton.jit
def _without_drafts(row_ptr, words_ptr, head_ptr, row, vocab_size):
    _penalize(row_ptr, words_ptr, head_ptr, row * 0, vocab_size)


@triton.jit
def _doubled(row_ptr, words_ptr, begin, end, vocab_size):
    _add_biases(row_ptr, words_ptr, begin, end, vocab_size)
    _add_biases(row_ptr, words_ptr, begin, end, vocab_size)


_penalize, _add_biases = kernels.penalize, kernels.add_biases


@pytest.mark.parametrize(
    ("name", "fault", "dtype"),
    [
        ("rounded", _rounded_once, torch.bfloat16),
        ("penalize", _without_drafts, torch.float32),
        ("add_biases", _doubled, torch.float32),
    ],
)
def test_a_planted_fault_is_seen(
    monkeypatch: pytest.MonkeyPatch, name: str, fault: Any, dtype: torch.dtype
) -> None:
    """Narrow logits not rounded after each step; drafts that do not count; a bias added twice."""
    monkeypatch.setattr(kernels, name, fault)
    paths = drafted_paths(63, 3, LENGTHS, CHOSEN)
    params = [everything(63, c, allowed_ids=None, bad_words=None, ngram_size=0) for c in range(3)]
    with pytest.raises(AssertionError, match="differ"):
        assert_edited_alike(rows_of(63, 3, dtype), paths, params)


def test_what_cannot_be_edited_is_refused() -> None:
    paths = drafted_paths(9, 1, (3,), (1,))
    edits = processors.pack_edits(paths, [RowParams(vocab_size=9)])
    for logits, message in (
        (torch.zeros(2, 9), r"tensor \[B, R, V\], not \(2, 9\)"),
        (torch.zeros(2, 2, 9, dtype=torch.float64), "logits are torch.float64, packed for"),
        (torch.zeros(2, 2, 9, dtype=torch.float16), "packed for torch.float32"),
        (torch.zeros(2, 2, 8), r"edits of rows \(2, 9\)"),
        (torch.zeros(1, 2, 9), "up to sequence 1"),
        (torch.zeros(2, 9, 2).transpose(1, 2), "tokens must lie side by side"),
    ):
        with pytest.raises(ValueError, match=message):
            processors.edit_rows(logits, edits)
    with pytest.raises(ValueError, match="stand_in has shape"):
        processors.guard_rows(torch.zeros(2, 2, 9), edits, stand_in=torch.zeros(2, 2, 8))
    byte, two = np.zeros(1, np.uint8), np.zeros(2, np.uint8)
    options: list[tuple[dict[str, Any], str]] = [
        ({"bitmasks": [Bitmask(0, 0, byte)]}, "a bitmask has 8 bits; 9 ids"),
        ({"bitmasks": [Bitmask(0, 2, two)]}, "a bitmask is of row 2; there are 2"),
        ({"guards": [Guard(0, np.zeros(3))]}, "a guard has 3 probes; give 16"),
        ({"paths": drafted_paths(9, 1, (3,), (-1,))}, "the paths have index -1"),
    ]
    for own, message in options:
        with pytest.raises(ValueError, match=message):
            processors.pack_edits(**{"paths": paths, "params": [RowParams(vocab_size=9)]} | own)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"allowed_ids": np.array([9])}, "allowed_ids holds 9; ids go from 0 to 8"),
        ({"bias_ids": np.array([-1]), "bias": np.ones(1)}, "bias_ids holds -1"),
        ({"bias_ids": np.array([1, 1]), "bias": np.ones(2)}, "each id once"),
        ({"bias_ids": np.array([1])}, "0 biases: give one to each id"),
        ({"end_ids": np.array([10])}, "end_ids holds 10"),
        ({"bad_words": BadWords.of([[1, 12]], [])}, "bad_words holds 12"),
        ({"repetition": 0.0}, "repetition = 0.0 must be above 0"),
        ({"presence": np.nan}, "presence = nan must be finite"),
        ({"frequency": np.inf}, "frequency = inf must be finite"),
    ],
)
def test_bad_parameters_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RowParams(vocab_size=9, **change)
