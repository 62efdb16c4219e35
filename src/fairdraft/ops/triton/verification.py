"""`ops.verify_chain` on device tensors: checks, buffers and the launch.

Axes: B requests, K drafts, R = K + 1 rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fairdraft.ops.chain_inputs import check_forbidden
from fairdraft.ops.device_address import device_field, field_here
from fairdraft.ops.flat_rows import Layout
from fairdraft.ops.lossy import LossyRule, Numbers
from fairdraft.ops.sample import TileStats
from fairdraft.ops.triton.chain_memory import DeviceChain
from fairdraft.ops.triton.launch import Arithmetic, temperature_tensor
from fairdraft.ops.triton.lossy_launch import launch_lossy
from fairdraft.ops.triton.placing import check_ids, draft_law, on_device, placed
from fairdraft.ops.triton.sampling import check_stats
from fairdraft.ops.triton.verify import launch_verify
from fairdraft.ops.triton.workspace import Workspace
from fairdraft.ops.verdict import Verdict

if TYPE_CHECKING:
    from fairdraft.ops.verify import AnyRule


def verify_on_device(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    num_draft_tokens: Any,
    *,
    draft_logits: Any,
    at: tuple[Any, Any, Any],
    temperatures: tuple[Any, Any],
    marks: tuple[Tensor | None, Tensor | None],
    layout: Layout,
    rule: AnyRule,
    arithmetic: Arithmetic,
    draft_stats: TileStats | None = None,
    workspace: Workspace | None = None,
    validate: bool = True,
) -> Verdict:
    """See `ops.verify_chain`; nothing here waits for the device."""
    device = target_logits.device
    chain = device_chain(
        target_logits,
        draft_token_ids,
        num_draft_tokens,
        draft_logits=draft_logits,
        at=at,
        temperatures=temperatures,
        marks=marks,
        layout=layout,
        draft_stats=draft_stats,
        validate=validate,
    )
    count, depth, _ = chain.sizes
    out = empty_verdict(count, depth + 1, device)
    if isinstance(rule, LossyRule):
        out = replace(out, lossy=rule.name)
        # refuses numbers that do not fit, even where nobody asks
        Numbers.of(rule, depth)
    if count:
        options: dict[str, Any] = {
            "arithmetic": arithmetic,
            "workspace": workspace or Workspace(device),
        }
        if isinstance(rule, LossyRule):
            launch_lossy(chain, written(out), rule=rule, **options)
        else:
            chain = chain._replace(is_common=rule == "common_noise")
            launch_verify(chain, written(out), is_block=rule == "block", **options)
    return out


def device_chain(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    num_draft_tokens: Any,
    *,
    draft_logits: Any,
    at: tuple[Any, Any, Any],
    temperatures: tuple[Any, Any],
    marks: tuple[Tensor | None, Tensor | None],
    layout: Layout,
    draft_stats: TileStats | None,
    validate: bool,
) -> DeviceChain:
    """Checks what kernels are given, and moves to the device what is small and on the host."""
    device = target_logits.device
    place = placed(target_logits, draft_token_ids, num_draft_tokens, draft_logits, layout, validate)
    count, depth, vocab_size = place.sizes
    if validate:
        check_ids(draft_token_ids, place.ids_shape, depth, device)
        if marks[1] is not None:
            check_forbidden(marks[1], place.ids_shape)
        if draft_stats is not None:
            sizes = place.num_laws, vocab_size
            check_stats("draft_stats", draft_stats, *sizes, device, "a row a draft")
    law = draft_law(draft_logits, place, layout, device, validate) if depth else None
    key, key_stride = _field("key", at[0], count, device, validate)
    anchor, anchor_stride = _field("position", at[1], count, device, validate)
    sample, sample_stride = _field("sample", at[2], count, device, validate)
    scales = _temperatures(temperatures, count, device, validate)
    point_mass, forbidden = marks
    if point_mass is not None:
        point_mass = on_device("point_mass", point_mass, count, torch.bool, device)
    return DeviceChain(
        target=place.target,
        draft=None if law is None else law.rows,
        temperatures=scales,
        token_ids=draft_token_ids,
        num_drafts=place.num_drafts,
        point_mass=point_mass,
        forbidden=_forbidden(forbidden, device),
        at=((key, anchor, sample), (key_stride, anchor_stride, sample_stride)),
        draft_stats=None if draft_stats is None or law is None else draft_stats.tensors(),
        sizes=place.sizes,
        offsets=place.offsets,
        offsets_kind=place.offsets_kind,
        num_rows=place.num_rows,
        is_flat_draft=law is not None and law.is_flat,
        slots=None if law is None else law.slots,
        num_slots=0 if law is None else law.num_slots,
    )


def _forbidden(given: Any, device: torch.device) -> Tensor | None:
    if given is None:
        return None
    return torch.as_tensor(given).to(device=device, dtype=torch.bool).contiguous()


def _temperatures(
    temperatures: tuple[Any, Any], count: int, device: torch.device, validate: bool
) -> tuple[tuple[Tensor, int], tuple[Tensor, int]]:
    target, draft = temperatures
    own = temperature_tensor("temperature", target, count, device, validate=validate)
    if draft is None:
        return own, own
    return own, temperature_tensor("draft_temperature", draft, count, device, validate=validate)


def _field(
    name: str, value: Any, count: int, device: torch.device, validate: bool
) -> tuple[Tensor, int]:
    """A field of the requests on the device, wherever it was given, and its stride."""
    if not isinstance(value, Tensor):
        # NumPy takes a microsecond to say what a plain integer is
        if isinstance(value, int) or np.ndim(value) == 0:
            return device_field(name, int(value), count, device)
        array = np.asarray(value)
        array = array.view(np.int64) if array.dtype == np.uint64 else array.astype(np.int64)
        value = torch.from_numpy(np.ascontiguousarray(array))
    here = value if value.device == device else value.to(device)
    return field_here(name, here, count, validate)


def empty_verdict(count: int, num_rows: int, device: torch.device) -> Verdict:
    """Outputs that nothing is written to yet."""
    # a tensor each, that a custom op may return them; sizes in a tuple would be read more slowly
    integers: dict[str, Any] = {"dtype": torch.int64, "device": device}
    return Verdict(
        token_ids=torch.empty(count, num_rows, **integers),
        num_accepted_tokens=torch.empty(count, **integers),
        num_emitted_tokens=torch.empty(count, **integers),
        last_stream=torch.empty(count, **integers),
        margin=torch.empty(count, num_rows, dtype=torch.float64, device=device),
        error=torch.empty(count, **integers),
        num_broken=torch.empty(count, **integers),
    )


def written(out: Verdict) -> tuple[Tensor, ...]:
    """What the kernels fill in, in their order."""
    assert isinstance(out.num_broken, Tensor)
    return (
        out.token_ids,
        out.margin,
        out.num_accepted_tokens,
        out.num_emitted_tokens,
        out.last_stream,
        out.error,
        out.num_broken,
    )
