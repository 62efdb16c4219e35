"""Rule `block` of `ops.verify_chain`: the CPU form equals the reference; where it meets `token`.

What both rules promise alike is in `test_verify.py`, for both.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fairdraft import ops
from fairdraft.noise import Stream, Trace
from fairdraft.ops import PLACEHOLDER_TOKEN_ID, Impl, RowError, rules
from fairdraft.ops.sample import Method
from tests.ops.rows import IMPLS
from tests.ops.test_verify import OUTPUTS, random_call


@pytest.mark.parametrize("method", ["race", "gumbel"])
@pytest.mark.parametrize("kind", ["dense", "sparse", "mixed"])
@pytest.mark.parametrize("depth", [0, 1, 4])
@pytest.mark.parametrize("vocab_size", [1, 2, 63, 512, 1_025])
def test_cpu_equals_reference(vocab_size: int, depth: int, kind: str, method: Method) -> None:
    call = random_call(12, depth, vocab_size, kind, seed=vocab_size + depth)
    call |= {"rule": "block", "method": method, "return_weights": True}
    reference = ops.verify_chain(**call, impl="reference")
    fast = ops.verify_chain(**call, impl="cpu")
    for name in OUTPUTS:
        assert torch.equal(getattr(fast, name), getattr(reference, name)), name
    assert fast.num_broken == reference.num_broken
    assert fast.weights is not None and reference.weights is not None
    for name in ("accept_probability", "next_law", "end_probability"):
        got, expected = getattr(fast.weights, name), getattr(reference.weights, name)
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-15, equal_nan=True)


@pytest.mark.parametrize("impl", IMPLS)
def test_point_masses_and_greedy_rows_are_those_of_rule_token(impl: Impl) -> None:
    call = random_call(12, 4, 70, "point", seed=11)
    call |= {"impl": impl}
    block, token = (ops.verify_chain(**call, rule=rule) for rule in ("block", "token"))
    for name in OUTPUTS:
        assert torch.equal(getattr(block, name), getattr(token, name)), name


@pytest.mark.parametrize("impl", IMPLS)
def test_one_draft_is_decided_as_by_rule_token(impl: Impl) -> None:
    """One test with the same uniform against the same chance, and the same residual."""
    call = random_call(60, 1, 70, "dense", seed=12)
    call |= {"impl": impl}
    call["target_logits"].nan_to_num_()
    block, token = (ops.verify_chain(**call, rule=rule) for rule in ("block", "token"))
    assert int(token.num_accepted_tokens.sum()) > 0
    assert torch.equal(block.token_ids, token.token_ids)
    assert torch.equal(block.last_stream, token.last_stream)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(
    ("value", "error"),
    [(float("nan"), RowError.NAN), (float("inf"), RowError.INFINITE), (None, RowError.EMPTY)],
)
def test_a_bad_row_fails_its_request_where_a_prefix_can_reach_it(
    impl: Impl, value: float | None, error: RowError
) -> None:
    """Every row up to a draft with p = 0 decides which prefix stands, so nothing is emitted."""
    call = random_call(12, 3, 70, "dense", seed=5)
    call |= {"rule": "block", "impl": impl}
    call |= {"num_draft_tokens": torch.full((12,), 3), "temperature": 1.0}
    call["forbidden"] = torch.zeros(12, 3, dtype=torch.bool)
    call["forbidden"][::2, 1] = True
    clean = ops.verify_chain(**call)
    bad = call["target_logits"].clone()
    bad[:, 2] = float("-inf")
    if value is not None:
        bad[:, 2, 7] = value
    call["target_logits"] = bad
    got = ops.verify_chain(**call)
    can_reach = torch.arange(12) % 2 == 1
    # two proposals hold an id outside the vocabulary and an absent one
    can_reach[3] = False
    assert torch.equal(got.token_ids[~can_reach], clean.token_ids[~can_reach])
    assert (got.error[can_reach] == error).all()
    assert not got.num_emitted_tokens[can_reach].any()
    assert (got.token_ids[can_reach] == PLACEHOLDER_TOKEN_ID).all()


@pytest.mark.parametrize("impl", IMPLS)
def test_equal_laws_accept_everything(impl: Impl) -> None:
    """p = q in every bit: no residual anywhere, 0 / 0 stands, and so does the last draft."""
    call = random_call(12, 4, 70, "dense", seed=13)
    call |= {"rule": "block", "impl": impl}
    call |= {"num_draft_tokens": torch.full((12,), 4), "temperature": 1.0, "forbidden": None}
    call["target_logits"].nan_to_num_()
    call["draft_logits"] = call["target_logits"][:, :4].clone()
    call["draft_token_ids"] = call["draft_logits"].argmax(-1)
    got = ops.verify_chain(**call)
    assert (got.num_accepted_tokens == 4).all()
    call["forbidden"] = torch.zeros(12, 4, dtype=torch.bool)
    call["forbidden"][:, 3] = True
    cut = ops.verify_chain(**call)
    assert (cut.num_accepted_tokens == 3).all()
    assert (cut.token_ids[:, 3] != call["draft_token_ids"][:, 3]).all()


def test_the_mass_of_a_residual_has_no_order() -> None:
    """The same bits from any permutation, and from parts; near the plain sum."""
    generator = np.random.default_rng(1)
    weights = generator.random(5_000) ** 30
    weights /= weights.sum()
    mass = rules.residual_mass(weights)
    assert mass == rules.residual_mass(generator.permutation(weights))
    assert mass == rules.residual_mass(weights[:700]) + rules.residual_mass(weights[700:])
    assert mass == pytest.approx(weights.sum(), abs=5_000 * 2.0**-53)


@pytest.mark.parametrize("u", [2.0**-53, 0.5, 1 - 2.0**-53])
def test_chances_of_zero_and_one_ignore_the_uniform(u: float) -> None:
    assert not rules.stands(*rules.block_odds(0.3, 0.0), u)
    assert rules.stands(*rules.block_odds(1.0, 0.0), u)
    assert rules.stands(*rules.block_odds(1.0, 1e-9), u)
    assert rules.stands(*rules.block_odds(1.0, None), u)
    assert not rules.stands(*rules.block_odds(0.0, None), u)


def test_the_trace_records_every_test_that_was_made() -> None:
    """From the last draft that can stand back to the one that does, whatever the batch."""
    call = random_call(40, 4, 70, "dense", seed=14)
    call |= {"rule": "block", "temperature": 1.0, "forbidden": None}
    # mild enough that every p and q is above 0
    for name in ("target_logits", "draft_logits"):
        call[name] = call[name].nan_to_num() / 30
    call["key"] = np.arange(40, dtype=np.uint64)
    trace = Trace()
    got = ops.verify_chain(**call, trace=trace)
    ops.verify_chain(**call, trace=trace)
    trace.check()
    accepted = got.num_accepted_tokens.tolist()
    made: dict[int, list[int]] = {key: [] for key in range(40)}
    for use in trace:
        if use.stream == Stream.ACCEPT:
            assert use.position == use.anchor + use.node - 1
            made[use.key].append(use.node)
    for b, nodes in made.items():
        is_present = call["draft_token_ids"][b] != PLACEHOLDER_TOKEN_ID
        count = min(int(call["num_draft_tokens"][b]), int(is_present.int().cumprod(0).sum()))
        # of these, the one id outside the vocabulary cannot stand, nor what follows it
        count = 0 if b == 3 else count
        assert sorted(nodes) == list(range(max(accepted[b], 1), count + 1)), b
    assert len(trace) == sum(map(len, made.values())) + 40
    call["target_logits"] += torch.arange(70)
    ops.verify_chain(**call, trace=trace)
    assert trace.collisions
