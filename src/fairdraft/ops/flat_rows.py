"""Requests whose rows lie one after the other, as engines keep them, and the offsets into them.

A request of n drafts has n + 1 consecutive rows, the last its bonus row. Offsets are vLLM's:
`cu_num_logits` [B + 1] counts rows and begins with 0, `cu_num_draft_tokens` [B] counts drafts up to
and including each request's. Axes: B requests, K drafts at most, N rows, D drafts, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairdraft.ops import rows


class Layout(NamedTuple):
    """How a call lays out its rows, as it was given; all None is [B, K + 1, V]."""

    cu_num_logits: Any = None
    cu_num_draft_tokens: Any = None
    max_spec_len: Any = None
    idx_mapping: Any = None

    @property
    def is_flat(self) -> bool:
        """Whether the target's rows are [N, V]."""
        return self.cu_num_logits is not None or self.cu_num_draft_tokens is not None


class Offsets(NamedTuple):
    """One of the two kinds of offsets; a call has exactly one."""

    values: Any
    counts_rows: bool

    @property
    def name(self) -> str:
        """The argument's name."""
        return "cu_num_logits" if self.counts_rows else "cu_num_draft_tokens"

    @property
    def num_requests(self) -> int:
        """B, from the shape alone."""
        return len(self.values) - self.counts_rows


class Spans(NamedTuple):
    """Where each request is, int64 [B] each."""

    row_starts: np.ndarray
    draft_starts: np.ndarray
    num_drafts: np.ndarray


@dataclass(frozen=True)
class FlatRows:
    """Rows [N, V] read as [B, R, V]: row r of request b is `values[starts[b] + r]`, a view."""

    values: np.ndarray
    starts: np.ndarray
    num_rows: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """(B, R, V), R being the rows of the longest request."""
        return len(self.starts), self.num_rows, self.values.shape[1]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, at: tuple[int, int]) -> np.ndarray:
        return self.values[self.starts[at[0]] + at[1]]


def as_flat(block: np.ndarray | FlatRows) -> tuple[np.ndarray, np.ndarray]:
    """Rows [N, V] and the first of each request int64 [B], of either layout, without a copy."""
    if isinstance(block, FlatRows):
        return block.values, block.starts
    count, num_rows, vocab_size = block.shape
    return block.reshape(count * num_rows, vocab_size), np.arange(count, dtype=np.int64) * num_rows


def check_given(layout: Layout, num_draft_tokens: Any) -> None:
    """Refuses a call that says twice, or not at all, how many drafts there are."""
    cu_num_logits, cu_num_draft_tokens, max_spec_len, _ = layout
    if cu_num_logits is not None or cu_num_draft_tokens is not None:
        if num_draft_tokens is not None:
            raise ValueError("num_draft_tokens is given with offsets, which say it; leave it out")
    elif num_draft_tokens is None:
        raise ValueError(
            "num_draft_tokens is missing; give one a request, or cu_num_logits or "
            "cu_num_draft_tokens for flat rows"
        )
    elif max_spec_len is not None:
        raise ValueError(f"max_spec_len = {max_spec_len} is for flat rows; K is in target_logits")


def offsets_of(layout: Layout) -> Offsets:
    """The offsets of a flat call.

    Raises:
        ValueError: If both kinds are given, or no vector of integers.
    """
    if layout.cu_num_logits is not None and layout.cu_num_draft_tokens is not None:
        raise ValueError("cu_num_logits and cu_num_draft_tokens are both given; leave one out")
    counts_rows = layout.cu_num_logits is not None
    values = layout.cu_num_logits if counts_rows else layout.cu_num_draft_tokens
    if isinstance(values, Tensor):
        is_integer = values.dtype in (torch.int32, torch.int64)
    else:
        values = np.asarray(values)
        # an empty list has no type of its own
        values = values if values.size else values.astype(np.int64)
        is_integer = values.dtype.kind in "iu"
    offsets = Offsets(values, counts_rows)
    if values.ndim != 1 or not is_integer or len(values) < counts_rows:
        need = "[B + 1], beginning with 0" if counts_rows else "[B]"
        raise ValueError(
            f"{offsets.name} is {values.dtype} of shape {tuple(values.shape)}; give integers {need}"
        )
    return offsets


