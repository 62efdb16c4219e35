"""`ops.verify_tree` in Triton kernels, interpreted: ids, margins and errors of the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fairdraft import ops
from fairdraft.noise import Stream, Trace
from fairdraft.ops import RowError, SparseLogits
from fairdraft.ops.triton import tree_launch, tree_verification
from fairdraft.ops.triton.tree_verification import Reach, reach_of
from fairdraft.ops.triton.workspace import Workspace
from tests.ops.test_verify_tree import PARENTS, SIZE, random_tree
from tests.ops.triton.alike import VERDICT, assert_equal, guarded
from tests.ops.triton.trees import SMALL, assert_trees_alike, drawn_anew, near_call


def batch(count: int, vocab_size: int, kind: str, seed: int) -> dict[str, Any]:
    """Some of the random batch of `test_verify_tree`, beginning with the rows that it marks."""
    call = random_tree(16, vocab_size, kind, seed)
    call = {name: value if value is None else value[3 : 3 + count] for name, value in call.items()}
    call["temperature"] = torch.from_numpy(call["temperature"]).float()
    return call


@pytest.mark.parametrize(
    ("vocab_size", "kind"),
    [(1, "mixed"), (63, "dense"), (63, "point"), (1_025, "mixed")],
)
def test_kernels_equal_the_reference(vocab_size: int, kind: str) -> None:
    """Ragged, absent, forbidden and foreign nodes, a NaN, greedy rows and temperatures."""
    call = batch(3, vocab_size, kind, seed=vocab_size)
    assert_trees_alike(call, has_fast=vocab_size == 1_025)


def test_siblings_fall_one_after_the_other_until_one_stands() -> None:
    """Every outcome of three siblings: the first, the second, the third, none; and a grandchild."""
    call: dict[str, Any] = near_call(5, 40, seed=222) | {"temperature": 0.8}
    got, _ = assert_trees_alike(call)
    assert not got.error.any()
    assert set(got.path[:, 1].tolist()) == {-1, 1, 2, 3}
    assert {4, 5} & set(got.path[:, 2].tolist())
    assert set(got.last_stream.tolist()) == {Stream.RESIDUAL, Stream.BONUS}


def test_many_tiles_and_narrow_logits_in_wider_memory() -> None:
    """Several programs a request; rows that are no whole memory; columns that nobody may read."""
    call: dict[str, Any] = near_call(2, 1_600, seed=2) | {"temperature": torch.tensor([1.0, 0.5])}
    call["target_logits"][0, :, 600:1_100] = -torch.inf
    for name in ("target_logits", "draft_logits"):
        call[name] = guarded(call[name].to(torch.bfloat16))
    assert_trees_alike(call, has_fast=True)


def test_forbidden_siblings_leave_the_row_of_their_parent() -> None:
    """Two of three forbidden: they have p = 0 for the third and for what replaces it."""
    call: dict[str, Any] = near_call(2, 5, seed=3)
    call["forbidden"] = torch.zeros(2, 5, dtype=torch.bool)
    call["forbidden"][:, :2] = True
    call["forbidden"][1] = True
    got, _ = assert_trees_alike(call)
    gone = call["draft_token_ids"][:, :2]
    assert not (got.token_ids[:, :1] == gone).any()


def test_a_forbidden_last_token_leaves_an_empty_row() -> None:
    call: dict[str, Any] = near_call(2, 40, seed=4, parents=[0])
    call["target_logits"][:] = -torch.inf
    call["target_logits"][:, :, 7] = 1.0
    call["draft_token_ids"][:] = 7
    call["forbidden"] = torch.tensor([[True], [False]])
    got, _ = assert_trees_alike(call)
    assert got.error.tolist() == [RowError.EMPTY, 0]


def test_equal_laws_accept_the_eldest_and_unlike_ones_nobody() -> None:
    """p = q, then p and q on ids of their own: nothing of q is in what replaces the drafts."""
    call: dict[str, Any] = near_call(2, 30, seed=5)
    call["target_logits"][0] = call["target_logits"][0, :1]
    call["draft_logits"][0] = call["target_logits"][0, :1]
    call["target_logits"][1, :, :15] = -torch.inf
    call["draft_logits"][1, :, 15:] = -torch.inf
    call["draft_token_ids"][:] = torch.tensor([1, 2, 3, 4, 5])
    got, _ = assert_trees_alike(call)
    assert got.path[:, 1].tolist() == [1, -1]
    assert (got.token_ids[1:, 0] >= 15).all()


def test_bad_rows_are_errors_of_their_own() -> None:
    """At the root, below it, in the law of the eldest and of the second sibling, and unread."""
    call: dict[str, Any] = near_call(8, 40, seed=6)
    target, draft = call["target_logits"], call["draft_logits"]
    target[:] = target[:, :1]
    draft[:] = target[:, :1]
    call["draft_token_ids"] = draft.argmax(-1)
    target[0, 0, 39] = torch.nan
    target[1, 1, 3] = torch.inf
    target[2, 1] = -torch.inf
    draft[3, 0, 1] = torch.nan
    draft[4, 1] = -torch.inf
    target[4, 0, call["draft_token_ids"][4, 0]] = -torch.inf
    target[5, 2:4] = torch.nan
    draft[6, 3, 0] = torch.inf
    call |= {"target_logits": guarded(target), "draft_logits": guarded(draft)}
    got, _ = assert_trees_alike(call)
    kinds = [RowError.NAN, RowError.INFINITE, RowError.EMPTY, *[RowError.DRAFT] * 2, 0, 0, 0]
    kinds[6] = RowError.DRAFT
    assert got.error.tolist() == kinds
    assert got.num_emitted_tokens[:5].tolist() == [0, 1, 1, 0, 0]


def test_a_sibling_that_cannot_have_been_drawn() -> None:
    """The same token twice is counted, a law with nothing left an error; never a token."""
    call: dict[str, Any] = near_call(2, 4, seed=7, parents=[0, 0])
    call["target_logits"][:] = 0.0
    call["target_logits"][:, 0, 1] = -torch.inf
    call["draft_logits"][0] = 0.0
    call["draft_logits"][1] = -torch.inf
    call["draft_logits"][1, :, 1] = 0.0
    call["draft_token_ids"] = torch.tensor([[1, 1], [1, 2]])
    got, expected = assert_trees_alike(call)
    assert expected.num_broken == 1 and torch.as_tensor(got.num_broken).tolist() == [1, 0]
    assert got.error.tolist() == [0, RowError.DRAFT]


def test_bad_numbers_on_the_device_are_errors_of_their_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counts, parents, addresses and temperatures that the host did not see."""
    call: dict[str, Any] = near_call(9, 9, seed=8) | {"draft_temperature": torch.ones(9)}
    call["parents"] = torch.tensor(SMALL).repeat(9, 1)
    call["anchor"] = torch.tensor([5, 1 << 32, -1, 5, 5, 5, 5, 5, 5])
    call["sample"] = torch.tensor([0, 0, 0, 1 << 16, 0, 0, 0, 0, 0])
    call["temperature"] = torch.tensor([1.0, 1, 1, 1, -1, 1, 1, 1, 1])
    call["draft_temperature"][5] = torch.nan
    call["parents"][6, 1], call["parents"][7, 4] = 2, -1
    call["num_draft_tokens"][8] = 6
    got = ops.verify_tree(**call, impl="triton", arithmetic="portable", validate=False)
    kinds = [0, *[RowError.ADDRESS] * 3, *[RowError.PARAMETER] * 5]
    assert got.error.tolist() == kinds
    assert (got.token_ids[1:] == -1).all() and not got.num_emitted_tokens[1:].any()
    good: dict[str, Any] = {k: v[:1] if isinstance(v, Tensor) else v for k, v in call.items()}
    expected = ops.verify_tree(**good, impl="reference")
    width = expected.path.shape[1]
    assert torch.equal(got.token_ids[:1, :width], expected.token_ids)
    assert torch.equal(got.path[:1, :width], expected.path)


