"""Processors of rows on device tensors: `processors.edit_rows` and `processors.guard_rows`.

A program owns a row, so what it writes in one step it may read in the next after a barrier, and
only entries that change are touched. Axes: C sequences, R rows, V vocabulary, W words.
"""

# launch options are no parameters of a kernel, and plain values are its constants
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairdraft.ops.dispatch import own_device
from fairdraft.ops.processors import edits as layout
from fairdraft.ops.processors.edits import Edits
from fairdraft.ops.triton.launch import launch_options

_HEAD, _NUM_PROBES = tl.constexpr(layout.HEAD), tl.constexpr(layout.NUM_PROBES)
_EVERY_ROW = tl.constexpr(layout.EVERY_ROW)
_INF = tl.constexpr(float("inf"))
#: entries and tokens that a program takes at a time
_ENTRIES, _TOKENS = tl.constexpr(1024), tl.constexpr(4096)


@triton.jit(do_not_specialize=["sequence_stride", "row_stride", "vocab_size", "begin"])
def mask_kernel(
    logits_ptr,  # [B, R, V]
    sequence_stride,
    row_stride,
    words_ptr,  # int32 [W]
    vocab_size,
    begin,  # of the bitmasks: sequence, row, first word
):
    at = words_ptr + begin + 3 * tl.program_id(0).to(tl.int64)
    row_ptr = row_of(logits_ptr, sequence_stride, row_stride, tl.load(at), tl.load(at + 1))
    token = tl.program_id(1) * _TOKENS + tl.arange(0, _TOKENS)
    is_token = token < vocab_size
    bits = tl.load(words_ptr + tl.load(at + 2) + (token >> 5), mask=is_token, other=0)
    is_out = ((bits >> (token & 31)) & 1) == 0
    tl.store(row_ptr + token, -_INF, mask=is_token & is_out)


