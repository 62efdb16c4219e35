"""Flat rows of `ops.verify_chain` on the host: the tokens of the padded call, and no copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fairdraft import ops
from fairdraft.noise import Trace
from fairdraft.ops import Impl, verify
from fairdraft.ops.chain_inputs import ChainInputs
from fairdraft.ops.cpu.verify import draft_rows, mask_forbidden
from fairdraft.ops.flat_rows import FlatRows
from fairdraft.ops.verify import Rule
from tests.ops.flat import Offsets, flattened
from tests.ops.rows import IMPLS
from tests.ops.test_verify import OUTPUTS, random_call

COUNT = 12


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("kind", ["dense", "sparse", "point", "mixed"])
@pytest.mark.parametrize(
    ("offsets", "is_shifted", "num_spare"),
    [("cu_num_logits", False, 0), ("cu_num_logits", True, 3), ("cu_num_draft_tokens", False, 5)],
)
def test_flat_rows_give_the_tokens_of_padded_ones(
    offsets: Offsets, is_shifted: bool, num_spare: int, kind: str, rule: Rule, impl: Impl
) -> None:
    call: dict[str, Any] = random_call(COUNT, 4, 600, kind, seed=3)
    call |= {"impl": impl, "rule": rule}
    padded = ops.verify_chain(**call, return_weights=True)
    flat = flattened(call, offsets, is_shifted=is_shifted, num_spare=num_spare)
    got = ops.verify_chain(**flat, return_weights=True)
    for name in OUTPUTS:
        assert torch.equal(getattr(got, name), getattr(padded, name)), name
    assert got.num_broken == padded.num_broken
    assert got.weights is not None and padded.weights is not None
    for name in ("accept_probability", "next_law", "end_probability"):
        have, want = getattr(got.weights, name), getattr(padded.weights, name)
        assert torch.equal(have.nan_to_num(7), want.nan_to_num(7)), name


@pytest.mark.parametrize("impl", IMPLS)
def test_width_follows_the_longest_request_the_law_or_the_caller(impl: Impl) -> None:
    call: dict[str, Any] = random_call(COUNT, 4, 70, "dense", seed=4) | {"impl": impl}
    call["num_draft_tokens"] = call["num_draft_tokens"].clamp(max=2)
    padded = ops.verify_chain(**call)
    flat = flattened(call, "cu_num_draft_tokens")
    width = flat.pop("max_spec_len")
    assert ops.verify_chain(**flat).token_ids.shape == (COUNT, 3)
    assert torch.equal(ops.verify_chain(**flat).token_ids, padded.token_ids[:, :3])
    block: dict[str, Any] = flat | {"draft_logits": call["draft_logits"]}
    assert torch.equal(ops.verify_chain(**block).token_ids, padded.token_ids)
    wide = ops.verify_chain(**flat, max_spec_len=width + 2).token_ids
    assert torch.equal(wide[:, : width + 1], padded.token_ids) and (wide[:, width + 1 :] < 0).all()


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("is_flat", [False, True])
def test_slots_are_read_where_they_are(impl: Impl, is_flat: bool) -> None:
    """Two requests may share a slot, and slots that no request has may hold anything."""
    call: dict[str, Any] = random_call(COUNT, 3, 70, "dense", seed=5) | {"impl": impl}
    call["draft_logits"][7] = call["draft_logits"][2]
    expected = ops.verify_chain(**call)
    slots = torch.from_numpy(np.random.default_rng(0).permutation(30)[:COUNT])
    slots[7] = slots[2]
    cache = torch.full((30, 3, 70), torch.nan)
    cache[slots] = call["draft_logits"]
    flat = flattened(call, "cu_num_logits") if is_flat else call
    slotted: dict[str, Any] = flat | {"draft_logits": cache, "idx_mapping": slots}
    got = ops.verify_chain(**slotted)
    assert torch.equal(got.token_ids, expected.token_ids)
    assert torch.equal(got.margin, expected.margin)


def test_logits_are_views_of_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of the CPU read the caller's memory, unless a forbidden draft is masked."""
    seen: list[ChainInputs] = []
    original = verify._chain_inputs

    def watched(*args: Any) -> ChainInputs:
        seen.append(original(*args))
        return seen[-1]

    monkeypatch.setattr(verify, "_chain_inputs", watched)
    call: dict[str, Any] = random_call(COUNT, 3, 70, "dense", seed=6) | {"forbidden": None}
    flat = flattened(call, "cu_num_logits")
    flat["draft_token_ids"].clamp_(0, 69)
    ops.verify_chain(**flat)
    for name, rows in (("target_logits", mask_forbidden), ("draft_logits", draft_rows)):
        values, _ = rows(seen[0])
        assert values.ctypes.data == flat[name].data_ptr(), name
    assert isinstance(seen[0].target, FlatRows)
    assert np.shares_memory(seen[0].target[5, 0], seen[0].target.values)