def test_a_shape_that_the_host_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """More passes than any walk needs, a wider result; a walk that is too deep is an error."""
    call: dict[str, Any] = near_call(2, 9, seed=9) | {"parents": torch.tensor(SMALL)}
    call["target_logits"][:] = call["target_logits"][:, :1]
    call["draft_logits"][:] = call["target_logits"][:, :1]
    known, _ = assert_trees_alike(call)
    assert known.path.shape == (2, 3) and known.num_accepted_tokens.tolist() == [2] * 2
    parents = tree_verification._parents

    def unknown(*args: Any) -> Any:
        return parents(*args)[0], Reach(5, 6)

    monkeypatch.setattr(tree_verification, "_parents", unknown)
    got, _ = assert_trees_alike(call)
    assert got.path.shape == (2, 6)
    got = ops.verify_tree(**call, max_depth=1, impl="triton")
    assert got.error.tolist() == [RowError.PARAMETER] * 2
    assert got.path.shape == (2, 2) and got.num_emitted_tokens.tolist() == [1] * 2


def test_reach_counts_the_passes_of_the_longest_walk() -> None:
    assert reach_of(np.zeros((3, 0), np.int64)) == (0, 1)
    assert reach_of(np.arange(5)[None]) == (5, 6)
    by_depth = [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9]
    assert reach_of(np.array([by_depth])) == (3, 3 + 2 + 1 + 1)
    assert reach_of(np.stack([PARENTS, np.zeros(SIZE, np.int64)])) == (3, SIZE + 1)
    junk = np.array([[0, 1 << 40, -5, 1]])
    assert reach_of(junk) == (2, 4)


