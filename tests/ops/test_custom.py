"""The ops under `torch.compile(fullgraph=True)` and as `torch.ops.fairdraft`: the eager tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fairdraft import ops
from fairdraft.noise import Stream, Trace, address
from fairdraft.ops import DeviceAddress, SparseLogits
from tests.ops.flat import flattened
from tests.ops.test_verify import random_call
from tests.ops.test_verify_tree import random_tree

#: opcheck's own; the last traces forward and backward with symbolic shapes
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
OUTPUTS = ("token_ids", "num_accepted_tokens", "num_emitted_tokens", "last_stream", "margin")


@pytest.fixture(autouse=True)
def fresh_graphs() -> None:
    torch.compiler.reset()


def zeros() -> Tensor:
    return torch.zeros((), dtype=torch.int64)


def sample_inputs(count: int = 3) -> tuple[Any, ...]:
    logits = torch.randn(count, 70, generator=torch.Generator().manual_seed(count))
    key = torch.arange(count) - (1 << 62)
    return logits, key, key + (1 << 62), zeros(), zeros(), zeros(), torch.full((count,), 0.8)


def verify_inputs(kind: str = "dense") -> dict[str, Any]:
    """A call of `ops.verify_chain` whose every argument is a tensor."""
    call = random_call(12, 3, 70, kind, seed=5)
    call["key"] = torch.from_numpy(call["key"].view("int64"))
    return {k: torch.as_tensor(v) if hasattr(v, "dtype") else v for k, v in call.items()}


def tree_inputs(kind: str = "dense") -> dict[str, Any]:
    """A call of `ops.verify_tree` whose every argument is a tensor."""
    call = random_tree(12, 70, kind, seed=5)
    call["key"] = call["key"].view("int64")
    return {k: torch.as_tensor(v) if hasattr(v, "dtype") else v for k, v in call.items()}


@pytest.mark.parametrize("return_stats", [False, True])
def test_sample_is_a_sound_op(return_stats: bool) -> None:
    named = {"method": "race", "return_stats": return_stats}
    args = (*sample_inputs(), int(Stream.TARGET))
    checks = CHECKS if return_stats else (*CHECKS, "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.fairdraft.sample.default, args, named, test_utils=checks)


@pytest.mark.parametrize("layout", ["padded", "flat"])
def test_verify_chain_is_a_sound_op(layout: str) -> None:
    call = verify_inputs()
    named = {"num_draft_tokens": None, **call}
    if layout == "flat":
        named |= flattened(call, "cu_num_logits")
        named["num_draft_tokens"] = None
    checks = CHECKS if layout == "flat" else (*CHECKS, "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.fairdraft.verify_chain.default, (), named, test_utils=checks)


@pytest.mark.parametrize("max_depth", [None, 3])
def test_verify_tree_is_a_sound_op(max_depth: int | None) -> None:
    named = {**tree_inputs(), "max_depth": max_depth}
    torch.library.opcheck(torch.ops.fairdraft.verify_tree.default, (), named, test_utils=CHECKS)


def draw(logits: Tensor, key: Tensor, position: Tensor, temperature: Any) -> Any:
    at = DeviceAddress(Stream.TARGET, key, position, sample=2)
    drawn = ops.sample(logits * 1.5, at, temperature=temperature, return_stats=True)
    assert drawn.stats is not None
    return drawn.token_ids, drawn.margin, drawn.error, drawn.stats.row_sum


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("temperature", [0.7, None])
def test_compiled_samples_equal_eager_ones(backend: str, temperature: float | None) -> None:
    """One graph serves every batch size."""
    compiled = torch.compile(draw, fullgraph=True, backend=backend, dynamic=True)
    for count in (3, 5, 6):
        logits, key, position, *_, each = sample_inputs(count)
        scale = each if temperature is None else temperature
        got = compiled(logits, key, position, scale)
        for have, want in zip(got, draw(logits, key, position, scale), strict=True):
            assert torch.equal(have, want)


def test_compiled_samples_keep_their_filters() -> None:
    """A number for all rows, and a number for each."""
    logits, key, position, *_ = sample_inputs(6)
    top_p = torch.tensor([1.0, 0.1, 0.5, 1.0, 0.9, 0.3], dtype=torch.float64)

    def filtered(logits: Tensor, top_p: Tensor) -> Tensor:
        at = DeviceAddress(Stream.TARGET, key, position)
        return ops.sample(logits, at, temperature=3.0, top_k=4, top_p=top_p).token_ids

    got = torch.compile(filtered, fullgraph=True, backend="eager")(logits, top_p)
    assert torch.equal(got, filtered(logits, top_p))
    at = DeviceAddress(Stream.TARGET, key, position)
    assert not torch.equal(got, ops.sample(logits, at, temperature=3.0).token_ids)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    ("kind", "is_flat"), [("dense", False), ("dense", True), ("sparse", False), ("point", True)]
)
def test_compiled_verdicts_equal_eager_ones(kind: str, is_flat: bool, backend: str) -> None:
    call = verify_inputs(kind)
    if is_flat:
        call = flattened(call, "cu_num_draft_tokens")

    def verify(target: Tensor, rest: dict[str, Any]) -> Any:
        verdict = ops.verify_chain(target + 0, **rest, rule="block")
        return tuple(getattr(verdict, name) for name in (*OUTPUTS, "error"))

    target = call.pop("target_logits")
    compiled = torch.compile(verify, fullgraph=True, backend=backend)
    expected = verify(target, call)
    for have, want in zip(compiled(target, call), expected, strict=True):
        assert torch.equal(have, want)


@pytest.mark.parametrize(("kind", "max_depth"), [("mixed", 3), ("point", None)])
def test_compiled_tree_verdicts_equal_eager_ones(kind: str, max_depth: int | None) -> None:
    """Without `max_depth` a compiled call is as wide as N + 1, since it must not read the ids."""
    call = tree_inputs(kind)

    def verify(target: Tensor, rest: dict[str, Any]) -> Any:
        verdict = ops.verify_tree(target + 0, **rest, max_depth=max_depth)
        return tuple(getattr(verdict, name) for name in (*OUTPUTS, "error", "path", "first_child"))

    target = call.pop("target_logits")
    expected = verify(target, call)
    got = torch.compile(verify, fullgraph=True, backend="eager")(target, call)
    for have, want in zip(got, expected, strict=True):
        assert have.shape[1:] == ((max_depth or target.shape[1] - 1) + 1,) or have.dim() == 1
        kept = have[:, : want.shape[1]] if have.dim() == 2 else have
        assert torch.equal(kept, want)


def test_one_graph_verifies_every_batch_size() -> None:
    def verify(target: Tensor, ids: Tensor, counts: Tensor, law: Tensor, key: Tensor) -> Tensor:
        at: dict[str, Any] = {"key": key, "anchor": 7, "temperature": 0.5}
        return ops.verify_chain(target, ids, counts, draft_logits=law, **at).token_ids

    compiled = torch.compile(verify, fullgraph=True, backend="eager", dynamic=True)
    call = verify_inputs()
    names = ("target_logits", "draft_token_ids", "num_draft_tokens", "draft_logits", "key")
    for count in (4, 7, 12):
        given = [call[name][:count] for name in names]
        assert torch.equal(compiled(*given), verify(*given))


def test_ops_are_there_for_tensors_alone() -> None:
    """`torch.ops.fairdraft` by name, in the order of the schema."""
    logits, key, position, *rest = sample_inputs()
    out = torch.ops.fairdraft.sample(logits, key, position, *rest, int(Stream.TARGET))
    at = DeviceAddress(Stream.TARGET, key, position)
    assert torch.equal(out[0], ops.sample(logits, at, temperature=rest[-1]).token_ids)
    assert out[3].numel() == 0
    call = verify_inputs()
    got = torch.ops.fairdraft.verify_chain(**call)
    assert torch.equal(got[0], ops.verify_chain(**call).token_ids)
    names = [a.name for a in torch.ops.fairdraft.verify_chain.default._schema.returns]
    assert names[:4] == list(OUTPUTS[:4])


def test_flat_graphs_need_a_width() -> None:
    flat = flattened(verify_inputs("point"), "cu_num_logits") | {"max_spec_len": None}
    flat["num_draft_tokens"] = None
    with pytest.raises(ValueError, match="max_spec_len is missing: the width of the result must"):
        torch.ops.fairdraft.verify_chain(**flat)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trace": Trace()}, "trace cannot be traced; leave it out"),
        ({"address": address(Stream.TARGET, key=1, position=[1, 2, 3])}, "a packed Address cannot"),
        ({"address": DeviceAddress(zeros(), 1, 2)}, "field stream is a tensor"),
        ({"address": DeviceAddress(Stream.TARGET, True, 2)}, "key is a bool; a compiled call"),
        ({"temperature": [1.0] * 3}, "temperature is a list; a compiled call takes a tensor"),
    ],
)
def test_what_cannot_be_traced_is_refused(
    change: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusals themselves, since a tracer wraps what it raises."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    call: dict[str, Any] = {"address": DeviceAddress(Stream.TARGET, 1, 2)} | change
    with pytest.raises(ValueError, match=message):
        ops.sample(torch.zeros(3, 5), **call)


def test_options_of_verification_that_are_not_traced_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(ValueError, match="return_weights cannot be traced"):
        ops.verify_chain(**verify_inputs(), return_weights=True)
    with pytest.raises(ValueError, match="method cannot be traced"):
        ops.verify_chain(**verify_inputs(), method="gumbel")
    with pytest.raises(ValueError, match="trace cannot be traced"):
        ops.verify_tree(**tree_inputs(), trace=Trace())
    with pytest.raises(ValueError, match="parents is a list; a compiled call takes a tensor"):
        call = tree_inputs()
        call["parents"] = [0]
        ops.verify_tree(**call)


def test_sparse_laws_reach_the_op_as_two_tensors() -> None:
    call = verify_inputs("sparse")
    law: SparseLogits = call.pop("draft_logits")
    got = torch.ops.fairdraft.verify_chain(
        **call, draft_logits=law.logits, candidate_ids=law.token_ids
    )
    assert torch.equal(got[0], ops.verify_chain(**call, draft_logits=law).token_ids)
