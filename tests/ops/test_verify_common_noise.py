"""Rule `common_noise` of `ops.verify_chain`: the tokens of plain decoding, whatever is drafted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fairdraft import noise, ops
from fairdraft.noise import Stream, Trace
from fairdraft.ops import Impl, RowError, TileStats
from fairdraft.ops.sample import Method
from tests.ops.rows import IMPLS
from tests.ops.test_verify import OUTPUTS, random_call


def common_call(count: int, depth: int, vocab_size: int, seed: int) -> dict[str, Any]:
    """A batch with ragged drafts, every mark, greedy rows and a bad row."""
    call = random_call(count, depth, vocab_size, "point", seed)
    return call | {"rule": "common_noise"}


def plain_token(call: dict[str, Any], b: int, r: int, method: Method) -> tuple[int, int]:
    """What plain decoding draws at row r, and its error; a forbidden draft has p = 0."""
    row = call["target_logits"][b, r].clone()
    if r < call["draft_token_ids"].shape[1] and call["forbidden"][b, r]:
        x = int(call["draft_token_ids"][b, r])
        if 0 <= x < len(row):
            row[x] = -torch.inf
    at = noise.address(
        Stream.TARGET,
        key=call["key"][b],
        position=int(call["anchor"][b]) + r,
        sample=int(call["sample"][b]),
    )
    drawn = ops.sample(
        row[None], at, temperature=float(call["temperature"][b]), method=method, impl="reference"
    )
    return int(drawn.token_ids[0]), int(drawn.error[0])


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("depth", [0, 1, 4])
@pytest.mark.parametrize(("vocab_size", "method"), [(1, "race"), (63, "gumbel"), (600, "race")])
def test_tokens_are_those_of_plain_decoding(
    vocab_size: int, method: Method, depth: int, impl: Impl
) -> None:
    call = common_call(12, depth, vocab_size, seed=vocab_size + depth)
    verdict = ops.verify_chain(**call, method=method, impl=impl)
    for b, emitted in enumerate(verdict.token_ids.tolist()):
        ids = call["draft_token_ids"][b].tolist()
        present = int(call["num_draft_tokens"][b])
        present = min([present, *(i for i, x in enumerate(ids) if x == -1)])
        expected: list[int] = []
        for r in range(present + 1):
            token, error = plain_token(call, b, r, method)
            if error:
                assert verdict.error[b] == error
                break
            expected.append(token)
            if r == present or token != ids[r]:
                assert verdict.num_accepted_tokens[b] == r
                break
        assert [token for token in emitted if token >= 0] == expected


def test_cpu_equals_reference() -> None:
    call = common_call(24, 4, 1_025, seed=2)
    expected = ops.verify_chain(**call, impl="reference")
    got = ops.verify_chain(**call, impl="cpu")
    for name in OUTPUTS:
        assert torch.equal(getattr(got, name), getattr(expected, name)), name
    assert (expected.num_accepted_tokens > 0).any() and (expected.error == RowError.NONE).any()


def test_flat_rows_are_those_of_padded_ones() -> None:
    call = common_call(8, 3, 70, seed=4)
    call["draft_token_ids"] = call["draft_token_ids"].clamp(min=0)
    expected = ops.verify_chain(**call)
    counts = call.pop("num_draft_tokens")
    is_draft = torch.arange(3) < counts[:, None]
    is_row = torch.arange(4) < counts[:, None] + 1
    for name in ("draft_token_ids", "forbidden"):
        call[name] = call[name][is_draft]
    call["target_logits"] = call["target_logits"][is_row]
    got = ops.verify_chain(**call, cu_num_draft_tokens=counts.cumsum(0), max_spec_len=3)
    for name in OUTPUTS:
        assert torch.equal(getattr(got, name), getattr(expected, name)), name


def test_last_streams_say_what_a_token_counts_for() -> None:
    target = torch.zeros(3, 2, 5)
    target[:, :, 2] = 80.0
    call: dict[str, Any] = {"draft_logits": None, "key": 1, "anchor": 4, "rule": "common_noise"}
    drafts = torch.tensor([[2], [1], [-1]])
    verdict = ops.verify_chain(target, drafts, [1, 1, 0], **call)
    assert verdict.last_stream.tolist() == [Stream.BONUS, Stream.RESIDUAL, Stream.TARGET]


@pytest.mark.parametrize("impl", ["reference", "cpu", "triton"])
@pytest.mark.parametrize(
    "change",
    [
        {"draft_logits": torch.zeros(12, 2, 70)},
        {"draft_temperature": 1.0},
        {"point_mass": torch.ones(12, dtype=torch.bool)},
        {"idx_mapping": torch.arange(12)},
        {"draft_stats": TileStats(*[torch.zeros(24)] * 4)},
    ],
)
def test_laws_of_drafts_are_refused(change: dict[str, Any], impl: Impl) -> None:
    call = common_call(12, 2, 70, seed=1) | change
    (name,) = change
    with pytest.raises(ValueError, match=f"{name} is given, and rule 'common_noise' takes no law"):
        ops.verify_chain(**call, impl=impl)


def test_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="return_weights: under rule 'common_noise'"):
        ops.verify_chain(**common_call(12, 2, 70, seed=1), return_weights=True)


def test_the_trace_holds_the_races_of_the_rows_walked() -> None:
    trace = Trace()
    call = common_call(24, 3, 70, seed=5)
    call["temperature"] = 1.0
    verdict = ops.verify_chain(**call, trace=trace)
    trace.check()
    assert len(trace) == int(verdict.num_emitted_tokens.sum())
    assert {(use.stream, use.anchor, use.node) for use in trace} == {(Stream.TARGET, 0, 0)}
    call["target_logits"] = call["target_logits"] + torch.arange(70)
    ops.verify_chain(**call, trace=trace)
    assert trace.collisions


def test_positions_that_do_not_fit_are_refused() -> None:
    call = common_call(12, 2, 70, seed=1)
    call["anchor"] = np.full(12, (1 << 32) - 2)
    with pytest.raises(ValueError, match="position = 4294967296 is outside"):
        ops.verify_chain(**call)
