"""Lossy rules on a CUDA device: real vocabularies, the bound itself, a graph, and no waiting."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fairdraft import ops
from fairdraft.ops import LossyRule, Synthetic, Threshold, Typical
from fairdraft.ops.triton.workspace import Workspace
from tests.ops.triton.alike import VERDICT, assert_equal, assert_near
from tests.ops.triton.lossy_cases import is_bound_kept
from tests.ops.triton.test_gpu import MAX_TIES, VOCAB_SIZES, captured, chain_call, to_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
#: drafts of `chain_call` have p of about .05, in rows of exp(-H) of about .0006
LOSSY: dict[str, LossyRule] = {
    "typical": Typical(0.3, 60.0),
    "threshold": Threshold(0.08, 0.1),
    "synthetic": Synthetic((0.8, 0.5, 0.1)),
}
lossy = pytest.mark.parametrize("rule", LOSSY.values(), ids=LOSSY)


@lossy
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_chains_equal_the_reference(vocab_size: int, rule: LossyRule) -> None:
    """Some drafts stand and some do not, under each rule."""
    stood: set[int] = set()
    for seed in range(3):
        call: dict[str, Any] = chain_call(vocab_size, seed=3 + seed) | {"rule": rule}
        expected = ops.verify_chain(**call, impl="reference")
        got = ops.verify_chain(**to_gpu(call), arithmetic="portable")
        assert_equal(got, expected, VERDICT)
        assert got.lossy == rule.name and not torch.as_tensor(got.num_broken).any()
        stood |= set(expected.num_accepted_tokens.tolist())
        if vocab_size == VOCAB_SIZES[0]:
            assert_near(ops.verify_chain(**to_gpu(call), arithmetic="fast"), expected, MAX_TIES)
    assert len(stood) > 1


@lossy
def test_narrow_logits_and_point_masses_equal_the_reference(rule: LossyRule) -> None:
    call: dict[str, Any] = chain_call(50_000, seed=30, dtype=torch.bfloat16) | {"rule": rule}
    call |= {"draft_logits": None, "point_mass": None}
    expected = ops.verify_chain(**call, impl="reference")
    assert_equal(ops.verify_chain(**to_gpu(call), arithmetic="portable"), expected, VERDICT)


@pytest.mark.parametrize("arithmetic", ["portable", "fast"])
def test_the_bound_of_typical_follows_the_entropy(arithmetic: str) -> None:
    """Within 3e-5 of it; an entropy in bits, a fault, is seen."""
    for vocab_size in (1_100, VOCAB_SIZES[0]):
        assert is_bound_kept(arithmetic, "cuda", vocab_size=vocab_size)
        assert not is_bound_kept(arithmetic, "cuda", vocab_size=vocab_size, unit=0.6931)


@lossy
def test_a_graph_follows_what_the_device_holds(rule: LossyRule) -> None:
    call: dict[str, Any] = to_gpu(chain_call(VOCAB_SIZES[0], seed=9)) | {"rule": rule}
    workspace = Workspace("cuda")
    graph, verdict = captured(lambda: ops.verify_chain(**call, workspace=workspace))
    for step in range(3):
        call["key"].add_(step)
        call["num_draft_tokens"].copy_(torch.tensor([step, 3, 1, 3 - step, 2]))
        graph.replay()
        eager = ops.verify_chain(**call)
        for name in VERDICT:
            assert torch.equal(getattr(verdict, name), getattr(eager, name)), (step, name)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@lossy
def test_nothing_waits_and_nothing_is_copied(rule: LossyRule) -> None:
    call: dict[str, Any] = to_gpu(chain_call(VOCAB_SIZES[0], seed=10)) | {"rule": rule}
    workspace = Workspace("cuda")
    ops.verify_chain(**call, workspace=workspace)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        verdict = ops.verify_chain(**call, workspace=workspace)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert verdict.token_ids.is_cuda
