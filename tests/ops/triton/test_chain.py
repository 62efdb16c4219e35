"""`ops.verify_chain` in Triton kernels, interpreted: both rules equal the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fairdraft import ops
from fairdraft.noise import Stream, Trace
from fairdraft.ops import RowError, SparseLogits
from fairdraft.ops.triton import verify
from fairdraft.ops.triton.workspace import Workspace
from fairdraft.ops.verify import Rule
from tests.ops.test_verify import random_call
from tests.ops.triton.alike import assert_verified_alike, guarded

rules = pytest.mark.parametrize("rule", ["token", "block"])
both_ways = pytest.mark.parametrize("way", ["few rows", "many rows"])


@pytest.fixture(autouse=True)
def cut_as_asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the kernels of large calls where a test asks for many rows."""
    if hasattr(request.node, "callspec") and request.node.callspec.params.get("way") == "many rows":
        monkeypatch.setattr(verify, "FEW_ROWS", 0)


def batch(count: int, depth: int, vocab_size: int, kind: str, seed: int) -> dict[str, Any]:
    """Some of the random batch of `test_verify`, beginning with the requests that it marks."""
    call = random_call(12, depth, vocab_size, kind, seed)
    order = np.array([5, 4, 3, 11, 10, 9, 8, 7])[:count]
    picked = {name: take(value, order) for name, value in call.items()}
    picked["temperature"] = torch.from_numpy(picked["temperature"]).float()
    return picked


def take(value: Any, order: np.ndarray) -> Any:
    if isinstance(value, SparseLogits):
        return SparseLogits(value.token_ids[order], value.logits[order])
    return None if value is None else value[order]


@both_ways
@rules
@pytest.mark.parametrize(
    ("vocab_size", "depth", "kind"),
    [
        (1, 1, "mixed"),
        (63, 3, "dense"),
        (63, 2, "point"),
        (512, 1, "sparse"),
        (600, 2, "mixed"),
    ],
)
def test_kernels_equal_the_reference(
    vocab_size: int, depth: int, kind: str, rule: Rule, way: str
) -> None:
    call = batch(4, depth, vocab_size, kind, seed=vocab_size) | {"rule": rule}
    assert_verified_alike(call, has_fast=vocab_size == 600)


@pytest.mark.parametrize(("vocab_size", "depth"), [(63, 2), (520, 1)])
def test_common_noise_equals_the_reference(vocab_size: int, depth: int) -> None:
    call = batch(4, depth, vocab_size, "point", seed=vocab_size) | {"rule": "common_noise"}
    assert_verified_alike(call)


@rules
def test_many_tiles_and_narrow_logits_in_wider_memory(rule: Rule) -> None:
    call = batch(4, 1, 2_600, "mixed", seed=3)
    for name in ("target_logits", "draft_logits"):
        call[name] = guarded(call[name].to(torch.bfloat16))
    assert_verified_alike(call | {"rule": rule}, has_fast=True)


@rules
@pytest.mark.parametrize("kind", ["dense", "point"])
def test_no_drafts_and_no_requests(kind: str, rule: Rule) -> None:
    call: dict[str, Any] = batch(4, 0, 60, kind, seed=5) | {"rule": rule}
    got, _ = assert_verified_alike(call)
    assert (got.last_stream[got.error == 0] == Stream.TARGET).all()
    none: dict[str, Any] = {
        name: take(value, np.arange(0)) for name, value in call.items() if name != "rule"
    }
    got, _ = assert_verified_alike(none | {"rule": rule})
    assert got.token_ids.shape == (0, 1)


@rules
def test_equal_laws_accept_every_draft(rule: Rule) -> None:
    """p == q: nothing is left to replace, and each request ends in a bonus token."""
    call: dict[str, Any] = batch(3, 3, 600, "dense", seed=6) | {"rule": rule, "forbidden": None}
    call["temperature"] = 0.7
    call["target_logits"] = torch.nan_to_num(call["target_logits"])
    call["draft_logits"] = call["target_logits"][:, :3].clone()
    call["draft_token_ids"] = call["draft_logits"].argmax(-1)
    call["num_draft_tokens"] = torch.tensor([3, 2, 1])
    got, _ = assert_verified_alike(call)
    assert got.num_accepted_tokens.tolist() == [3, 2, 1]
    assert (got.last_stream == Stream.BONUS).all()


