"""Lossy rules of `ops.verify_chain` in Triton kernels, interpreted: they equal the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from fairdraft import ops
from fairdraft.noise import Trace
from fairdraft.ops import LossyRule, RowError, Synthetic, Threshold
from fairdraft.ops.triton import lossy as lossy_kernels
from fairdraft.ops.triton.workspace import Workspace
from tests.ops.flat import flattened
from tests.ops.triton.alike import VERDICT, assert_equal, assert_verified_alike, guarded
from tests.ops.triton.lossy_cases import LOSSY, at_the_bound, is_bound_kept
from tests.ops.triton.test_chain import batch

right_spread = lossy_kernels.row_spread
lossy = pytest.mark.parametrize("rule", LOSSY.values(), ids=LOSSY)


@lossy
@pytest.mark.parametrize(
    ("vocab_size", "depth", "kind"),
    [(1, 1, "mixed"), (63, 3, "dense"), (512, 1, "sparse"), (600, 2, "mixed")],
)
def test_kernels_equal_the_reference(
    vocab_size: int, depth: int, kind: str, rule: LossyRule
) -> None:
    call: dict[str, Any] = batch(4, depth, vocab_size, kind, seed=vocab_size) | {"rule": rule}
    got, _ = assert_verified_alike(call, has_fast=vocab_size == 600)
    assert got.lossy == rule.name


@lossy
def test_many_tiles_and_narrow_logits_in_wider_memory(rule: LossyRule) -> None:
    """Laws wide enough that every tile has a part in the entropy."""
    call: dict[str, Any] = batch(4, 1, 2_600, "mixed", seed=3)
    for name in ("target_logits", "draft_logits"):
        call[name] = guarded(call[name].to(torch.bfloat16))
    assert_verified_alike(call | {"rule": rule}, has_fast=True)


@triton.jit
def spread_of_tiles_alone(spread_ptr, top, total, row_max, row_sum, c, num_tiles):
    """A fault: tiles whose maxima are taken for the row's."""
    return right_spread(
        spread_ptr, tl.zeros_like(top) + row_max, total, row_max, row_sum, c, num_tiles
    )


@pytest.mark.parametrize("arithmetic", ["portable", "fast"])
def test_the_bound_of_typical_follows_the_entropy(arithmetic: str) -> None:
    """On both sides; without the leads of tiles (entropy off by less than a bit) it does not."""
    for side in (1, -1):
        expected = ops.verify_chain(**at_the_bound(side), impl="reference")
        assert int(expected.num_accepted_tokens) == (side == 1)
    assert is_bound_kept(arithmetic)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lossy_kernels, "row_spread", spread_of_tiles_alone)
        assert not is_bound_kept(arithmetic)


@lossy
def test_no_drafts_and_no_requests(rule: LossyRule) -> None:
    call: dict[str, Any] = batch(4, 0, 60, "dense", seed=5) | {"rule": rule}
    assert_verified_alike(call)
    none: dict[str, Any] = {name: v[:0] for name, v in call.items() if name != "rule"}
    got, _ = assert_verified_alike(none | {"rule": rule})
    assert got.token_ids.shape == (0, 1) and got.lossy == rule.name


def settled(count: int, vocab_size: int, seed: int) -> dict[str, Any]:
    """Requests of two likely drafts each, at temperature 1, that know nothing of bad rows."""
    call: dict[str, Any] = batch(count, 2, vocab_size, "dense", seed) | {"temperature": 1.0}
    target = torch.nan_to_num(call["target_logits"])
    call |= {"target_logits": target, "draft_logits": target[:, :2].clone(), "forbidden": None}
    call |= {"draft_token_ids": target[:, :2].argmax(-1)}
    return call | {"num_draft_tokens": torch.full((count,), 2), "point_mass": None}


@lossy
def test_drafts_that_cannot_stand(rule: LossyRule) -> None:
    """Forbidden, p = 0, outside the vocabulary: rejected at once, and the row goes on."""
    call: dict[str, Any] = settled(6, 600, seed=7) | {"rule": _surely(rule)}
    ids = call["draft_token_ids"]
    call["forbidden"] = torch.zeros(6, 2, dtype=torch.bool)
    call["forbidden"][0, 0] = call["forbidden"][5, 1] = True
    call["target_logits"][2, 0, ids[2, 0]] = -torch.inf
    ids[3, 0], ids[4, 0] = 600, -7
    got, _ = assert_verified_alike(call)
    assert got.num_accepted_tokens[[0, 2, 3, 4]].tolist() == [0] * 4
    assert not got.error.any() and not torch.as_tensor(got.num_broken).any()


