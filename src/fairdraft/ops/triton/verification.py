"""`ops.verify_chain` on device tensors: checks, buffers and the launch.

Axes: B requests, K drafts, R = K + 1 rows, V vocabulary, C candidates of a sparse draft law.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraft.noise.address import NODE_BITS
from fairdraft.ops.chain_inputs import check_candidates, check_counts, check_forbidden
from fairdraft.ops.device_address import DeviceAddress, device_fields
from fairdraft.ops.sample import TileStats
from fairdraft.ops.triton.launch import Arithmetic, temperature_tensor
from fairdraft.ops.triton.sampling import check_logits, stats_shapes
from fairdraft.ops.triton.verify import DeviceChain, launch_verify
from fairdraft.ops.triton.workspace import Workspace
from fairdraft.ops.verdict import Verdict
from fairdraft.ops.verify import SparseLogits


def verify_on_device(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    num_draft_tokens: Any,
    *,
    draft_logits: Any,
    at: tuple[Any, Any, Any],
    temperatures: tuple[Any, Any],
    marks: tuple[Tensor | None, Tensor | None],
    is_block: bool,
    arithmetic: Arithmetic,
    draft_stats: TileStats | None = None,
    workspace: Workspace | None = None,
    validate: bool = True,
) -> Verdict:
    """See `ops.verify_chain`; nothing here waits for the device."""
    device = target_logits.device
    if validate:
        check_logits("target_logits", target_logits, dims=3)
    count, num_rows, vocab_size = target_logits.shape
    depth = num_rows - 1
    if validate:
        _check_ids(draft_token_ids, (count, depth), device)
        if marks[1] is not None:
            check_forbidden(marks[1], (count, depth))
        if draft_stats is not None:
            _check_stats(draft_stats, count * depth, vocab_size)
        _check_counts(num_draft_tokens, depth)
    num_drafts = on_device("num_draft_tokens", num_draft_tokens, count, torch.int64, device)
    draft = _draft(draft_logits, (count, depth, vocab_size), device) if depth else None
    key, anchor, sample = (_integers(value, device) for value in at)
    fields, strides = device_fields(
        DeviceAddress(stream=0, key=key, position=anchor, sample=sample),
        count,
        device,
        validate=validate,
    )
    point_mass, forbidden = marks[0], _forbidden(marks[1], device)
    out = _empty(count, num_rows, device)
    assert isinstance(out.num_broken, Tensor)
    chain = DeviceChain(
        target=(target_logits, target_logits.stride(0), target_logits.stride(1)),
        draft=None if draft is None else (draft, draft.stride(0), draft.stride(1)),
        temperatures=_temperatures(temperatures, count, device, validate),
        token_ids=draft_token_ids,
        num_drafts=num_drafts,
        point_mass=None
        if point_mass is None
        else on_device("point_mass", point_mass, count, torch.bool, device),
        forbidden=forbidden,
        at=((fields[0], fields[1], fields[5]), (strides[0], strides[1], strides[5])),
        draft_stats=None if draft_stats is None or draft is None else draft_stats.tensors(),
        sizes=(count, depth, vocab_size),
    )
    if count:
        launch_verify(
            chain,
            (
                out.token_ids,
                out.margin,
                out.num_accepted_tokens,
                out.num_emitted_tokens,
                out.last_stream,
                out.error,
                out.num_broken,
            ),
            is_block=is_block,
            arithmetic=arithmetic,
            workspace=workspace or Workspace(device),
        )
    return out


def _forbidden(given: Any, device: torch.device) -> Tensor | None:
    if given is None:
        return None
    return torch.as_tensor(given).to(device=device, dtype=torch.bool).contiguous()


def _temperatures(
    temperatures: tuple[Any, Any], count: int, device: torch.device, validate: bool
) -> tuple[tuple[Tensor, int], tuple[Tensor, int]]:
    names = ("temperature", "draft_temperature")
    target, draft = (
        None if value is None else temperature_tensor(name, value, count, device, validate=validate)
        for name, value in zip(names, temperatures, strict=True)
    )
    assert target is not None
    return target, target if draft is None else draft


def on_device(name: str, values: Any, count: int, dtype: torch.dtype, device: Any) -> Tensor:
    """A scalar or a vector as a contiguous vector [count] on the device."""
    tensor = torch.as_tensor(values)
    if tensor.dim() == 0:
        tensor = tensor.expand(count)
    if tensor.shape != (count,):
        shape = tuple(tensor.shape)
        raise ValueError(f"{name} has shape {shape}; give a scalar or one value a row ({count})")
    return tensor.to(device=device, dtype=dtype).contiguous()


def _integers(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if np.ndim(value) == 0:
        return int(value)
    array = np.asarray(value)
    array = array.view(np.int64) if array.dtype == np.uint64 else array.astype(np.int64)
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def _check_counts(num_draft_tokens: Any, depth: int) -> None:
    # values on the device are seen by the kernels alone
    if not (isinstance(num_draft_tokens, Tensor) and not num_draft_tokens.is_cpu):
        check_counts(np.asarray(num_draft_tokens), depth)


def _check_stats(stats: TileStats, count: int, vocab_size: int) -> None:
    for name, (need, _) in stats_shapes(count, vocab_size).items():
        found = tuple(getattr(stats, name).shape)
        if found != need:
            raise ValueError(f"draft_stats.{name} has shape {found}, not {need}: a row a draft")


def _check_ids(token_ids: Tensor, shape: tuple[int, int], device: torch.device) -> None:
    if token_ids.shape != shape or token_ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"draft_token_ids has shape {tuple(token_ids.shape)} and dtype {token_ids.dtype}; "
            f"target_logits need int64 {shape}"
        )
    if token_ids.device != device or not token_ids.is_contiguous():
        raise ValueError(
            f"draft_token_ids is on {token_ids.device} with strides {token_ids.stride()}; "
            f"give a contiguous tensor on {device}"
        )
    if shape[1] >> NODE_BITS:
        raise ValueError(f"{shape[1]} drafts a request do not fit {NODE_BITS} bits of a node")


def _draft(draft_logits: Any, shape: tuple[int, int, int], device: torch.device) -> Tensor | None:
    if draft_logits is None:
        return None
    if isinstance(draft_logits, SparseLogits):
        return _scattered(draft_logits, shape)
    if not isinstance(draft_logits, Tensor):
        kind = type(draft_logits).__name__
        raise ValueError(f"draft_logits must be a tensor, SparseLogits or None, not {kind}")
    check_logits("draft_logits", draft_logits, dims=3)
    if draft_logits.shape != shape or draft_logits.device != device:
        raise ValueError(
            f"draft_logits is {tuple(draft_logits.shape)} on {draft_logits.device}; "
            f"target_logits need {shape} on {device}"
        )
    return draft_logits


def _scattered(sparse: Any, shape: tuple[int, int, int]) -> Tensor:
    """Candidates as rows over the vocabulary; one that is no id goes to a column that is cut."""
    ids, logits = sparse.token_ids, sparse.logits
    check_candidates(ids.shape, logits.shape, shape)
    wide = torch.full((*shape[:2], shape[2] + 1), -torch.inf, device=ids.device)
    is_id = (ids >= 0) & (ids < shape[2])
    wide.scatter_(-1, torch.where(is_id, ids, shape[2]), logits.float())
    return wide[..., :-1]


def _empty(count: int, num_rows: int, device: torch.device) -> Verdict:
    def ints(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int64, device=device)

    margin = torch.empty((count, num_rows), dtype=torch.float64, device=device)
    return Verdict(
        token_ids=ints(count, num_rows),
        num_accepted_tokens=ints(count),
        num_emitted_tokens=ints(count),
        last_stream=ints(count),
        margin=margin,
        error=ints(count),
        num_broken=ints(count),
    )