@rules
def test_drafts_that_cannot_stand(rule: Rule) -> None:
    """Forbidden, q = 0, p = 0, outside the vocabulary: rejected at once, and the row goes on."""
    call: dict[str, Any] = batch(6, 2, 600, "dense", seed=7) | {"rule": rule, "temperature": 1.0}
    call["target_logits"] = torch.nan_to_num(call["target_logits"])
    call["draft_logits"] = call["target_logits"][:, :2] + torch.randn(
        6, 2, 600, generator=torch.Generator().manual_seed(0)
    )
    ids = call["draft_logits"].argmax(-1)
    call["num_draft_tokens"] = torch.full((6,), 2)
    call["forbidden"] = torch.zeros(6, 2, dtype=torch.bool)
    call["forbidden"][0, 0] = call["forbidden"][5, 1] = True
    call["draft_logits"][1, 0, ids[1, 0]] = -torch.inf
    call["target_logits"][2, 0, ids[2, 0]] = -torch.inf
    ids[3, 0], ids[4, 0] = 600, -7
    call["draft_token_ids"] = ids
    got, expected = assert_verified_alike(call)
    assert got.num_accepted_tokens[:5].tolist() == [0] * 5
    assert expected.num_broken == 3 and not got.error.any()


@rules
def test_bad_rows_are_errors_of_their_own(rule: Rule) -> None:
    """At the first row, at a later one, in the draft; and the one token that a mask leaves."""
    call: dict[str, Any] = batch(8, 2, 520, "dense", seed=8) | {"rule": rule, "forbidden": None}
    target = torch.nan_to_num(call["target_logits"])
    draft = target[:, :2].clone()
    call["draft_token_ids"] = draft.argmax(-1)
    call["num_draft_tokens"], call["temperature"] = torch.full((8,), 2), 1.0
    target[0, 0, 519] = torch.nan
    target[1, 1, 3] = torch.inf
    target[2, 2] = -torch.inf
    draft[3, 0, 1] = torch.nan
    draft[4, 1, 0] = torch.inf
    draft[5, 1] = -torch.inf
    target[6] = -torch.inf
    target[6, :, 77] = 0.0
    call |= {"target_logits": guarded(target), "draft_logits": guarded(draft)}
    got, _ = assert_verified_alike(call)
    kinds = [RowError.NAN, RowError.INFINITE, RowError.EMPTY, *[RowError.DRAFT] * 3, 0, 0]
    assert got.error.tolist() == kinds
    assert got.num_accepted_tokens[7] == 2


@rules
def test_a_forbidden_last_token_leaves_an_empty_row(rule: Rule) -> None:
    call: dict[str, Any] = batch(2, 1, 40, "dense", seed=9) | {"rule": rule, "temperature": 1.0}
    call["target_logits"] = torch.full((2, 2, 40), -torch.inf)
    call["target_logits"][:, :, 7] = 1.0
    call["draft_token_ids"] = torch.full((2, 1), 7)
    call["num_draft_tokens"] = torch.ones(2, dtype=torch.int64)
    call["forbidden"] = torch.tensor([[True], [False]])
    got, _ = assert_verified_alike(call)
    assert got.error.tolist() == [RowError.EMPTY, 0]


@rules
def test_bad_numbers_on_the_device_are_errors_of_their_requests(rule: Rule) -> None:
    call: dict[str, Any] = batch(8, 2, 60, "dense", seed=10) | {"rule": rule}
    call["target_logits"] = torch.nan_to_num(call["target_logits"])
    call["num_draft_tokens"] = torch.full((8,), 2)
    call["anchor"] = torch.tensor([5, 1 << 32, -1, 5, 5, 5, (1 << 32) - 1, 5])
    call["sample"] = torch.tensor([0, 0, 0, 1 << 16, -1, 0, 0, 0])
    call["temperature"] = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, -1.0, 1.0, 1.0])
    good = np.array([0, 7])
    host: dict[str, Any] = {
        name: take(value, good) for name, value in call.items() if name != "rule"
    }
    expected = ops.verify_chain(**host, rule=rule, impl="reference")
    got = ops.verify_chain(**call, impl="triton", arithmetic="portable")
    assert got.error[:6].tolist() == [0, *[RowError.ADDRESS] * 4, RowError.PARAMETER]
    assert got.error[7] == 0
    assert torch.equal(got.token_ids[good], expected.token_ids)
    assert (got.token_ids[1:6] == -1).all() and (got.num_emitted_tokens[1:6] == 0).all()