def _surely(rule: LossyRule) -> LossyRule:
    return Synthetic((1.0, 1.0, 1.0)) if isinstance(rule, Synthetic) else rule


@lossy
def test_bad_rows_are_errors_of_their_own(rule: LossyRule) -> None:
    """At the first row, at a later one, in the draft where a residual needs it; a lone token."""
    never = Synthetic((0.0, 0.0)) if isinstance(rule, Synthetic) else rule
    call: dict[str, Any] = settled(8, 520, seed=8) | {"rule": never}
    target, draft = call["target_logits"], call["draft_logits"]
    target[0, 0, 519] = torch.nan
    target[1, 0, 3] = torch.inf
    target[2, 0] = -torch.inf
    draft[3, 0, 1] = torch.nan
    draft[4, 0, 0] = torch.inf
    draft[5, 0] = -torch.inf
    target[6] = -torch.inf
    target[6, :, 77] = 0.0
    call |= {"target_logits": guarded(target), "draft_logits": guarded(draft)}
    got, _ = assert_verified_alike(call)
    assert got.error[:3].tolist() == [RowError.NAN, RowError.INFINITE, RowError.EMPTY]
    is_read = isinstance(rule, Synthetic)
    assert got.error[3:].tolist() == [RowError.DRAFT * is_read] * 3 + [0, 0]


def test_a_lone_token_that_is_rejected_comes_back() -> None:
    """p without its only token is nothing, so it is p; and p without a tile's only token."""
    call: dict[str, Any] = settled(4, 1_030, seed=9) | {
        "rule": Threshold(1.0, 1.0),
        "draft_logits": None,
    }
    target = call["target_logits"] = torch.full((4, 3, 1_030), -torch.inf)
    target[:, :, 1_024] = 1.0
    target[2:, :, 5] = 0.9
    call["draft_token_ids"] = torch.tensor([[1_024, 9], [3, 9], [1_024, 1_024], [5, 5]])
    call["key"] = np.arange(4, dtype=np.uint64)
    got, _ = assert_verified_alike(call | {"anchor": 7})
    assert got.token_ids[0, 0] == 1_024 and not got.error.any()


@pytest.mark.parametrize(
    ("offsets", "is_shifted", "kind", "name"),
    [
        ("cu_num_logits", True, "mixed", "synthetic"),
        ("cu_num_draft_tokens", False, "point", "threshold"),
        ("cu_num_draft_tokens", True, "sparse", "typical"),
    ],
)
def test_flat_rows_give_the_tokens_of_padded_ones(
    offsets: Any, is_shifted: bool, kind: str, name: str
) -> None:
    """In one workspace that is poisoned between calls."""
    workspace = Workspace("cpu")
    call: dict[str, Any] = batch(4, 2, 520, kind, seed=21) | {"rule": LOSSY[name]}
    expected = ops.verify_chain(**call, impl="reference")
    flat = flattened(call, offsets, is_shifted=is_shifted, num_spare=2)
    for own in (call, flat):
        options: dict[str, Any] = {"arithmetic": "portable", "workspace": workspace}
        got = ops.verify_chain(**own, impl="triton", **options)
        assert_equal(got, expected, VERDICT)
        workspace.poison()


def test_given_statistics_of_drafts_are_taken() -> None:
    call: dict[str, Any] = settled(3, 600, seed=4) | {"rule": Synthetic((0.5, 0.2))}
    expected = ops.verify_chain(**call, impl="reference")
    rows = call["draft_logits"].reshape(6, 600)
    at = ops.DeviceAddress(1, torch.arange(6), torch.arange(6))
    options: dict[str, Any] = {"impl": "triton", "arithmetic": "portable"}
    stats = ops.sample(rows, at, return_stats=True, **options).stats
    assert_equal(ops.verify_chain(**call, draft_stats=stats, **options), expected, VERDICT)


@lossy
def test_what_has_no_form_on_a_device_is_refused(rule: LossyRule) -> None:
    call: dict[str, Any] = settled(2, 40, seed=1) | {"rule": rule, "impl": "triton"}
    with pytest.raises(ValueError, match=r"return_weights is not built.*verify .cpu"):
        ops.verify_chain(**call, return_weights=True)
    with pytest.raises(ValueError, match=r"trace is not built.*verify .cpu"):
        ops.verify_chain(**call, trace=Trace())
    call["rule"] = Synthetic((0.5,))
    with pytest.raises(ValueError, match="are 1 for 2 drafts"):
        ops.verify_chain(**call)