def test_a_trace_names_the_same_draws() -> None:
    call = random_call(COUNT, 3, 70, "mixed", seed=7)
    trace = Trace()
    ops.verify_chain(**call, trace=trace)
    count = len(list(trace))
    ops.verify_chain(**flattened(call, "cu_num_draft_tokens"), trace=trace)
    trace.check()
    assert len(list(trace)) in (count, 2 * count)


@pytest.mark.parametrize("impl", IMPLS)
def test_no_requests_and_no_drafts(impl: Impl) -> None:
    call: dict[str, Any] = {"draft_logits": None, "key": 1, "anchor": 2, "impl": impl}
    none = torch.empty(0, dtype=torch.int64)
    empty: list[dict[str, Any]] = [{"cu_num_logits": [0]}, {"cu_num_draft_tokens": []}]
    for offsets in empty:
        got = ops.verify_chain(torch.empty(0, 9), none, **call, **offsets)
        assert got.token_ids.shape == (0, 1)
    logits = torch.randn(3, 9, generator=torch.Generator().manual_seed(0))
    got = ops.verify_chain(logits, none, cu_num_draft_tokens=[0, 0, 0], **call)
    padded = ops.verify_chain(logits[:, None], none.view(0)[:0].new_empty(3, 0), 0, **call)
    assert torch.equal(got.token_ids, padded.token_ids)


def bad_call() -> dict[str, Any]:
    """Requests of 2, 0 and 1 drafts."""
    return {
        "target_logits": torch.zeros(6, 20),
        "draft_token_ids": torch.zeros(3, dtype=torch.int64),
        "draft_logits": torch.zeros(3, 20),
        "key": 3,
        "anchor": 4,
        "cu_num_logits": [0, 3, 4, 6],
    }


