"""Trees of drafts near a target, and what their verification on a device is held to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fairdraft import ops
from fairdraft.noise import Stream
from fairdraft.ops import DeviceAddress, TreeVerdict
from tests.ops.triton.alike import VERDICT, assert_equal, assert_near

#: a root with three children, and two below the first
SMALL = [0, 0, 0, 1, 1]


def near_call(count: int, vocab_size: int, seed: int, parents: Any = SMALL) -> dict[str, Any]:
    """Whole trees, siblings drawn without replacement from a law near the target's."""
    size = len(parents)
    generator = torch.Generator().manual_seed(seed)
    target = 2 * torch.randn(count, size + 1, vocab_size, generator=generator)
    group = target + torch.randn(target.shape, generator=generator)
    draft = group[:, parents].clone()
    ids = torch.zeros(count, size, dtype=torch.int64)
    left = group.clone()
    for c, parent in enumerate(parents):
        law = left[:, parent].softmax(-1)
        ids[:, c] = torch.multinomial(law, 1, generator=generator)[:, 0]
        left[torch.arange(count), parent, ids[:, c]] = -torch.inf
    return {
        "target_logits": target,
        "draft_token_ids": ids,
        "parents": parents,
        "num_draft_tokens": torch.full((count,), size),
        "draft_logits": draft,
        "key": torch.arange(count) + (seed << 40),
        "anchor": 7,
    }


def _padded(values: Tensor, width: int, fill: float) -> Tensor:
    more = torch.full((len(values), width - values.shape[1]), fill, dtype=values.dtype)
    return torch.cat([values, more], 1)


def like_device(verdict: TreeVerdict, width: int) -> TreeVerdict:
    """The reference's verdict as wide as the kernels': D is the shape's there."""
    fills = {"token_ids": -1, "path": -1, "first_child": 0, "margin": 0.0}
    wide: dict[str, Any] = {n: _padded(getattr(verdict, n), width, f) for n, f in fills.items()}
    return replace(verdict, **wide)


def assert_trees_alike(
    call: dict[str, Any], has_fast: bool = False, **own: Any
) -> tuple[TreeVerdict, TreeVerdict]:
    """One call against the reference, in both arithmetics if asked."""
    got = ops.verify_tree(**call, **own, impl="triton", arithmetic="portable")
    expected = like_device(ops.verify_tree(**call, impl="reference"), got.path.shape[1])
    assert_equal(got, expected, (*VERDICT, "path", "first_child"))
    assert int(torch.as_tensor(got.num_broken).sum()) == expected.num_broken
    if has_fast:
        assert_near(ops.verify_tree(**call, **own, impl="triton", arithmetic="fast"), expected)
    return got, expected


def drawn_anew(call: dict[str, Any]) -> ops.TileStats:
    """Draws the siblings one by one by `ops.sample`, as a decoder does; their statistics."""
    parts: list[tuple[Tensor, ...]] = []
    for c in range(1, len(SMALL) + 1):
        left = call["draft_logits"][:, c - 1].clone()
        for elder in range(1, c):
            if SMALL[elder - 1] == SMALL[c - 1]:
                left.scatter_(1, call["draft_token_ids"][:, elder - 1 : elder], -torch.inf)
        drawn = ops.sample(
            left,
            DeviceAddress(Stream.DRAFT, call["key"], 7, 7, c),
            temperature=call["temperature"],
            impl="triton",
            arithmetic="portable",
            return_stats=True,
        )
        assert drawn.stats is not None
        call["draft_token_ids"][:, c - 1] = drawn.token_ids
        parts.append(drawn.stats.tensors())
    joined = [torch.stack(each, 1).flatten(0, 1) for each in zip(*parts, strict=True)]
    return ops.TileStats(*joined)
