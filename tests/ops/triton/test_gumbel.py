"""The flat race in Triton kernels, interpreted: two passes in `portable`, one in `fast`."""

from __future__ import annotations

import pytest
import torch

from fairdraft import ops
from fairdraft.ops import RowError
from tests.ops.rows import addresses, random_logits
from tests.ops.triton.alike import assert_sampled_alike, device_address, guarded


@pytest.mark.parametrize("vocab_size", [1, 63, 513, 2_100])
def test_kernels_equal_the_reference(vocab_size: int) -> None:
    """2,100 ids are two programs a row, so that one has to bring its best to the other's scale."""
    logits = random_logits((2, vocab_size), seed=vocab_size).float()
    temperature = torch.tensor([0.3, 1e8])
    assert_sampled_alike(
        guarded(logits), addresses(2), True, temperature=temperature, method="gumbel"
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_logits_and_greedy_rows(dtype: torch.dtype) -> None:
    logits = random_logits((4, 600), seed=2, dtype=dtype)
    temperature = torch.tensor([2.0, 0.0, 1e-5, 0.0])
    assert_sampled_alike(logits, addresses(4), True, temperature=temperature, method="gumbel")


def test_bad_rows_are_errors_of_their_own() -> None:
    """A program's own tokens may all be masked, hold NaN or lie far below the row's maximum."""
    logits = random_logits((7, 2_100), seed=3).float()
    logits[1, 2_099] = float("nan")
    logits[2, 5] = float("inf")
    logits[3] = float("-inf")
    logits[4] = float("-inf")
    logits[4, 2_090] = -300.0
    logits[5, :2_048] = -500.0
    logits[5, 2_048:] = 0.0
    got, _ = assert_sampled_alike(guarded(logits), addresses(7), True, method="gumbel")
    assert got.error.tolist() == [0, RowError.NAN, RowError.INFINITE, RowError.EMPTY, 0, 0, 0]
    assert got.token_ids[4] == 2_090 and got.margin[4] == torch.inf
    assert got.token_ids[5] >= 2_048


def test_up_to_one_tile_both_methods_draw_the_same_tokens() -> None:
    logits, at = random_logits((4, 512), seed=5).float(), device_address(4)
    race, flat = (
        ops.sample(logits, at, method=method, impl="triton", arithmetic="portable")
        for method in ("race", "gumbel")
    )
    assert torch.equal(race.token_ids, flat.token_ids)


def test_row_statistics_come_with_the_flat_race_too() -> None:
    """They are what a verification reads, so they cannot depend on how the token was drawn."""
    logits, at = random_logits((3, 600), seed=6).float(), addresses(3)
    flat, race = (
        ops.sample(
            logits, at, method=method, impl="triton", arithmetic="portable", return_stats=True
        ).stats
        for method in ("gumbel", "race")
    )
    assert flat is not None and race is not None
    for name in ("tile_max", "tile_sum", "row_max", "row_sum"):
        assert torch.equal(getattr(flat, name), getattr(race, name)), name
