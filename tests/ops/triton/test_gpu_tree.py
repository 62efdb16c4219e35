"""Trees on a CUDA device: real vocabularies, graphs, and what only a device shows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fairdraft import ops
from fairdraft.ops import RowError
from fairdraft.ops.triton.workspace import Workspace
from tests.ops.triton.alike import VERDICT, assert_equal, assert_near
from tests.ops.triton.test_gpu import VOCAB_SIZES, captured, num_allocations, to_gpu
from tests.ops.triton.trees import drawn_anew, like_device, near_call

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
#: three children, two below each, one below each of these: 15 nodes, 3 deep
PARENTS = [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9]
COUNT = 6
NAMES = (*VERDICT, "path", "first_child")
MAX_TIES = 1


def tree_call(vocab_size: int, seed: int, parents: list[int] | None = None) -> dict[str, Any]:
    """Ragged trees near p; one of point masses, two forbidden nodes, an absent one, one greedy."""
    parents = PARENTS if parents is None else parents
    call = near_call(COUNT, vocab_size, seed, parents)
    call["target_logits"][..., 600:2_000] = -torch.inf
    size = len(parents)
    call["num_draft_tokens"] = torch.tensor([size, size, size, size - 1, size, 0])
    call["temperature"] = torch.tensor([1.0, 0.7, 1.0, 1.0, 0.0, 1.0])
    call["point_mass"] = torch.arange(COUNT) == 2
    call["forbidden"] = torch.zeros(COUNT, size, dtype=torch.bool)
    call["forbidden"][3, :2] = True
    call["draft_token_ids"][1, 1] = -1
    call["anchor"] = torch.arange(COUNT) * 1_000
    call["sample"] = torch.arange(COUNT)
    return call


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_trees_equal_the_reference(vocab_size: int) -> None:
    call: dict[str, Any] = tree_call(vocab_size, seed=1)
    got = ops.verify_tree(**to_gpu(call), arithmetic="portable")
    expected = like_device(ops.verify_tree(**call, impl="reference"), got.path.shape[1])
    assert_equal(got, expected, NAMES)
    assert int(torch.as_tensor(got.num_broken).sum()) == expected.num_broken
    fast = ops.verify_tree(**to_gpu(call), arithmetic="fast")
    assert_near(fast, expected, MAX_TIES)


def test_many_requests_equal_the_reference() -> None:
    """Programs of eight tiles, and every way a walk can go."""
    call = near_call(96, 40_000, seed=2, parents=PARENTS[:9])
    got = ops.verify_tree(**to_gpu(call), arithmetic="portable")
    expected = like_device(ops.verify_tree(**call, impl="auto"), got.path.shape[1])
    assert_equal(got, expected, NAMES)
    assert {0, 1, 2} == set(got.num_accepted_tokens.tolist())
    assert_near(ops.verify_tree(**to_gpu(call), arithmetic="fast"), expected, MAX_TIES)


def test_a_tree_on_the_device_is_walked_alike() -> None:
    """Its depth is not known on the host: more passes, and a wider result."""
    call: dict[str, Any] = to_gpu(tree_call(VOCAB_SIZES[0], seed=3))
    expected = ops.verify_tree(**call, arithmetic="portable")
    width = expected.path.shape[1]
    for parents in (torch.tensor(PARENTS), torch.tensor(PARENTS).repeat(COUNT, 1)):
        call["parents"] = parents.cuda()
        got = ops.verify_tree(**call, arithmetic="portable")
        assert got.path.shape == (COUNT, len(PARENTS) + 1)
        narrow = ops.verify_tree(**call, arithmetic="portable", max_depth=width - 1)
        for name in NAMES:
            have, want = getattr(got, name), getattr(expected, name)
            assert torch.equal(have[:, :width] if have.dim() == 2 else have, want), name
            assert torch.equal(getattr(narrow, name), want), name


def test_statistics_of_the_drafts_sampling_change_nothing() -> None:
    call: dict[str, Any] = to_gpu(near_call(4, VOCAB_SIZES[0], seed=4)) | {
        "temperature": torch.ones(4).cuda()
    }
    stats = drawn_anew(call)
    expected = ops.verify_tree(**call, arithmetic="portable")
    got = ops.verify_tree(**call, arithmetic="portable", draft_stats=stats)
    for name in NAMES:
        assert torch.equal(getattr(got, name), getattr(expected, name)), name


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_repeats_read_nothing_of_the_call_before(vocab_size: int) -> None:
    """Whoever is the last program of a request, 1,000 times, in poisoned memory."""
    call: dict[str, Any] = tree_call(vocab_size, seed=5)
    moved, workspace = to_gpu(call), Workspace("cuda")
    expected = ops.verify_tree(**moved, arithmetic="portable")
    num_wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1_000):
        workspace.poison()
        got = ops.verify_tree(**moved, arithmetic="portable", workspace=workspace)
        num_wrong += (got.token_ids != expected.token_ids).any() | (got.path != expected.path).any()
    assert num_wrong == 0


def test_errors_leave_a_workspace_as_it_was() -> None:
    """Bad rows, bad numbers, then the good call again in the same memory."""
    workspace = Workspace("cuda")
    options: dict[str, Any] = {"arithmetic": "portable", "workspace": workspace}
    call: dict[str, Any] = tree_call(VOCAB_SIZES[0], seed=6)
    good: dict[str, Any] = (
        to_gpu(call) | options | {"parents": torch.tensor(PARENTS).repeat(COUNT, 1).cuda()}
    )
    first = ops.verify_tree(**good)
    bad: dict[str, Any] = {k: v.clone() if isinstance(v, Tensor) else v for k, v in good.items()}
    bad["target_logits"][0, 0, 5] = torch.nan
    bad["draft_logits"][1, 0, 5] = torch.inf
    bad["temperature"][2] = -1.0
    bad["anchor"][3] = -1
    bad["parents"][4, 3] = 9
    kinds = [RowError.NAN, RowError.DRAFT, RowError.PARAMETER, RowError.ADDRESS]
    assert ops.verify_tree(**bad).error.tolist() == [*kinds, RowError.PARAMETER, 0]
    again = ops.verify_tree(**good)
    for name in NAMES:
        assert torch.equal(getattr(again, name), getattr(first, name)), name


def test_a_graph_of_trees_follows_what_the_device_holds() -> None:
    """Counts, keys, anchors and temperatures change between replays; one of them is an error."""
    call: dict[str, Any] = to_gpu(tree_call(VOCAB_SIZES[0], seed=7))
    workspace = Workspace("cuda")
    graph, verdict = captured(lambda: ops.verify_tree(**call, workspace=workspace))
    for step in range(4):
        call["key"].add_(step)
        call["anchor"].fill_(-1 if step == 2 else 50 * step)
        call["num_draft_tokens"].copy_(torch.tensor([15, step, 3, 15, 1, 9 - step]))
        call["temperature"][0] = 0.5 + step
        graph.replay()
        eager = ops.verify_tree(**call)
        for name in (*NAMES, "num_broken"):
            assert torch.equal(getattr(verdict, name), getattr(eager, name)), (step, name)
        assert bool(eager.error.any()) == (step == 2)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_calls_do_not_wait_for_the_device_and_keep_their_scratch() -> None:
    call: dict[str, Any] = to_gpu(tree_call(VOCAB_SIZES[0], seed=8)) | {
        "workspace": Workspace("cuda")
    }
    verdict = ops.verify_tree(**call)
    num_outputs = sum(isinstance(value, Tensor) for value in vars(verdict).values())
    torch.cuda.synchronize()
    before = num_allocations()
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = ops.verify_tree(**call)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert num_allocations() == before + num_outputs
    assert torch.equal(again.token_ids, verdict.token_ids) and not again.error.any()


def test_more_elements_than_an_int32_counts() -> None:
    """2,400 x 6 x 151,936 logits in bfloat16; the last requests lie past 2^31."""
    vocab_size, count, most = VOCAB_SIZES[0], 2_400, 5
    small = near_call(most, vocab_size, seed=9)
    for name in ("target_logits", "draft_logits"):
        small[name] = small[name].bfloat16()
    assert (count - most) * 6 * vocab_size > 1 << 31
    index = torch.arange(count) % most
    call: dict[str, Any] = {
        k: v.cuda()[index.cuda()] if isinstance(v, Tensor) else v for k, v in small.items()
    }
    call["key"] += torch.arange(count, device="cuda")
    got = ops.verify_tree(**call, arithmetic="portable", impl="triton")
    host: dict[str, Any] = small | {"key": call["key"][-most:].cpu()}
    expected = like_device(ops.verify_tree(**host, impl="reference"), got.path.shape[1])
    for name in NAMES:
        assert torch.equal(getattr(got, name)[-most:].cpu(), getattr(expected, name)), name
