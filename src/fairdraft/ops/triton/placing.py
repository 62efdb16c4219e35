"""Where rows, drafts and laws of a call of `verify_chain` are on a device, padded or flat.

Axes: B requests, K drafts at most, V vocabulary, C candidates; N rows and D drafts of flat calls,
S slots.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairdraft.noise.address import NODE_BITS
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
    Layout,
    check_entries,
    check_given,
    depth_of,
    host_slots,
    host_spans,
    offsets_of,
)
from fairdraft.ops.triton.chain_memory import offsets_kind
from fairdraft.ops.triton.sampling import layout_of

_ID_TYPES = (torch.int64, torch.int32)


class Place(NamedTuple):
    """Where a call's rows are; see `DeviceChain`."""

    target: tuple[Tensor, int, int]
    sizes: tuple[int, int, int]  # B, K, V
    ids_shape: tuple[int, ...]  # [B, K] or [D]
    num_laws: int  # rows of the drafts' laws, and of their statistics
    num_drafts: Tensor | None
    offsets: Tensor | None = None
    offsets_kind: int = 0
    num_rows: int = 0


class Law(NamedTuple):
    """Where the drafts' laws are; see `DeviceChain`."""

    rows: tuple[Tensor, int, int]
    is_flat: bool
    slots: Tensor | None
    num_slots: int


def placed(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    num_draft_tokens: Any,
    draft_logits: Any,
    layout: Layout,
    validate: bool,
) -> Place:
    """Reads shapes, and refuses rows and offsets that do not fit as far as the host can see."""
    if validate:
        check_given(layout, num_draft_tokens)
    if layout.is_flat:
        return _flat(target_logits, draft_token_ids, draft_logits, layout, validate)
    (count, num_rows, vocab_size), strides = layout_of("target_logits", target_logits, 3, validate)
    depth = num_rows - 1
    num_drafts = on_device(
        "num_draft_tokens", num_draft_tokens, count, torch.int64, target_logits.device
    )
    # values on the device are seen by the kernels alone
    if validate and (num_drafts is not num_draft_tokens or num_drafts.is_cpu):
        _check_counts(num_draft_tokens, depth)
    return Place(
        (target_logits, strides[0], strides[1]),
        (count, depth, vocab_size),
        (count, depth),
        count * depth,
        num_drafts,
    )


def _check_counts(num_draft_tokens: Any, depth: int) -> None:
    if not (isinstance(num_draft_tokens, Tensor) and not num_draft_tokens.is_cpu):
        check_counts(np.asarray(num_draft_tokens), depth)


def _flat(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    draft_logits: Any,
    layout: Layout,
    validate: bool,
) -> Place:
    (num_rows, vocab_size), strides = layout_of("target_logits", target_logits, 2, validate)
    offsets = offsets_of(layout)
    count = offsets.num_requests
    num_entries = draft_token_ids.numel()
    is_shifted = check_entries(num_entries, num_rows, count)
    given, most = block_depth(draft_logits), None
    is_on_host = not isinstance(offsets.values, Tensor) or offsets.values.is_cpu
    if is_on_host and (validate or (given is None and layout.max_spec_len is None)):
        most = int(host_spans(offsets, num_rows, is_shifted).num_drafts.max(initial=0))
    depth = depth_of(layout, given, most)
    values = torch.as_tensor(offsets.values).to(target_logits.device).contiguous()
    return Place(
        target=(target_logits, strides[0], strides[0]),
        sizes=(count, depth, vocab_size),
        ids_shape=(num_entries,),
        num_laws=num_entries if given is None else count * depth,
        num_drafts=None,
        offsets=values,
        offsets_kind=offsets_kind(offsets.counts_rows, is_shifted),
        num_rows=num_rows,
    )


def draft_law(
    draft_logits: Any, place: Place, layout: Layout, device: torch.device, validate: bool
) -> Law | None:
    """The drafts' laws, or None where every draft is a point mass."""
    if draft_logits is None:
        return None
    count, depth, vocab_size = place.sizes
    is_flat = place.offsets is not None and block_depth(draft_logits) is None
    if layout.idx_mapping is not None:
        return _slotted(draft_logits, place, layout.idx_mapping, device, validate)
    need = (*place.ids_shape, vocab_size) if is_flat else (count, depth, vocab_size)
    if isinstance(draft_logits, SparseLogits):
        draft_logits = _scattered(draft_logits, need)
        strides = draft_logits.stride()
    else:
        strides = _law_strides(draft_logits, need, device, validate)
    return Law((draft_logits, strides[0], strides[-2]), is_flat, None, 0)