BAD = [
    ({"cu_num_logits": [1, 3, 4, 6]}, "cu_num_logits begins with 1; it must begin with 0"),
    ({"cu_num_logits": [0, 3, 3, 6]}, "cu_num_logits goes from 3 to 3 at request 1; every"),
    ({"cu_num_logits": [0, 4, 2, 6]}, "cu_num_logits goes from 4 to 2 at request 1; every"),
    ({"cu_num_logits": [0, 3, 4, 7]}, "cu_num_logits ends with 7, which is 7 rows; target_logits"),
    ({"cu_num_logits": [0.0, 3.0]}, r"cu_num_logits is float64 of shape \(2,\); give integers"),
    ({"cu_num_logits": [[0, 3]]}, r"cu_num_logits is int64 of shape \(1, 2\); give integers"),
    ({"cu_num_logits": torch.tensor([0.5])}, "cu_num_logits is torch.float32 of shape"),
    ({"cu_num_logits": torch.tensor([False])}, "cu_num_logits is torch.bool of shape"),
    ({"cu_num_logits": []}, r"cu_num_logits is int64 of shape \(0,\); .* beginning with 0"),
    ({"cu_num_logits": torch.empty(0, dtype=torch.int32)}, r"beginning with 0"),
    ({"cu_num_draft_tokens": [2, 2, 3]}, "cu_num_logits and cu_num_draft_tokens are both given"),
    ({"num_draft_tokens": [2, 0, 1]}, "num_draft_tokens is given with offsets"),
    ({"draft_token_ids": torch.zeros(4, dtype=torch.int64)}, "draft_token_ids has 4 entries; 6 r"),
    ({"max_spec_len": 1}, "a request has 2 drafts, max_spec_len = 1; raise it"),
    ({"max_spec_len": 2.5}, "max_spec_len = 2.5 is no count"),
    ({"max_spec_len": True}, "max_spec_len = True is no count"),
    ({"max_spec_len": -1}, "max_spec_len = -1 is no count"),
    ({"draft_logits": torch.zeros(2, 20)}, r"draft_logits .*\(2, 20\).*; target_logits need"),
    ({"draft_logits": torch.zeros(3, 1, 20)}, "a request has 2 drafts, max_spec_len = 1"),
    (
        {"draft_logits": torch.zeros(3, 2, 20), "max_spec_len": 3},
        "draft_logits has 2 rows a request, max_spec_len = 3",
    ),
    ({"forbidden": torch.zeros(6, dtype=torch.bool)}, r"forbidden has shape \(6,\), not \(3,\)"),
    ({"target_logits": torch.zeros(1, 6, 20)}, "target_logits .* 2 dimensions"),
    (
        {"draft_logits": torch.zeros(4, 2, 20), "idx_mapping": [0, 4, 1]},
        r"idx_mapping has slot 4; draft_logits has slots 0\.\.3",
    ),
    (
        {"draft_logits": torch.zeros(4, 2, 20), "idx_mapping": [0, -1, 1]},
        "idx_mapping has slot -1",
    ),
    (
        {"draft_logits": torch.zeros(4, 2, 21), "idx_mapping": [0, 0, 1]},
        r"draft_logits .*\(4, 2, 21\).*; target_logits need",
    ),
    (
        {"draft_logits": torch.zeros(4, 2, 20), "idx_mapping": [0, 1]},
        r"idx_mapping has shape \(2,\)",
    ),
    (
        {
            "draft_logits": ops.SparseLogits(
                torch.zeros(3, 1, dtype=torch.int64), torch.zeros(3, 1)
            ),
            "idx_mapping": [0, 1, 2],
        },
        "idx_mapping is for dense draft_logits",
    ),
]


@pytest.mark.parametrize("impl", ["reference", "triton"])
@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_layouts_are_refused(change: dict[str, Any], message: str, impl: Impl) -> None:
    with pytest.raises(ValueError, match=message):
        ops.verify_chain(**bad_call() | change, impl=impl)


@pytest.mark.parametrize("impl", ["reference", "triton"])
def test_padded_calls_say_how_many_drafts_and_nothing_of_flat_rows(impl: Impl) -> None:
    call: dict[str, Any] = bad_call() | {"impl": impl}
    del call["cu_num_logits"]
    with pytest.raises(ValueError, match="num_draft_tokens is missing; give one a request, or cu"):
        ops.verify_chain(**call)
    call |= {
        "target_logits": torch.zeros(3, 3, 20),
        "draft_token_ids": torch.zeros(3, 2, dtype=torch.int64),
        "draft_logits": None,
        "num_draft_tokens": [2, 0, 1],
    }
    with pytest.raises(ValueError, match="max_spec_len = 2 is for flat rows"):
        ops.verify_chain(**call, max_spec_len=2)


def test_offsets_with_a_leading_zero_too_many_are_refused() -> None:
    """`cu_num_draft_tokens` [B + 1] would shift every request by one."""
    call = bad_call()
    del call["cu_num_logits"]
    with pytest.raises(ValueError, match=r"of 4 requests need 2, .* cu_num_draft_tokens \[B\]"):
        ops.verify_chain(**call, cu_num_draft_tokens=[0, 2, 2, 3])
