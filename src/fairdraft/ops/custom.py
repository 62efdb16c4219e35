"""`fairdraft::sample` and `fairdraft::verify_chain`: ops to a compiler, tensors in, tensors out.

`ops.sample` and `ops.verify_chain` call these while `torch.compile` traces them, so code that uses
the ops compiles with `fullgraph=True`; `torch.ops.fairdraft` has them for everybody else. Keys are
the 64 bits of `request_key` as int64. Axes: B requests, K drafts, V vocabulary, T tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairdraft.noise import Address
from fairdraft.ops.arithmetic import TILE
from fairdraft.ops.chain_inputs import SparseLogits, block_depth
from fairdraft.ops.device_address import DeviceAddress, signed_key
from fairdraft.ops.filters import Filters
from fairdraft.ops.flat_rows import Layout
from fairdraft.ops.sample import Sampled, TileStats
from fairdraft.ops.sample import sample as draw
from fairdraft.ops.verdict import Verdict
from fairdraft.ops.verify import verify_chain

_SAMPLE = (
    "(Tensor logits, Tensor key, Tensor position, Tensor anchor, Tensor node, Tensor sample, "
    "Tensor temperature, int stream, str method='race', str impl='auto', str arithmetic='auto', "
    "bool return_stats=False, Tensor? top_k=None, Tensor? top_p=None, Tensor? min_p=None) -> "
    "(Tensor token_ids, Tensor margin, Tensor error, "
    "Tensor tile_max, Tensor tile_sum, Tensor row_max, Tensor row_sum)"
)
_VERIFY = (
    "(Tensor target_logits, Tensor draft_token_ids, Tensor? num_draft_tokens, "
    "Tensor? draft_logits, Tensor key, Tensor anchor, Tensor sample, Tensor temperature, "
    "Tensor? draft_temperature=None, Tensor? point_mass=None, Tensor? forbidden=None, "
    "Tensor? cu_num_logits=None, Tensor? cu_num_draft_tokens=None, SymInt? max_spec_len=None, "
    "Tensor? idx_mapping=None, Tensor? candidate_ids=None, Tensor[]? draft_stats=None, "
    "str rule='token', str impl='auto', str arithmetic='auto') -> (Tensor token_ids, "
    "Tensor num_accepted_tokens, Tensor num_emitted_tokens, Tensor last_stream, Tensor margin, "
    "Tensor error, Tensor num_broken)"
)


@torch.library.custom_op("fairdraft::sample", mutates_args=(), schema=_SAMPLE)
def _sample(
    logits: Tensor,
    key: Tensor,
    position: Tensor,
    anchor: Tensor,
    node: Tensor,
    sample: Tensor,
    temperature: Tensor,
    stream: int,
    method: Any = "race",
    impl: Any = "auto",
    arithmetic: Any = "auto",
    return_stats: bool = False,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> tuple[Tensor, ...]:
    drawn = draw(
        logits,
        DeviceAddress(stream, key, position, anchor, node, sample),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        method=method,
        impl=impl,
        arithmetic=arithmetic,
        return_stats=return_stats,
    )
    stats = _no_stats(logits) if drawn.stats is None else drawn.stats.tensors()
    return drawn.token_ids, drawn.margin, drawn.error, *stats


def _no_stats(logits: Tensor) -> tuple[Tensor, ...]:
    types = (torch.float32, torch.float32, torch.float32, torch.int64)
    return tuple(logits.new_empty(0, dtype=dtype) for dtype in types)


@_sample.register_fake
def _(logits, key, position, anchor, node, sample, temperature, stream, *options, **named):
    count, vocab_size = logits.shape
    has_stats = options[3] if len(options) > 3 else named.get("return_stats", False)
    tiles = (count, (vocab_size + TILE - 1) // TILE)
    stats = _no_stats(logits)
    if has_stats:
        shapes = (tiles, tiles, (count,), (count,))
        stats = tuple(
            logits.new_empty(shape, dtype=part.dtype)
            for shape, part in zip(shapes, stats, strict=True)
        )
    ids = logits.new_empty((count,), dtype=torch.int64)
    return ids, logits.new_empty((count,), dtype=torch.float64), torch.empty_like(ids), *stats


@torch.library.custom_op("fairdraft::verify_chain", mutates_args=(), schema=_VERIFY)
def _verify_chain(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    num_draft_tokens: Tensor | None,
    draft_logits: Tensor | None,
    key: Tensor,
    anchor: Tensor,
    sample: Tensor,
    temperature: Tensor,
    draft_temperature: Tensor | None = None,
    point_mass: Tensor | None = None,
    forbidden: Tensor | None = None,
    cu_num_logits: Tensor | None = None,
    cu_num_draft_tokens: Tensor | None = None,
    max_spec_len: int | None = None,
    idx_mapping: Tensor | None = None,
    candidate_ids: Tensor | None = None,
    draft_stats: Sequence[Tensor] | None = None,
    rule: Any = "token",
    impl: Any = "auto",
    arithmetic: Any = "auto",
) -> tuple[Tensor, ...]:
    law: Any = draft_logits
    if candidate_ids is not None:
        law = SparseLogits(candidate_ids, law)
    if cu_num_logits is not None or cu_num_draft_tokens is not None:
        max_spec_len = _width(target_logits, law, max_spec_len) - 1
    verdict = verify_chain(
        target_logits,
        draft_token_ids,
        num_draft_tokens,
        draft_logits=law,
        key=key,
        anchor=anchor,
        sample=sample,
        temperature=temperature,
        draft_temperature=draft_temperature,
        point_mass=point_mass,
        forbidden=forbidden,
        cu_num_logits=cu_num_logits,
        cu_num_draft_tokens=cu_num_draft_tokens,
        max_spec_len=max_spec_len,
        idx_mapping=idx_mapping,
        rule=rule,
        impl=impl,
        arithmetic=arithmetic,
        draft_stats=None if draft_stats is None else TileStats(*draft_stats),
    )
    return outputs_of(verdict)


def outputs_of(verdict: Verdict) -> tuple[Tensor, ...]:
    """What the op of a verification returns, in the order of `Verdict`."""
    return (
        verdict.token_ids,
        verdict.num_accepted_tokens,
        verdict.num_emitted_tokens,
        verdict.last_stream,
        verdict.margin,
        verdict.error,
        torch.as_tensor(verdict.num_broken),
    )


def _width(target_logits: Tensor, law: Any, max_spec_len: int | None) -> int:
    """K + 1 of the result: a compiled graph has to know it from shapes."""
    if target_logits.dim() == 3:
        return target_logits.shape[1]
    depth = block_depth(law) if max_spec_len is None else max_spec_len
    if depth is None:
        raise ValueError(
            "max_spec_len is missing: the width of the result must not depend on the offsets; "
            "give the most drafts of a request"
        )
    return depth + 1


@_verify_chain.register_fake
def _(
    target_logits,
    draft_token_ids,
    num_draft_tokens,
    draft_logits,
    key,
    anchor,
    sample,
    temperature,
    draft_temperature=None,
    point_mass=None,
    forbidden=None,
    cu_num_logits=None,
    cu_num_draft_tokens=None,
    max_spec_len=None,
    *rest,
    **named,
):
    count = target_logits.shape[0]
    if cu_num_logits is not None:
        count = cu_num_logits.shape[0] - 1
    elif cu_num_draft_tokens is not None:
        count = cu_num_draft_tokens.shape[0]
    width = _width(target_logits, draft_logits, max_spec_len)

    def ints(*shape):
        return target_logits.new_empty(shape, dtype=torch.int64)

    margin = target_logits.new_empty((count, width), dtype=torch.float64)
    # one number a request on a device, one of them all on the host
    broken = ints() if target_logits.device.type == "cpu" else ints(count)
    vectors = (ints(count), ints(count), ints(count))
    return ints(count, width), *vectors, margin, ints(count), broken


def traced_sample(
    logits: Tensor,
    address: Address | DeviceAddress,
    temperature: Any,
    filters: Filters,
    **options: Any,
) -> Sampled:
    """`ops.sample` while it is traced; `options` are those of `fairdraft::sample`."""
    if isinstance(address, Address):
        raise ValueError("a packed Address cannot be traced; give a DeviceAddress of tensors")
    if isinstance(address.stream, Tensor):
        raise ValueError("address field stream is a tensor; give a Stream in a compiled call")
    names = ("key", "position", "anchor", "node", "sample")
    fields = [field_tensor(name, getattr(address, name), logits) for name in names]
    for name, value in zip(Filters._fields, filters, strict=True):
        dtype = torch.int64 if name == "top_k" else torch.float64
        number = number_tensor(name, value, logits, dtype)
        is_one = isinstance(number, Tensor) and not number.dim()
        options[name] = number.expand(logits.shape[0]).contiguous() if is_one else number
    out = torch.ops.fairdraft.sample(
        logits,
        *fields,
        number_tensor("temperature", temperature, logits, torch.float64),
        int(address.stream),
        **options,
    )
    stats = TileStats(*out[3:]) if options["return_stats"] else None
    return Sampled(out[0], out[1], out[2], stats)


def traced_verify(
    given: tuple[Tensor, Tensor, Any, Any],
    at: tuple[Any, Any, Any],
    temperatures: tuple[Any, Any],
    marks: tuple[Tensor | None, Tensor | None],
    layout: Layout,
    draft_stats: TileStats | None,
    **options: Any,
) -> Verdict:
    """`ops.verify_chain` while it is traced.

    `given` is the target's logits, the drafts, how many there are, and their logits; `options` are
    the strings of `fairdraft::verify_chain`.
    """
    target_logits, draft_token_ids, num_draft_tokens, draft_logits = given
    candidates = None
    if isinstance(draft_logits, SparseLogits):
        candidates, draft_logits = draft_logits.token_ids, draft_logits.logits
    key, anchor, sample = at
    out = torch.ops.fairdraft.verify_chain(
        target_logits,
        draft_token_ids,
        number_tensor("num_draft_tokens", num_draft_tokens, target_logits, torch.int64),
        draft_logits,
        field_tensor("key", key, target_logits),
        field_tensor("anchor", anchor, target_logits),
        field_tensor("sample", sample, target_logits),
        number_tensor("temperature", temperatures[0], target_logits, torch.float64),
        number_tensor("draft_temperature", temperatures[1], target_logits, torch.float64),
        point_mass=marks[0],
        forbidden=marks[1],
        cu_num_logits=layout.cu_num_logits,
        cu_num_draft_tokens=layout.cu_num_draft_tokens,
        max_spec_len=layout.max_spec_len,
        idx_mapping=layout.idx_mapping,
        candidate_ids=candidates,
        draft_stats=None if draft_stats is None else list(draft_stats.tensors()),
        **options,
    )
    return Verdict(*out)


def field_tensor(name: str, value: Any, like: Tensor) -> Tensor:
    """A field of an address as a tensor, 0-dimensional if it holds for all."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = signed_key(value)
    return number_tensor(name, value, like, torch.int64)


def number_tensor(name: str, value: Any, like: Tensor, dtype: torch.dtype) -> Any:
    """A number as a 0-dimensional tensor; None and tensors as they are."""
    if value is None or isinstance(value, Tensor):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(
            f"{name} is a {type(value).__name__}; a compiled call takes a tensor or a number"
        )
    return torch.full((), value, dtype=dtype, device=like.device)