def _slotted(
    draft_logits: Any, place: Place, idx_mapping: Any, device: torch.device, validate: bool
) -> Law:
    count, depth, vocab_size = place.sizes
    check_slotted(draft_logits)
    num_slots = len(draft_logits)
    strides = _law_strides(draft_logits, (num_slots, depth, vocab_size), device, validate)
    if validate and count and not (isinstance(idx_mapping, Tensor) and not idx_mapping.is_cpu):
        host_slots(idx_mapping, count, num_slots)
    slots = on_device("idx_mapping", idx_mapping, count, torch.int64, device)
    return Law((draft_logits, strides[0], strides[1]), False, slots, num_slots)


def _law_strides(
    draft_logits: Any, need: tuple[int, ...], device: torch.device, validate: bool
) -> tuple[int, ...]:
    """Strides of the drafts' logits; refuses those that do not fit."""
    if validate and not isinstance(draft_logits, Tensor):
        kind = type(draft_logits).__name__
        raise ValueError(f"draft_logits must be a tensor, SparseLogits or None, not {kind}")
    shape, strides = layout_of("draft_logits", draft_logits, len(need), validate)
    if validate and (shape != need or draft_logits.device != device):
        raise ValueError(
            f"draft_logits is {tuple(shape)} on {draft_logits.device}; "
            f"target_logits need {need} on {device}"
        )
    return strides


def _scattered(sparse: SparseLogits, shape: tuple[int, ...]) -> Tensor:
    """Candidates as rows over the vocabulary; one that is no id goes to a column that is cut."""
    ids, logits = sparse.token_ids, sparse.logits
    check_candidates(ids.shape, logits.shape, shape)
    wide = torch.full((*shape[:-1], shape[-1] + 1), -torch.inf, device=ids.device)
    is_id = (ids >= 0) & (ids < shape[-1])
    wide.scatter_(-1, torch.where(is_id, ids, shape[-1]), logits.float())
    # what the host refuses becomes an error of the draft
    is_twice = is_repeated(ids.sort(dim=-1).values)
    is_bad = is_twice.any(-1, keepdim=True) | is_foreign(ids, shape[-1]).any(-1, keepdim=True)
    return wide[..., :-1].masked_fill_(is_bad, torch.nan)


def check_ids(token_ids: Tensor, shape: tuple[int, ...], depth: int, device: torch.device) -> None:
    """Refuses drafts that the kernels cannot read."""
    if (
        token_ids.dtype in _ID_TYPES
        and token_ids.shape == shape
        and token_ids.device == device
        and token_ids.is_contiguous()
        and not depth >> NODE_BITS
    ):
        return
    if token_ids.shape != shape or token_ids.dtype not in _ID_TYPES:
        raise ValueError(
            f"draft_token_ids has shape {tuple(token_ids.shape)} and dtype {token_ids.dtype}; "
            f"target_logits need int64 {shape}"
        )
    if token_ids.device != device or not token_ids.is_contiguous():
        raise ValueError(
            f"draft_token_ids is on {token_ids.device} with strides {token_ids.stride()}; "
            f"give a contiguous tensor on {device}"
        )
    if depth >> NODE_BITS:
        raise ValueError(f"{depth} drafts a request do not fit {NODE_BITS} bits of a node")


def on_device(name: str, values: Any, count: int, dtype: torch.dtype, device: Any) -> Tensor:
    """A scalar or a vector as a contiguous vector [count] on the device."""
    if (
        isinstance(values, Tensor)
        and values.dtype is dtype
        and values.shape == (count,)
        and values.device == device
        and values.is_contiguous()
    ):
        return values
    tensor = torch.as_tensor(values)
    if tensor.dim() == 0:
        tensor = tensor.expand(count)
    if tensor.shape != (count,):
        shape = tuple(tensor.shape)
        raise ValueError(f"{name} has shape {shape}; give a scalar or one value a row ({count})")
    return tensor.to(device=device, dtype=dtype).contiguous()
