"""One round's changes of rows, packed into words that a device reads without waiting for the host.

Axes: C sequences of the paths, R rows, V vocabulary, W words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairdraft.ops.processors.bad_words import completions
from fairdraft.ops.processors.ngram import repeats
from fairdraft.ops.processors.params import RowParams
from fairdraft.ops.processors.paths import DraftedPaths
from fairdraft.ops.processors.tally import Tally

#: words at the front for each sequence, see `_fill`
HEAD = 16
#: tokens of a row that are looked at before the whole row is
NUM_PROBES = 16
#: row of a mask that holds in every row of its sequence
EVERY_ROW = -1


class Bitmask(NamedTuple):
    """Tokens that may come in one row: `bits` [V / 8 rounded up], uint8, the lowest first.

    `sequence` is an index of the paths, `row` one of its rows or EVERY_ROW.
    """

    sequence: int
    row: int
    bits: np.ndarray


class Guard(NamedTuple):
    """Rows that must keep a token: those of one of the paths.

    `probes` [NUM_PROBES] are tokens that are likely to be left.
    """

    sequence: int
    probes: np.ndarray


class Edits(NamedTuple):
    """What `edit_rows` and `guard_rows` read.

    Attributes:
        words: int32 [W], on the device of the logits.
        num_sequences: C; HEAD words each come first.
        last_index: Of the logits' sequences, the last one that is changed; -1 for none.
        masks: Where the list of bitmasks begins, and how many there are.
        guards: Where the list of guards begins, and how many there are.
        shape: R and V.
        dtype: Of the logits; numbers are rounded to it.
    """

    words: Tensor
    num_sequences: int
    last_index: int
    masks: tuple[int, int]
    guards: tuple[int, int]
    shape: tuple[int, int]
    dtype: torch.dtype


def pack_edits(
    paths: DraftedPaths,
    params: Sequence[RowParams],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    tallies: Sequence[Tally | None] | None = None,
    bitmasks: Sequence[Bitmask] = (),
    guards: Sequence[Guard] = (),
) -> Edits:
    """Packs a round's changes and sends them to the device in one copy; does not wait for it.

    Args:
        paths: Of C sequences.
        params: Of each of them.
        dtype: Of the logits.
        device: Of the logits.
        tallies: Counts of each sequence's decided tokens, or the first of them; None for none
            kept, then histories are counted here.
        bitmasks: Besides the allowed ids of `params`.
        guards: Which sequences `guard_rows` is to look at.

    Raises:
        ValueError: If a place is outside the logits, a bitmask too short, the number of probes not
            NUM_PROBES, or the drafts are no chain. Ids and numbers are checked by `RowParams` and
            `Tally`.
    """
    if not paths.tree.is_chain:
        raise ValueError(
            f"the paths go down a tree of {paths.tree.num_nodes} drafts, and kernels follow "
            "chains: call the processors one after another, on the host or the device"
        )
    if (paths.index < 0).any():
        raise ValueError(f"the paths have index {paths.index.min()}; sequences count from 0")
    words = _Words(len(params) * HEAD)
    head = np.zeros((len(params), HEAD), np.int32)
    head[:, 0] = paths.index
    for at, name in enumerate(("repetition", "presence", "frequency"), 13):
        head[:, at] = _bits([getattr(own, name) for own in params], dtype)
    kept: Sequence[Tally | None] = [None] * len(params) if tallies is None else tallies
    for c, own in enumerate(params):
        _fill(head[c], words, paths, c, own, kept[c], dtype)
    allowed = [
        Bitmask(c, EVERY_ROW, own.allowed_bits)
        for c, own in enumerate(params)
        if own.allowed_ids is not None
    ]
    masks = _put_masks(words, paths, [*bitmasks, *allowed])
    guarded = _put_guards(words, paths, guards)
    return Edits(
        words.sent(head, torch.device(device)),
        len(params),
        int(paths.index.max(initial=-1)),
        masks,
        guarded,
        (paths.width, paths.vocab_size),
        dtype,
    )


class _Words:
    """Grows by arrays of integers; `put` says where they will be."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pieces: list[np.ndarray] = []
        self._known: dict[int, int] = {}

    def put(self, *pieces: np.ndarray) -> int:
        begin = self.size
        self._pieces.extend(pieces)
        self.size += sum(len(piece) for piece in pieces)
        return begin

    def put_columns(self, *columns: np.ndarray) -> tuple[int, int]:
        """Columns one after another; begin and end of the first."""
        begin = self.put(*columns)
        return begin, begin + len(columns[0])

    def put_bits(self, bits: np.ndarray) -> int:
        """Bytes as words; an array that came before is not put again."""
        if id(bits) not in self._known:
            padded = np.concatenate([bits, np.zeros(-len(bits) % 4, np.uint8)])
            self._known[id(bits)] = self.put(padded.view(np.int32))
        return self._known[id(bits)]

    def sent(self, head: np.ndarray, device: torch.device) -> Tensor:
        # memory that is pinned is copied while the host goes on, and kept until it is
        host = torch.empty(self.size, dtype=torch.int32, pin_memory=device.type == "cuda")
        np.concatenate([head.ravel(), *self._pieces], out=host.numpy(), casting="unsafe")
        return host.to(device, non_blocking=True)


