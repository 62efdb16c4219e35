"""`ops.verify_chain` by flat Gumbel: the same tokens from both forms, and as a race in one tile."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fairdraft import noise, ops
from fairdraft.noise import Stream
from fairdraft.ops import Impl
from tests.ops.rows import IMPLS, random_logits
from tests.ops.test_verify import OUTPUTS, random_call


def assert_equal(first: ops.Verdict, second: ops.Verdict) -> None:
    """Every output, bit for bit."""
    for name in OUTPUTS:
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    assert first.num_broken == second.num_broken


@pytest.mark.parametrize("kind", ["dense", "sparse", "point", "mixed"])
@pytest.mark.parametrize("depth", [0, 1, 4])
@pytest.mark.parametrize("vocab_size", [1, 63, 512, 513, 1_025])
def test_cpu_equals_reference(vocab_size: int, depth: int, kind: str) -> None:
    call = random_call(12, depth, vocab_size, kind, seed=vocab_size + depth)
    reference = ops.verify_chain(**call, method="gumbel", impl="reference")
    assert_equal(ops.verify_chain(**call, method="gumbel", impl="cpu"), reference)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("kind", ["dense", "sparse", "point", "mixed"])
@pytest.mark.parametrize("vocab_size", [2, 63, 512])
def test_one_tile_gives_the_tokens_of_the_race(vocab_size: int, kind: str, impl: Impl) -> None:
    call = random_call(12, 3, vocab_size, kind, seed=vocab_size)
    assert_equal(
        ops.verify_chain(**call, method="gumbel", impl=impl), ops.verify_chain(**call, impl=impl)
    )


def test_several_tiles_give_other_tokens() -> None:
    call = random_call(40, 3, 1_025, "dense", seed=1)
    call["temperature"] = 2.0
    race, gumbel = (ops.verify_chain(**call, method=m) for m in ("race", "gumbel"))
    assert not torch.equal(race.token_ids, gumbel.token_ids)
    assert torch.equal(race.num_accepted_tokens, gumbel.num_accepted_tokens), "one ACCEPT draw"


@pytest.mark.parametrize("impl", IMPLS)
def test_rows_without_drafts_are_plain_gumbel_sampling(impl: Impl) -> None:
    logits = random_logits((5, 1, 1_400), seed=7).float()
    key, anchor = np.arange(5, dtype=np.uint64), np.arange(5) + 10
    got = ops.verify_chain(
        logits,
        torch.empty(5, 0, dtype=torch.int64),
        0,
        draft_logits=None,
        key=key,
        anchor=anchor,
        method="gumbel",
        impl=impl,
    )
    at = noise.address(Stream.TARGET, key=key, position=anchor)
    expected = ops.sample(logits[:, 0], at, method="gumbel").token_ids
    assert torch.equal(got.token_ids[:, 0], expected)


def test_an_unknown_method_is_refused() -> None:
    call = random_call(12, 2, 70, "dense", seed=9)
    with pytest.raises(ValueError, match="method = 'cdf' is unknown; choose 'race' or 'gumbel'"):
        ops.verify_chain(**call, method="cdf")  # type: ignore[arg-type]
