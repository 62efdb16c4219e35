"""A step of all rows, drawn in one call, is what draws of some rows each come to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fairdraft.noise import Trace
from fairdraft.speculators import CommonSampler, SharedSampler
from fairdraft.speculators.sampler import Drawn

ROWS, STEPS, VOCAB_SIZE = 4, 3, 1100


def new_sampler(kind: type[Any], **changes: Any) -> Any:
    """A sampler of four rows of which the third is greedy."""
    given = {
        "key": np.arange(ROWS, dtype=np.uint64) + np.uint64(1 << 63),
        "sample": np.arange(ROWS),
        "anchor": np.array([3, 70_000, 5, 6]),
        "temperature": np.array([1.0, 0.7, 0.0, 1.3]),
        "top_k": np.zeros(ROWS, np.int64),
        "top_p": np.ones(ROWS),
        "min_p": np.zeros(ROWS),
        "filtered": np.zeros(ROWS, np.bool_),
        "num_steps": STEPS,
    }
    return kind(**(given | changes))


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("method", ["race", "gumbel"])
@pytest.mark.parametrize("kind", [SharedSampler, CommonSampler])
def test_whole_steps_are_those_of_their_rows(kind: type[Any], method: Any, greedy: bool) -> None:
    sampler = new_sampler(kind, method=method)
    logits = torch.randn(STEPS, ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(4))
    logits[1, 3, 17] = torch.nan
    for step in range(1, STEPS + 1):
        law = logits[step - 1]
        whole = sampler.draw(law, step, np.arange(ROWS), greedy=greedy)
        for some in ([0, 2], [1, 3]):
            part = sampler.draw(law[some], step, np.array(some), greedy=greedy)
            assert whole.token_ids[some].tolist() == part.token_ids.tolist()
            assert whole.error[some].tolist() == part.error.tolist()
        assert whole.error.count_nonzero() == (step == 2)
        if isinstance(whole, Drawn):
            assert whole.logits is law


def test_a_step_is_traced_or_drawn_by_the_reference_as_it_is_drawn_whole() -> None:
    logits = torch.randn(ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(5))
    plain, trace = new_sampler(SharedSampler), Trace()
    expected = plain.draw(logits, 2, np.arange(ROWS)).token_ids.tolist()
    for changes in ({"trace": trace}, {"impl": "reference"}):
        got = replace(plain, **changes).draw(logits, 2, np.arange(ROWS))
        assert got.token_ids.tolist() == expected
    assert len(trace) == ROWS - 1


def test_a_missing_row_is_refused() -> None:
    sampler = new_sampler(SharedSampler)
    with pytest.raises(ValueError, match="logits has 3 rows; draft 1 needs 4"):
        sampler.draw(torch.zeros(ROWS - 1, VOCAB_SIZE), 1, np.arange(ROWS))


@pytest.mark.parametrize("kind", [SharedSampler, CommonSampler])
def test_all_rows_in_another_order_keep_their_own_laws(kind: type[Any]) -> None:
    """A greedy row among hot ones: temperature and address are the row's, wherever it stands."""
    logits = torch.randn(ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(6))
    order = np.array([2, 0, 3, 1])
    for impl in ("cpu", "reference"):
        sampler = new_sampler(kind, impl=impl)
        whole = sampler.draw(logits, 1, np.arange(ROWS))
        shuffled = sampler.draw(logits[order], 1, order)
        assert shuffled.token_ids.tolist() == whole.token_ids[order].tolist()


@pytest.mark.parametrize("step", [-1, 0, STEPS + 1, 50_000])
@pytest.mark.parametrize("impl", ["cpu", "reference"])
def test_a_step_that_the_round_does_not_have_is_refused(impl: str, step: int) -> None:
    """It has no address of its own."""
    sampler = new_sampler(SharedSampler, impl=impl)
    with pytest.raises(ValueError, match=f"step = {step} is outside 1..{STEPS}"):
        sampler.draw(torch.zeros(ROWS, VOCAB_SIZE), step, np.arange(ROWS))