def _fill(
    head: np.ndarray,
    words: _Words,
    paths: DraftedPaths,
    c: int,
    own: RowParams,
    tally: Tally | None,
    dtype: torch.dtype,
) -> None:
    """Lists of one sequence.

    Words of its head: 0 index in the logits; 1, 2 biases; 3, 4 ends, 5 rows that are too early
    for them; 6, 7 tokens of the history, 8, 9 drafts, 10 drafts before the first row; 11, 12
    masked entries; 13 to 15 numbers of the penalties.
    """
    if len(own.bias_ids):
        head[1:3] = words.put_columns(own.bias_ids, _bits(own.bias, dtype))
    missing = own.min_tokens - int(paths.num_output[c, 0])
    if missing > 0 and len(own.end_ids):
        head[3:5] = words.put_columns(own.end_ids)
        head[5] = min(missing, paths.width)
    if own.is_penalized:
        _put_history(head, words, paths, c, own, tally)
    rows, ids = [], []
    if own.bad_words is not None:
        rows.append(np.full(len(own.bad_words.singles), EVERY_ROW))
        ids.append(own.bad_words.singles)
        if len(own.bad_words.last_ids):
            row, completed = completions(paths, c, own.bad_words)
            rows.append(row)
            ids.append(completed)
    if own.ngram_size > 0:
        row, repeated = repeats(paths, c, own.ngram_size)
        rows.append(row)
        ids.append(repeated)
    head[11] = words.put(*rows, *ids)
    head[12] = head[11] + sum(len(row) for row in rows)


def _put_history(
    head: np.ndarray,
    words: _Words,
    paths: DraftedPaths,
    c: int,
    own: RowParams,
    tally: Tally | None,
) -> None:
    end = int(paths.num_decided[c])
    if tally is None:
        tally = Tally(own.vocab_size, reads_prompt=own.repetition != 1)
        tally.count(paths.token_ids[c, :end], int(paths.prompt_length[c]))
    after = paths.token_ids[c, tally.length : end + int(paths.num_rows[c]) - 1]
    new = np.array(tally.lacking(after.tolist()), np.int32)
    head[6] = words.put(tally.token_ids, new, tally.codes, np.zeros_like(new))
    head[7] = head[6] + len(tally.token_ids) + len(new)
    head[8:10] = words.put_columns(after)
    head[10] = end - tally.length


def _put_masks(words: _Words, paths: DraftedPaths, masks: Sequence[Bitmask]) -> tuple[int, int]:
    entries = []
    for c, row, bits in masks:
        if 8 * len(bits) < paths.vocab_size:
            raise ValueError(
                f"a bitmask has {8 * len(bits)} bits; {paths.vocab_size} ids need one each"
            )
        if row != EVERY_ROW and not 0 <= row < paths.width:
            raise ValueError(f"a bitmask is of row {row}; there are {paths.width}")
        at = words.put_bits(bits)
        rows = range(paths.width) if row == EVERY_ROW else (row,)
        entries += [(paths.index[c], r, at) for r in rows]
    return words.put(np.array(entries, np.int64).ravel()), len(entries)


def _put_guards(words: _Words, paths: DraftedPaths, guards: Sequence[Guard]) -> tuple[int, int]:
    begin = words.size
    for c, probes in guards:
        if len(probes) != NUM_PROBES:
            raise ValueError(f"a guard has {len(probes)} probes; give {NUM_PROBES}")
        words.put(np.array([paths.index[c], paths.num_rows[c]]), probes)
    return begin, len(guards)


def _bits(values: np.ndarray | list[float], dtype: torch.dtype) -> np.ndarray:
    """Numbers rounded to a dtype, as the bits of float32."""
    rounded = torch.from_numpy(np.asarray(values, np.float64)).to(dtype)
    return rounded.float().numpy().view(np.int32)
