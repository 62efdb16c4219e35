"""Rows and drafts of a call of `verify_chain` on the host, padded or flat, as arrays.

Axes: B requests, K drafts at most, N rows, D drafts of a flat call, S slots, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from fairdraft.ops import rows
from fairdraft.ops.chain_inputs import (
    SparseLogits,
    block_depth,
    check_candidates,
    check_counts,
    check_slotted,
    is_foreign,
    is_repeated,
)
from fairdraft.ops.flat_rows import (
    FlatRows,
    Layout,
    Spans,
    check_entries,
    check_given,
    depth_of,
    host_slots,
    host_spans,
    offsets_of,
    padded,
)
from fairdraft.ops.rows import PLACEHOLDER_TOKEN_ID


def target_rows(
    target_logits: Tensor,
    draft_token_ids: Any,
    num_draft_tokens: Any,
    draft_logits: Tensor | SparseLogits | None,
    layout: Layout,
) -> tuple[np.ndarray | FlatRows, Spans | None]:
    """The target's rows float32, and where the requests of a flat call are."""
    check_given(layout, num_draft_tokens)
    if not layout.is_flat:
        return rows.as_rows("target_logits", target_logits, dims=3), None
    values = rows.as_rows("target_logits", target_logits, dims=2)
    offsets = offsets_of(layout)
    is_shifted = check_entries(np.asarray(draft_token_ids).size, len(values), offsets.num_requests)
    spans = host_spans(offsets, len(values), is_shifted)
    most = int(spans.num_drafts.max(initial=0))
    depth = depth_of(layout, block_depth(draft_logits), most)
    return FlatRows(values, spans.row_starts, depth + 1), spans


def token_ids_of(draft_token_ids: Any, shape: tuple[int, int], spans: Spans | None) -> np.ndarray:
    """Drafts int64 [B, K]; what is past a flat request's drafts is -1."""
    is_tensor = isinstance(draft_token_ids, Tensor)
    array = draft_token_ids.numpy() if is_tensor else np.asarray(draft_token_ids)
    need = shape if spans is None else (array.size,)
    if array.shape != need or array.dtype.kind not in "iu":
        raise ValueError(
            f"draft_token_ids has shape {array.shape} and dtype {array.dtype}; target_logits of "
            f"{shape[1] + 1} rows need int64 {need}"
        )
    if spans is not None:
        array = padded(array, spans, shape[1], PLACEHOLDER_TOKEN_ID)
    return np.ascontiguousarray(array, np.int64)


def num_drafts_of(num_draft_tokens: Any, token_ids: np.ndarray, spans: Spans | None) -> np.ndarray:
    """How many drafts each request has, int64 [B]; an id of -1 ends them."""
    count, depth = token_ids.shape
    if spans is None:
        given = rows.as_vector("num_draft_tokens", num_draft_tokens, count, np.int64)
        check_counts(given, depth)
    else:
        given = spans.num_drafts
    is_absent = token_ids == PLACEHOLDER_TOKEN_ID
    if not np.count_nonzero(is_absent):
        return given
    first_absent = np.where(is_absent.any(1), is_absent.argmax(1), depth)
    return np.minimum(given, first_absent)


def draft_rows(
    draft_logits: Tensor | SparseLogits | None,
    shape: tuple[int, int, int],
    num_entries: int,
    spans: Spans | None,
    idx_mapping: Any,
) -> np.ndarray | FlatRows:
    """The drafts' laws float32; `shape` is [B, K, V] and `num_entries` D."""
    if draft_logits is None:
        return np.empty((0, 0, shape[2]), np.float32)
    if idx_mapping is not None:
        return _slots(draft_logits, shape, idx_mapping)
    is_flat = spans is not None and block_depth(draft_logits) is None
    need = (num_entries, shape[2]) if is_flat else shape
    if isinstance(draft_logits, SparseLogits):
        draft = _dense_rows(draft_logits, need)
    else:
        draft = rows.as_rows("draft_logits", draft_logits, dims=len(need))
    if draft.shape != need:
        raise ValueError(f"draft_logits has shape {draft.shape}; target_logits need {need}")
    if spans is not None and is_flat:
        return FlatRows(draft, spans.draft_starts, shape[1])
    return draft


def _slots(draft_logits: Any, shape: tuple[int, int, int], idx_mapping: Any) -> FlatRows:
    check_slotted(draft_logits)
    draft = rows.as_rows("draft_logits", draft_logits, dims=3)
    if draft.shape[1:] != shape[1:]:
        raise ValueError(
            f"draft_logits has shape {draft.shape}; target_logits need slots of {shape[1:]}"
        )
    slots = host_slots(idx_mapping, shape[0], len(draft))
    return FlatRows(draft.reshape(-1, shape[2]), slots * shape[1], shape[1])


def _dense_rows(sparse: SparseLogits, shape: tuple[int, ...]) -> np.ndarray:
    logits = rows.as_rows("draft_logits.logits", sparse.logits, dims=len(shape))
    ids = np.asarray(sparse.token_ids)
    check_candidates(ids.shape, logits.shape, shape)
    is_bad = is_foreign(ids, shape[-1])
    if is_bad.any():
        bad = ids[is_bad][0]
        raise ValueError(f"draft_logits has candidate {bad} outside a vocabulary of {shape[-1]}")
    if is_repeated(np.sort(ids, axis=-1)).any():
        raise ValueError("draft_logits names a candidate twice in one row; merge it first")
    dense = np.full((*shape[:-1], shape[-1] + 1), -np.inf, np.float32)
    np.put_along_axis(dense, np.where(ids < 0, shape[-1], ids), logits, axis=-1)
    return np.ascontiguousarray(dense[..., :-1])
