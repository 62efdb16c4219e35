"""`fairdraft::verify_tree`: the op to a compiler, as `custom.py` has the others.

Axes: B requests, N nodes, D depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairdraft.ops.chain_inputs import SparseLogits
from fairdraft.ops.custom import field_tensor, number_tensor, outputs_of
from fairdraft.ops.sample import TileStats
from fairdraft.ops.verdict import TreeVerdict
from fairdraft.ops.verify_tree import verify_tree

_VERIFY = (
    "(Tensor target_logits, Tensor draft_token_ids, Tensor parents, Tensor num_draft_tokens, "
    "Tensor? draft_logits, Tensor key, Tensor anchor, Tensor sample, Tensor temperature, "
    "Tensor? draft_temperature=None, Tensor? point_mass=None, Tensor? forbidden=None, "
    "Tensor? candidate_ids=None, Tensor[]? draft_stats=None, SymInt? max_depth=None, "
    "str impl='auto', str arithmetic='auto') -> (Tensor token_ids, Tensor num_accepted_tokens, "
    "Tensor num_emitted_tokens, Tensor last_stream, Tensor margin, Tensor error, "
    "Tensor num_broken, Tensor path, Tensor first_child)"
)


@torch.library.custom_op("fairdraft::verify_tree", mutates_args=(), schema=_VERIFY)
def _verify_tree(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    parents: Tensor,
    num_draft_tokens: Tensor,
    draft_logits: Tensor | None,
    key: Tensor,
    anchor: Tensor,
    sample: Tensor,
    temperature: Tensor,
    draft_temperature: Tensor | None = None,
    point_mass: Tensor | None = None,
    forbidden: Tensor | None = None,
    candidate_ids: Tensor | None = None,
    draft_stats: Sequence[Tensor] | None = None,
    max_depth: int | None = None,
    impl: Any = "auto",
    arithmetic: Any = "auto",
) -> tuple[Tensor, ...]:
    law: Any = draft_logits
    if candidate_ids is not None:
        law = SparseLogits(candidate_ids, law)
    verdict = verify_tree(
        target_logits,
        draft_token_ids,
        parents,
        num_draft_tokens,
        draft_logits=law,
        key=key,
        anchor=anchor,
        sample=sample,
        temperature=temperature,
        draft_temperature=draft_temperature,
        point_mass=point_mass,
        forbidden=forbidden,
        max_depth=_depth(target_logits, max_depth),
        impl=impl,
        arithmetic=arithmetic,
        draft_stats=None if draft_stats is None else TileStats(*draft_stats),
    )
    return *outputs_of(verdict), verdict.path, verdict.first_child


def _depth(target_logits: Tensor, max_depth: int | None) -> int:
    """D of the result: a compiled graph has to know it from shapes."""
    return target_logits.shape[1] - 1 if max_depth is None else max_depth


@_verify_tree.register_fake
def _(target_logits, draft_token_ids, parents, num_draft_tokens, *rest, **named):
    count = target_logits.shape[0]
    max_depth = rest[10] if len(rest) > 10 else named.get("max_depth")
    width = _depth(target_logits, max_depth) + 1

    def ints(*shape):
        return target_logits.new_empty(shape, dtype=torch.int64)

    margin = target_logits.new_empty((count, width), dtype=torch.float64)
    # one number a request on a device, one of them all on the host
    broken = ints() if target_logits.device.type == "cpu" else ints(count)
    vectors = (ints(count), ints(count), ints(count))
    walked = (ints(count, width), ints(count, width))
    return ints(count, width), *vectors, margin, ints(count), broken, *walked


def traced_tree(
    given: tuple[Tensor, Tensor, Any, Any],
    draft_logits: Tensor | SparseLogits | None,
    at: tuple[Any, Any, Any],
    temperatures: tuple[Any, Any],
    marks: tuple[Any, Any],
    draft_stats: TileStats | None,
    **options: Any,
) -> TreeVerdict:
    """`ops.verify_tree` while it is traced; `options` are those of `fairdraft::verify_tree`.

    `given` is the target's logits, the drafts, their parents, and how many there are.
    """
    target_logits, draft_token_ids, parents, num_draft_tokens = given
    if not isinstance(parents, Tensor):
        raise ValueError(
            f"parents is a {type(parents).__name__}; a compiled call takes a tensor, best on the "
            "host"
        )
    candidates = None
    if isinstance(draft_logits, SparseLogits):
        candidates, draft_logits = draft_logits.token_ids, draft_logits.logits
    out = torch.ops.fairdraft.verify_tree(
        target_logits,
        draft_token_ids,
        parents,
        number_tensor("num_draft_tokens", num_draft_tokens, target_logits, torch.int64),
        draft_logits,
        field_tensor("key", at[0], target_logits),
        field_tensor("anchor", at[1], target_logits),
        field_tensor("sample", at[2], target_logits),
        number_tensor("temperature", temperatures[0], target_logits, torch.float64),
        number_tensor("draft_temperature", temperatures[1], target_logits, torch.float64),
        point_mass=marks[0],
        forbidden=marks[1],
        candidate_ids=candidates,
        draft_stats=None if draft_stats is None else list(draft_stats.tensors()),
        **options,
    )
    return TreeVerdict(*out[:-2], path=out[-2], first_child=out[-1])
