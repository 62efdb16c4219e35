"""Flat rows of `ops.verify_chain` in Triton kernels, interpreted: the tokens of the padded call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fairdraft import ops
from fairdraft.noise import Stream
from fairdraft.ops import RowError
from fairdraft.ops.triton.workspace import Workspace
from fairdraft.ops.verify import Rule
from tests.ops.flat import Offsets, flattened
from tests.ops.triton.alike import VERDICT, assert_equal
from tests.ops.triton.test_chain import batch

WORKSPACE = Workspace("cpu")
KERNELS: dict[str, Any] = {"impl": "triton", "arithmetic": "portable"}


@pytest.mark.parametrize(
    ("offsets", "is_shifted", "num_spare", "kind", "rule", "vocab_size"),
    [
        ("cu_num_logits", False, 0, "dense", "block", 520),
        ("cu_num_logits", True, 2, "mixed", "token", 40),
        ("cu_num_draft_tokens", False, 3, "sparse", "block", 40),
        ("cu_num_draft_tokens", True, 0, "dense", "token", 520),
        ("cu_num_draft_tokens", False, 0, "point", "token", 40),
    ],
)
def test_flat_rows_give_the_tokens_of_padded_ones(
    offsets: Offsets, is_shifted: bool, num_spare: int, kind: str, rule: Rule, vocab_size: int
) -> None:
    """Across a boundary of tiles, in memory that calls of other layouts used before."""
    call: dict[str, Any] = batch(4, 2, vocab_size, kind, seed=21) | {"rule": rule}
    expected = ops.verify_chain(**call, impl="reference")
    flat = flattened(call, offsets, is_shifted=is_shifted, num_spare=num_spare)
    got = ops.verify_chain(**flat, **KERNELS, workspace=WORKSPACE)
    assert_equal(got, expected, VERDICT)
    assert int(torch.as_tensor(got.num_broken).sum()) == expected.num_broken


def test_laws_in_blocks_slots_and_strided_memory() -> None:
    call: dict[str, Any] = batch(3, 1, 40, "dense", seed=22)
    expected = ops.verify_chain(**call, impl="reference")
    flat = flattened(call, "cu_num_logits")
    block = flat | {"draft_logits": call["draft_logits"]}
    assert_equal(ops.verify_chain(**block, **KERNELS), expected, VERDICT)
    cache = torch.full((9, 1, 77), torch.nan)[..., :40]
    slots = torch.tensor([7, 0, 8])
    cache[slots] = call["draft_logits"]
    wide = torch.full((len(flat["target_logits"]), 80), torch.inf)[:, :40]
    flat["target_logits"] = wide.copy_(flat["target_logits"])
    for own in (flat, call):
        slotted = own | {"draft_logits": cache, "idx_mapping": slots.int()}
        assert_equal(ops.verify_chain(**slotted, **KERNELS), expected, VERDICT)


def test_offsets_that_only_the_device_sees_are_errors_of_their_requests() -> None:
    """Each run of rows that cannot be fails alone, and reads nothing outside of the batch."""
    right = [0, 2, 3, 5, 6]
    good = ops.verify_chain(**unseen_call(right), **KERNELS)
    assert not good.error.any()
    for bad, failed in [
        ([0, 2, 3, 5, 7], [3]),
        ([0, 2, (1 << 63) - 1, -(1 << 63), 6], [1, 2, 3]),
        ([1, 1, 1, 2, 4], [0, 1, 2, 3]),
    ]:
        got = ops.verify_chain(**unseen_call(bad), **KERNELS)
        assert torch.nonzero(got.error == RowError.PARAMETER)[:, 0].tolist() == failed, bad
        assert (got.token_ids[failed] == -1).all() and not got.num_emitted_tokens[failed].any()
        kept = [b for b in range(4) if bad[b : b + 2] == right[b : b + 2]]
        assert torch.equal(got.token_ids[kept], good.token_ids[kept]), bad
    assert "an offset" in RowError.PARAMETER.message


def unseen_call(offsets: list[int]) -> dict[str, Any]:
    """Requests of 1, 0, 1 and 0 drafts, whose offsets are not looked at on the host."""
    call: dict[str, Any] = batch(4, 1, 20, "dense", seed=23) | {"forbidden": None}
    call |= {"num_draft_tokens": torch.tensor([1, 0, 1, 0]), "temperature": 1.0}
    call["target_logits"] = torch.nan_to_num(call["target_logits"])
    flat = flattened(call, "cu_num_logits") | {"validate": False}
    return flat | {"cu_num_logits": torch.tensor(offsets)}


def test_slots_that_only_the_device_sees_are_errors_of_their_requests() -> None:
    call: dict[str, Any] = batch(4, 1, 20, "dense", seed=24) | {"forbidden": None}
    call["target_logits"] = torch.nan_to_num(call["target_logits"])
    good = ops.verify_chain(**call, impl="reference")
    call |= {"idx_mapping": torch.tensor([0, -1, 4, 3]), "validate": False}
    got = ops.verify_chain(**call, **KERNELS)
    assert got.error.tolist() == [0, RowError.PARAMETER, RowError.PARAMETER, 0]
    assert torch.equal(got.token_ids[[0, 3]], good.token_ids[[0, 3]])


def test_statistics_have_a_row_for_each_flat_draft() -> None:
    call: dict[str, Any] = batch(3, 2, 40, "dense", seed=25) | {"forbidden": None}
    call |= {"num_draft_tokens": torch.tensor([2, 0, 1]), "temperature": 1.0}
    flat = flattened(call, "cu_num_draft_tokens")
    at = ops.DeviceAddress(Stream.DRAFT, 3, torch.arange(3))
    drawn = ops.sample(flat["draft_logits"], at, return_stats=True, **KERNELS)
    flat["draft_token_ids"] = drawn.token_ids
    expected = ops.verify_chain(**flat, impl="reference")
    got = ops.verify_chain(**flat, **KERNELS, draft_stats=drawn.stats)
    assert_equal(got, expected, VERDICT)
    with pytest.raises(ValueError, match=r"draft_stats.tile_max has shape \(3, 1\), not \(6, 1\)"):
        block = flat | {"draft_logits": call["draft_logits"]}
        ops.verify_chain(**block, **KERNELS, draft_stats=drawn.stats)


@pytest.mark.parametrize("field", ["tile_max", "tile_sum", "row_max", "row_sum"])
def test_statistics_that_are_laid_out_in_another_way_are_refused(field: str) -> None:
    """Kernels would read what lies between them."""
    call: dict[str, Any] = batch(2, 2, 600, "dense", seed=26) | {"temperature": 1.0}
    at = ops.DeviceAddress(Stream.DRAFT, 3, torch.arange(4))
    drawn = ops.sample(call["draft_logits"].flatten(0, 1), at, return_stats=True, **KERNELS)
    assert drawn.stats is not None
    part = getattr(drawn.stats, field)
    for other in (torch.stack([part, part], -1)[..., 0], part.to(torch.float16)):
        stats = replace(drawn.stats, **{field: other})
        with pytest.raises(ValueError, match=rf"draft_stats.{field} is torch.*contiguous"):
            ops.verify_chain(**call, **KERNELS, draft_stats=stats)


def test_offsets_on_a_device_need_a_width() -> None:
    """The call does not wait for the device to learn the longest request."""
    call = unseen_call([0, 2, 3, 5, 6]) | {"max_spec_len": None}
    call["cu_num_logits"] = torch.zeros(5, dtype=torch.int32, device="meta")
    with pytest.raises(ValueError, match="max_spec_len is missing: the offsets are on a device"):
        ops.verify_chain(**call, **KERNELS)