@rules
def test_draft_temperatures_of_their_own(rule: Rule) -> None:
    """A greedy drafter is a point mass, a bad temperature of a draft an error."""
    call: dict[str, Any] = batch(4, 2, 600, "dense", seed=11) | {"rule": rule}
    call["temperature"] = torch.tensor([1.0, 0.5, 0.0, 2.0])
    call["draft_temperature"] = torch.tensor([2.0, 0.0, 1.0, 0.3])
    assert_verified_alike(call)
    call["draft_temperature"][0] = torch.nan
    got = ops.verify_chain(**call, impl="triton")
    assert got.error[0] == RowError.PARAMETER and got.token_ids[0].tolist() == [-1] * 3


@rules
def test_statistics_from_the_drafts_own_sampling(rule: Rule) -> None:
    """Drafts drawn by `ops.sample` and verified with its statistics, as a decoder does."""
    call: dict[str, Any] = batch(4, 2, 600, "dense", seed=12) | {"rule": rule, "forbidden": None}
    call["temperature"] = torch.tensor([1.0, 0.5, 0.0, 2.0])
    call["num_draft_tokens"] = torch.tensor([2, 2, 2, 1])
    draft = call["draft_logits"]
    at = ops.DeviceAddress(Stream.DRAFT, 3, torch.arange(8))
    drawn = ops.sample(
        draft.view(8, 600),
        at,
        temperature=call["temperature"].repeat_interleave(2),
        impl="triton",
        arithmetic="portable",
        return_stats=True,
    )
    call["draft_token_ids"] = drawn.token_ids.view(4, 2)
    expected = ops.verify_chain(**call, impl="reference")
    options: dict[str, Any] = {"impl": "triton", "arithmetic": "portable"}
    got = ops.verify_chain(**call, **options, draft_stats=drawn.stats)
    assert torch.equal(got.token_ids, expected.token_ids)
    assert torch.equal(got.margin, expected.margin)
    assert torch.equal(got.error, expected.error)


@both_ways
def test_one_workspace_serves_calls_of_any_shape(way: str) -> None:
    """Counters are zero again after every call, one with errors above all."""
    workspace = Workspace("cpu")
    for count, depth, vocab_size, kind, rule in [
        (4, 3, 60, "dense", "block"),
        (2, 1, 1_030, "mixed", "token"),
        (2, 0, 60, "point", "block"),
        (5, 3, 540, "sparse", "block"),
        (4, 2, 60, "point", "token"),
        (4, 3, 60, "dense", "block"),
    ]:
        call: dict[str, Any] = batch(count, depth, vocab_size, kind, seed=count) | {"rule": rule}
        call["target_logits"][0, 0, 0] = torch.nan
        assert_verified_alike(call, workspace=workspace)
        workspace.poison()
    assert {"ended", "passed", "test_units"} <= workspace._counters
    assert ("rows_done" in workspace._counters) == (way == "many rows")
    for name in workspace._counters:
        assert not workspace._buffers[name].any(), name


def test_what_is_kept_of_a_workspace_is_made_anew_once_a_buffer_grows() -> None:
    workspace = Workspace("cpu")

    def taken() -> torch.Tensor:
        return workspace.kept(("some", 2), lambda: workspace.zeros("some", (2,), torch.int32))

    first = taken()
    assert taken() is first
    workspace.zeros("some", (3,), torch.int32)
    assert taken().data_ptr() == workspace._buffers["some"].data_ptr() != first.data_ptr()


def test_a_counter_that_there_is_no_memory_for_is_none() -> None:
    workspace = Workspace("cpu")
    workspace.begin()
    with pytest.raises(RuntimeError, match="memory"):
        workspace.zeros("some", (1 << 60,), torch.int32)
    workspace.begin()
    assert workspace.zeros("some", (2,), torch.int32).tolist() == [0, 0]