def test_with_statistics_a_walk_reads_the_rows_of_its_path_and_of_rejected_children() -> None:
    """Everything else is NaN: rows of p off the path, and of q all but the drafted ids."""
    call: dict[str, Any] = near_call(4, 600, seed=10) | {
        "temperature": torch.tensor([1.0, 0.5, 2.0, 1.0])
    }
    stats = drawn_anew(call)
    expected = ops.verify_tree(**call, impl="reference")
    is_on_path, is_rejected = torch.zeros(4, 6), torch.zeros(4, 5)
    for b, path in enumerate(expected.path.tolist()):
        for node, child in zip(path, [*path[1:], -1], strict=True):
            is_on_path[b, node] = node >= 0
            for c in (c for c in range(1, 6) if SMALL[c - 1] == node and (c < child or child < 0)):
                is_rejected[b, c - 1] = 1
    assert 0 < is_rejected.sum() < 8 and is_on_path.sum() < 10
    ids = call["draft_token_ids"][..., None]
    points = torch.full_like(call["draft_logits"], torch.nan)
    points.scatter_(2, ids, call["draft_logits"].gather(2, ids))
    call["draft_logits"] = torch.where(is_rejected[..., None] > 0, call["draft_logits"], points)
    call["target_logits"][is_on_path == 0] = torch.nan
    got = ops.verify_tree(**call, draft_stats=stats, impl="triton", arithmetic="portable")
    assert_equal(got, expected, (*VERDICT, "path", "first_child"))


def test_sparse_laws_and_chains_as_trees() -> None:
    """A chain given as a tree is decided as `verify_chain` decides it."""
    call: dict[str, Any] = near_call(2, 50, seed=11, parents=[0, 1])
    kept = call["draft_logits"].topk(6, -1)
    call["draft_logits"] = SparseLogits(kept.indices, kept.values)
    call["draft_token_ids"] = kept.indices[..., 0].contiguous()
    got, _ = assert_trees_alike(call)
    chain: dict[str, Any] = {name: value for name, value in call.items() if name != "parents"}
    expected = ops.verify_chain(**chain, impl="triton", arithmetic="portable")
    assert_equal(got, expected, VERDICT)


def test_no_nodes_and_no_requests() -> None:
    call: dict[str, Any] = near_call(2, 20, seed=12, parents=[]) | {
        "temperature": torch.tensor([1.0, 0.0])
    }
    call["parents"] = np.zeros(0, np.int64)
    got, _ = assert_trees_alike(call)
    assert (got.last_stream == Stream.TARGET).all()
    assert_trees_alike(call | {"draft_logits": None})
    none: dict[str, Any] = {
        k: v[:0] if isinstance(v, Tensor) else v for k, v in near_call(1, 9, 1).items()
    }
    got = ops.verify_tree(**none, impl="triton")
    assert got.token_ids.shape == got.path.shape == (0, 3)