@triton.jit(do_not_specialize=["sequence_stride", "row_stride", "vocab_size", "num_rows"])
def edit_kernel(
    logits_ptr,  # [B, R, V]
    sequence_stride,
    row_stride,
    words_ptr,  # int32 [W], heads of C sequences first
    vocab_size,
    num_rows,
):
    head_ptr = words_ptr + (tl.program_id(0) // num_rows) * _HEAD
    row = tl.program_id(0) % num_rows
    row_ptr = row_of(logits_ptr, sequence_stride, row_stride, tl.load(head_ptr), row)
    add_biases(row_ptr, words_ptr, tl.load(head_ptr + 1), tl.load(head_ptr + 2), vocab_size)
    tl.debug_barrier()
    begin, end = tl.load(head_ptr + 3), tl.load(head_ptr + 4)
    if row < tl.load(head_ptr + 5):
        for start in range(begin, end, _ENTRIES):
            at = start + tl.arange(0, _ENTRIES)
            token = tl.load(words_ptr + at, mask=at < end, other=-1)
            tl.store(row_ptr + token, -_INF, mask=(token >= 0) & (token < vocab_size))
    tl.debug_barrier()
    penalize(row_ptr, words_ptr, head_ptr, row, vocab_size)
    tl.debug_barrier()
    begin, end = tl.load(head_ptr + 11), tl.load(head_ptr + 12)
    for start in range(begin, end, _ENTRIES):
        at = start + tl.arange(0, _ENTRIES)
        where = tl.load(words_ptr + at, mask=at < end, other=-2)
        token = tl.load(words_ptr + at + (end - begin), mask=at < end, other=-1)
        is_here = (where == row) | (where == _EVERY_ROW)
        tl.store(row_ptr + token, -_INF, mask=is_here & (token >= 0) & (token < vocab_size))


@triton.jit
def row_of(logits_ptr, sequence_stride, row_stride, sequence, row):
    """Where a row begins."""
    place = sequence.to(tl.int64) * sequence_stride + row.to(tl.int64) * row_stride
    return logits_ptr + place


@triton.jit
def rounded(x, logits_ptr):
    """A float32 as logits would keep it, to the nearest, ties to even."""
    if logits_ptr.dtype.element_ty == tl.bfloat16:
        # by hand, since the interpreter cuts where devices round
        bits = x.to(tl.int32, bitcast=True)
        nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16
        return tl.where(x == x, nearest.to(tl.float32, bitcast=True), x)
    return x.to(logits_ptr.dtype.element_ty).to(tl.float32)


@triton.jit
def add_biases(row_ptr, words_ptr, begin, end, vocab_size):
    for start in range(begin, end, _ENTRIES):
        at = start + tl.arange(0, _ENTRIES)
        token = tl.load(words_ptr + at, mask=at < end, other=-1)
        is_token = (token >= 0) & (token < vocab_size)
        bias = tl.load(words_ptr + at + (end - begin), mask=is_token, other=0)
        x = tl.load(row_ptr + token, mask=is_token, other=0.0).to(tl.float32)
        x += bias.to(tl.float32, bitcast=True)
        tl.store(row_ptr + token, rounded(x, row_ptr).to(row_ptr.dtype.element_ty), mask=is_token)


@triton.jit
def penalize(row_ptr, words_ptr, head_ptr, row, vocab_size):
    """Repetition, then frequency, then presence, rounded after each step as torch does."""
    begin, end = tl.load(head_ptr + 6), tl.load(head_ptr + 7)
    draft_begin, draft_end = tl.load(head_ptr + 8), tl.load(head_ptr + 9)
    last = tl.minimum(draft_begin + tl.load(head_ptr + 10) + row, draft_end)
    repetition = tl.load(head_ptr + 13).to(tl.float32, bitcast=True)
    presence = tl.load(head_ptr + 14).to(tl.float32, bitcast=True)
    frequency = tl.load(head_ptr + 15).to(tl.float32, bitcast=True)
    for start in range(begin, end, _ENTRIES):
        at = start + tl.arange(0, _ENTRIES)
        token = tl.load(words_ptr + at, mask=at < end, other=-1)
        is_token = (token >= 0) & (token < vocab_size)
        code = tl.load(words_ptr + at + (end - begin), mask=is_token, other=0)
        count = code >> 1
        for place in range(draft_begin, last):
            count += (tl.load(words_ptr + place) == token).to(tl.int32)
        x = tl.load(row_ptr + token, mask=is_token, other=0.0).to(tl.float32)
        scaled = tl.where(x > 0.0, tl.div_rn(x, tl.zeros_like(x) + repetition), x * repetition)
        is_seen = (count > 0) | ((code & 1) != 0)
        x = tl.where(is_seen, rounded(scaled, row_ptr), x)
        x = rounded(
            x - rounded(rounded(count.to(tl.float32), row_ptr) * frequency, row_ptr), row_ptr
        )
        x = rounded(x - tl.where(count > 0, presence, 0.0), row_ptr)
        tl.store(row_ptr + token, x.to(row_ptr.dtype.element_ty), mask=is_token)


@triton.jit(do_not_specialize=["sequence_stride", "row_stride", "vocab_size", "num_rows", "begin"])
def left_kernel(
    logits_ptr,  # [B, R, V]
    sequence_stride,
    row_stride,
    words_ptr,  # int32 [W]
    empty_ptr,  # int32 [G, R]
    vocab_size,
    num_rows,
    begin,  # of the guards: sequence, rows that are read, probes
):
    guard, row = tl.program_id(0) // num_rows, tl.program_id(0) % num_rows
    at = words_ptr + begin + guard * (2 + _NUM_PROBES)
    row_ptr = row_of(logits_ptr, sequence_stride, row_stride, tl.load(at), row)
    num_left = tl.full([], 1, tl.int32)
    if row < tl.load(at + 1):
        probe = tl.load(at + 2 + tl.arange(0, _NUM_PROBES))
        is_token = (probe >= 0) & (probe < vocab_size)
        probed = tl.load(row_ptr + probe, mask=is_token, other=-_INF)
        num_left = tl.sum((probed != -_INF).to(tl.int32), 0)
        start = 0
        while (num_left == 0) & (start < vocab_size):
            token = start + tl.arange(0, _TOKENS)
            x = tl.load(row_ptr + token, mask=token < vocab_size, other=-_INF)
            num_left = tl.sum((x != -_INF).to(tl.int32), 0)
            start += _TOKENS
    tl.store(empty_ptr + tl.program_id(0), (num_left == 0).to(tl.int32))


@triton.jit(do_not_specialize=["sequence_stride", "row_stride", "vocab_size", "num_rows", "begin"])
def stand_in_kernel(
    logits_ptr,  # [B, R, V]
    sequence_stride,
    row_stride,
    other_ptr,  # [B, R, V], what stands in where HAS_OTHER, else 0 does
    other_strides,  # of sequences and rows
    words_ptr,  # int32 [W]
    empty_ptr,  # int32 [G, R]
    first_ptr,  # int32 [G]: the first row without a token, R for none
    vocab_size,
    num_rows,
    begin,
    HAS_OTHER: tl.constexpr,
):
    guard, row = tl.program_id(0) // num_rows, tl.program_id(0) % num_rows
    first = num_rows
    for back in range(0, num_rows):
        earlier = num_rows - 1 - back
        first = tl.where(tl.load(empty_ptr + guard * num_rows + earlier) != 0, earlier, first)
    if row == 0:
        tl.store(first_ptr + guard, first)
    if row >= first:
        sequence = tl.load(words_ptr + begin + guard * (2 + _NUM_PROBES))
        row_ptr = row_of(logits_ptr, sequence_stride, row_stride, sequence, row)
        other_row_ptr = row_of(other_ptr, other_strides[0], other_strides[1], sequence, row)
        for start in range(0, vocab_size, _TOKENS):
            token = start + tl.arange(0, _TOKENS)
            is_token = token < vocab_size
            x = tl.zeros([_TOKENS], tl.float32)
            if HAS_OTHER:
                x = tl.load(other_row_ptr + token, mask=is_token, other=0.0).to(tl.float32)
            x = rounded(x, row_ptr)
            tl.store(row_ptr + token, x.to(row_ptr.dtype.element_ty), mask=is_token)


def edit_on_device(logits: Tensor, edits: Edits) -> None:
    """See `processors.edit_rows`; at most two launches."""
    strides = logits.stride(0), logits.stride(1)
    num_rows, vocab_size = edits.shape
    options = launch_options(False)
    begin, num_masks = edits.masks
    with own_device(logits.device):
        if num_masks and vocab_size:
            mask_kernel[(num_masks, triton.cdiv(vocab_size, _TOKENS.value))](
                logits, *strides, edits.words, vocab_size, begin, **options | {"num_warps": 4}
            )
        if edits.num_sequences:
            edit_kernel[(edits.num_sequences * num_rows,)](
                logits, *strides, edits.words, vocab_size, num_rows, **options | {"num_warps": 8}
            )


def guard_on_device(logits: Tensor, edits: Edits, stand_in: Tensor | None) -> Tensor:
    """See `processors.guard_rows`; two launches."""
    begin, num_guards = edits.guards
    num_rows, vocab_size = edits.shape
    device = logits.device
    first = torch.empty(num_guards, dtype=torch.int32, device=device)
    if not num_guards:
        return first
    empty = torch.empty((num_guards, num_rows), dtype=torch.int32, device=device)
    other = logits if stand_in is None else stand_in
    strides = logits.stride(0), logits.stride(1)
    sizes = vocab_size, num_rows, begin
    options = launch_options(False) | {"num_warps": 8}
    with own_device(device):
        left_kernel[(num_guards * num_rows,)](
            logits, *strides, edits.words, empty, *sizes, **options
        )
        stand_in_kernel[(num_guards * num_rows,)](
            logits,
            *strides,
            other,
            (other.stride(0), other.stride(1)),
            edits.words,
            empty,
            first,
            *sizes,
            HAS_OTHER=stand_in is not None,
            **options,
        )
    return first