@both_ways
@pytest.mark.parametrize(
    ("rule", "kernel"),
    [("token", "resolve_kernel"), ("block", "mass_kernel"), ("block", "emit_kernel")],
)
def test_a_call_that_was_broken_off_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, rule: Rule, kernel: str, way: str
) -> None:
    """Ctrl-C between two kernels, then the same call in the same memory."""
    call: dict[str, Any] = batch(4, 3, 60, "dense", seed=4) | {"rule": rule}

    class Broken:
        def __getitem__(self, grid: Any) -> Any:
            raise KeyboardInterrupt

    workspace = Workspace("cpu")
    options: dict[str, Any] = {"impl": "triton", "workspace": workspace}
    with monkeypatch.context() as patch:
        patch.setattr(verify, kernel, Broken())
        with pytest.raises(KeyboardInterrupt):
            ops.verify_chain(**call, **options)
    assert_verified_alike(call, workspace=workspace)


def plain_call() -> dict[str, Any]:
    return {
        "target_logits": torch.zeros(2, 3, 20),
        "draft_token_ids": torch.zeros(2, 2, dtype=torch.int64),
        "num_draft_tokens": torch.tensor([2, 1]),
        "draft_logits": torch.zeros(2, 2, 20),
        "key": 3,
        "anchor": 4,
        "impl": "triton",
    }


IDS, PAIR = torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_logits": torch.zeros(2, 3, 20).double()}, "target_logits is torch.float64"),
        ({"target_logits": torch.zeros(3, 20)}, "target_logits has shape .* give 3 dimensions"),
        ({"target_logits": torch.zeros(2, 3, 40)[..., ::2]}, "target_logits has .* strides"),
        ({"target_logits": torch.zeros(2, 3, 0)}, "target_logits has a vocabulary of 0"),
        ({"draft_logits": torch.zeros(2, 2, 21)}, "draft_logits is .* target_logits need"),
        ({"draft_logits": torch.zeros(2, 2, 20).double()}, "draft_logits is torch.float64"),
        ({"draft_logits": torch.zeros(2, 2, 20, device="meta")}, "draft_logits is .* on meta"),
        ({"draft_logits": SparseLogits(IDS[None], torch.zeros(2, 2, 1))}, "both must be"),
        ({"draft_logits": [1.0]}, "must be a tensor, SparseLogits or None, not list"),
        ({"num_draft_tokens": PAIR - 2}, "num_draft_tokens = -2 is outside 0..2"),
        ({"num_draft_tokens": [2, 3]}, "num_draft_tokens = 3 is outside 0..2"),
        ({"forbidden": torch.zeros(1, 1, dtype=torch.bool)}, r"forbidden has shape \(1, 1\)"),
        ({"trace": Trace()}, "trace is not built for tensors on a GPU"),
        ({"draft_token_ids": IDS[:, :1]}, r"draft_token_ids has shape \(2, 1\)"),
        ({"draft_token_ids": IDS.double()}, "dtype torch.float64"),
        ({"draft_token_ids": IDS.to("meta")}, "draft_token_ids is on meta"),
        ({"draft_token_ids": IDS.repeat(1, 2)[:, ::2]}, r"with strides \(4, 2\)"),
        ({"num_draft_tokens": PAIR[:1]}, r"num_draft_tokens has shape \(1,\)"),
        ({"point_mass": torch.zeros(3, dtype=torch.bool)}, r"point_mass has shape \(3,\)"),
        ({"temperature": -1.0}, "temperature = -1.0 is not in"),
        ({"draft_temperature": torch.ones(3)}, r"draft_temperature is torch.float32 \(3,\)"),
        ({"key": 1 << 64}, "does not fit 64 bits"),
        ({"key": PAIR.repeat(2)}, r"key has shape \(4,\)"),
        ({"anchor": 1 << 32}, "position = 4294967296 is outside"),
        ({"sample": -1}, "sample = -1 is outside"),
        ({"rule": "greedy"}, "rule = 'greedy' is no rule for chains"),
        ({"method": "gumbel"}, "method is not built for tensors on a GPU"),
        ({"method": "cdf"}, "method = 'cdf' is unknown"),
        ({"return_weights": True}, "return_weights is not built for tensors on a GPU"),
        ({"arithmetic": "exact"}, "arithmetic = 'exact' is unknown"),
        ({"impl": "cpu", "arithmetic": "fast"}, "impl 'cpu' computes 'portable' only"),
        ({"impl": "reference", "workspace": Workspace("cpu")}, "draft_stats and workspace are"),
    ],
)
def test_bad_calls_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.verify_chain(**plain_call() | change)