def test_one_workspace_serves_calls_of_any_shape() -> None:
    """Counters are zero again after every call, one with errors and chains between."""
    workspace = Workspace("cpu")
    for count, vocab_size, seed in [(2, 30, 13), (1, 1_100, 14), (2, 9, 15)]:
        call = near_call(count, vocab_size, seed)
        call["target_logits"][0, 0, 0] = torch.nan
        assert_trees_alike(call, workspace=workspace)
        chain: dict[str, Any] = {
            k: v[:, :1] if k.startswith("draft") else v for k, v in call.items()
        }
        chain |= {"target_logits": call["target_logits"][:, :2], "num_draft_tokens": [1] * count}
        chain["draft_token_ids"] = chain["draft_token_ids"].contiguous()
        chain.pop("parents")
        ops.verify_chain(**chain, impl="triton", workspace=workspace)
        workspace.poison()
    assert {"tree_done", "tree_units"} <= workspace._counters
    for name in workspace._counters:
        assert not workspace._buffers[name].any(), name


@pytest.mark.parametrize("step", [1, None])
def test_a_call_that_was_broken_off_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, step: int | None
) -> None:
    """Ctrl-C between two kernels, then the same call in the same memory."""
    call: dict[str, Any] = near_call(1, 9, seed=16)
    name = "tree_emit_kernel" if step is None else "tree_kernel"
    kernel = getattr(tree_launch, name)

    class Broken:
        def __getitem__(self, grid: Any) -> Any:
            def run(*args: Any, **options: Any) -> None:
                if step is None or args[-1] == step:
                    raise KeyboardInterrupt
                kernel[grid](*args, **options)

            return run

    workspace = Workspace("cpu")
    with monkeypatch.context() as patch:
        patch.setattr(tree_launch, name, Broken())
        with pytest.raises(KeyboardInterrupt):
            ops.verify_tree(**call, impl="triton", workspace=workspace)
    assert_trees_alike(call, workspace=workspace)


PLAIN: dict[str, Any] = near_call(2, 20, seed=17) | {"impl": "triton"}
IDS = PLAIN["draft_token_ids"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_logits": torch.zeros(2, 6, 20).double()}, "target_logits is torch.float64"),
        ({"target_logits": torch.zeros(2, 6, 40)[..., ::2]}, "target_logits has .* strides"),
        ({"draft_logits": torch.zeros(2, 5, 21)}, "draft_logits is .* target_logits need"),
        ({"draft_token_ids": IDS[:, :1]}, r"draft_token_ids has shape \(2, 1\)"),
        ({"draft_token_ids": IDS.double()}, "dtype torch.float64"),
        ({"parents": [0, 0]}, r"parents has shape \(2,\)"),
        ({"parents": [0.0] * 5}, "dtype float64"),
        ({"parents": [0, 0, 3, 1, 1]}, r"parents\[0, 2\] = 3.*0\.\.2"),
        ({"parents": torch.zeros(4, device="meta")}, r"parents is torch.float32 \(4,\) on meta"),
        ({"num_draft_tokens": [2, 6]}, "num_draft_tokens = 6 is outside 0..5"),
        ({"forbidden": torch.zeros(1, 1, dtype=torch.bool)}, r"forbidden has shape \(1, 1\)"),
        ({"temperature": -1.0}, "temperature = -1.0 is not in"),
        ({"key": 1 << 64}, "does not fit 64 bits"),
        ({"anchor": 1 << 32}, "position = 4294967296 is outside"),
        ({"max_depth": -1}, "max_depth = -1 is no depth"),
        ({"max_depth": 3.0}, "max_depth = 3.0 is no depth"),
        ({"trace": Trace()}, "trace is not built for tensors on a GPU"),
        ({"return_weights": True}, "return_weights is not built for tensors on a GPU"),
        ({"arithmetic": "exact"}, "arithmetic = 'exact' is unknown"),
        ({"draft_stats": ops.TileStats(*[torch.zeros(1)] * 4)}, "draft_stats.tile_max has shape"),
        ({"impl": "cpu", "workspace": Workspace("cpu")}, "draft_stats and workspace are for"),
    ],
)
def test_bad_input_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.verify_tree(**(PLAIN | change))