def check_entries(num_entries: int, num_rows: int, num_requests: int) -> bool:
    """Whether drafts are laid out as rows are (True) or packed (False).

    Raises:
        ValueError: If they are neither.
    """
    if num_rows < num_requests:
        raise ValueError(
            f"target_logits has {num_rows} rows for {num_requests} requests; give each one at least"
        )
    if num_entries == num_rows - num_requests:
        return False
    if num_entries == num_rows:
        return True
    raise ValueError(
        f"draft_token_ids has {num_entries} entries; {num_rows} rows of {num_requests} requests "
        f"need {num_rows - num_requests}, drafts alone, or {num_rows}, each request's drafts after "
        "an entry that is not read. Are the offsets cu_num_logits [B + 1] or "
        "cu_num_draft_tokens [B]?"
    )


def host_spans(offsets: Offsets, num_rows: int, is_shifted: bool) -> Spans:
    """Reads offsets on the host.

    Raises:
        ValueError: If they are not those of consecutive requests within `num_rows` rows.
    """
    values = np.asarray(offsets.values).astype(np.int64)
    count = offsets.num_requests
    if offsets.counts_rows:
        edges = values
        if edges[0] != 0:
            raise ValueError(f"cu_num_logits begins with {edges[0]}; it must begin with 0")
    else:
        edges = np.concatenate([[0], values + np.arange(1, count + 1)])
    lengths = np.diff(edges)
    if count and lengths.min() < 1:
        b = int(lengths.argmin())
        before = values[b] if offsets.counts_rows else values[b - 1] if b else 0
        rule = "every request has its bonus row" if offsets.counts_rows else "counts never go down"
        value = values[b + offsets.counts_rows]
        raise ValueError(f"{offsets.name} goes from {before} to {value} at request {b}; {rule}")
    if edges[-1] > num_rows:
        raise ValueError(
            f"{offsets.name} ends with {values[-1]}, which is {edges[-1]} rows; "
            f"target_logits has {num_rows}"
        )
    starts = edges[:-1]
    draft_starts = starts + 1 if is_shifted else starts - np.arange(count)
    return Spans(starts, draft_starts, lengths - 1)


def depth_of(layout: Layout, given: int | None, most: int | None) -> int:
    """K, the width of the result: `max_spec_len`, else that of draft_logits, else the longest.

    Args:
        layout: Has `max_spec_len`.
        given: K of draft_logits [B, K, V], or None.
        most: Drafts of the longest request, or None where the host cannot read them.

    Raises:
        ValueError: If it is unknown, no count, or does not hold what is there.
    """
    depth = layout.max_spec_len
    if depth is None:
        depth = most if given is None else given
    if depth is None:
        raise ValueError(
            "max_spec_len is missing: the offsets are on a device, and the call does not wait to "
            "read the longest; give the most drafts of a request"
        )
    if isinstance(depth, bool) or not hasattr(depth, "__index__") or depth < 0:
        raise ValueError(f"max_spec_len = {depth!r} is no count; give the most drafts of a request")
    if given is not None and given != depth:
        raise ValueError(f"draft_logits has {given} rows a request, max_spec_len = {depth}")
    if most is not None and most > depth:
        raise ValueError(f"a request has {most} drafts, max_spec_len = {depth}; raise it")
    return index(depth)


def padded(values: np.ndarray, spans: Spans, depth: int, fill: int) -> np.ndarray:
    """Entries of drafts [D] as [B, K]."""
    steps = np.arange(depth)
    is_there = steps < spans.num_drafts[:, None]
    out = np.full(is_there.shape, fill, values.dtype)
    out[is_there] = values[(spans.draft_starts[:, None] + steps)[is_there]]
    return out


def host_slots(idx_mapping: Any, count: int, num_slots: int) -> np.ndarray:
    """Slots of requests int64 [B], each one of `num_slots`."""
    slots = rows.as_vector("idx_mapping", idx_mapping, count, np.int64)
    is_bad = (slots < 0) | (slots >= num_slots)
    if is_bad.any():
        raise ValueError(
            f"idx_mapping has slot {slots[is_bad][0]}; draft_logits has slots 0..{num_slots - 1}"
        )
    return slots
