"""`ops.logprobs` in Triton kernels, interpreted: against the reference and float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fairdraft import ops
from fairdraft.ops import RowError
from tests.ops.rows import addresses
from tests.ops.test_logprobs import STATS_ERROR, TEMPERATURES, assert_right, rows_and_ids
from tests.ops.triton.alike import guarded

KERNELS: dict[str, Any] = {"impl": "triton"}


def test_values_ranks_and_first_tokens_with_and_without_statistics() -> None:
    """Rows in wider memory, nine tiles: more than are looked at together."""
    logits, ids = rows_and_ids(4_200)
    call: dict[str, Any] = {"temperature": torch.from_numpy(TEMPERATURES), "top_n": 5}
    assert_right(ops.logprobs(guarded(logits), ids, **call, **KERNELS), logits, ids, STATS_ERROR, 5)
    drawn = ops.sample(logits, addresses(5), temperature=TEMPERATURES, return_stats=True, **KERNELS)
    got = ops.logprobs(logits, drawn.token_ids, **call, stats=drawn.stats, **KERNELS)
    assert_right(got, logits, drawn.token_ids, STATS_ERROR, 5)


def test_only_tiles_above_the_token_are_read() -> None:
    logits = torch.zeros(1, 1_536)
    logits[0, 600] = 3.0
    drawn = ops.sample(logits, addresses(1), return_stats=True, **KERNELS)
    logits[0, 1_100] = torch.inf
    got = ops.logprobs(logits, torch.tensor([600]), top_n=1, stats=drawn.stats, **KERNELS)
    assert got.ranks.tolist() == [1] and got.top_ids.tolist() == [[600]]


def test_errors_greedy_rows_and_padding_equal_the_reference() -> None:
    logits = torch.zeros(8, 600)
    logits[0, 3], logits[1, 4], logits[2] = torch.nan, torch.inf, -torch.inf
    logits[4:, 590] = 2.0
    ids = torch.tensor([1, 1, 1, -1, 590, 7, 590, 7])
    temperature = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 2.0])
    call: dict[str, Any] = {"temperature": temperature, "top_n": 2}
    expected = ops.logprobs(logits, ids, **call, impl="reference")
    got = ops.logprobs(logits, ids, **call, **KERNELS)
    for name in ("ranks", "top_ids", "top_ranks", "error"):
        assert torch.equal(getattr(got, name), getattr(expected, name)), name
    for name in ("logprobs", "top_logprobs"):
        have, want = getattr(got, name), getattr(expected, name)
        torch.testing.assert_close(have, want, rtol=0, atol=STATS_ERROR, equal_nan=True)


def test_numbers_that_only_the_device_sees_are_errors_of_their_rows() -> None:
    logits, ids = torch.zeros(4, 20), torch.tensor([20, -2, 0, 1])
    temperature = torch.tensor([1.0, 1.0, -1.0, 1.0])
    got = ops.logprobs(logits, ids, temperature=temperature, top_n=1, **KERNELS)
    assert got.error.tolist() == [*[RowError.PARAMETER] * 3, 0]
    assert got.logprobs[:3].isnan().all() and abs(float(got.logprobs[3]) + np.log(20)) < STATS_ERROR
