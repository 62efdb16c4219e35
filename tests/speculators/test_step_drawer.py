"""Whole steps drawn in one call are the steps that `draw` draws."""

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
def test_whole_steps_are_the_steps_of_draw(kind: type[Any], method: Any, greedy: bool) -> None:
    sampler = new_sampler(kind, method=method)
    logits = torch.randn(STEPS, ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(4))
    logits[1, 3, 17] = torch.nan
    drafts = np.full((ROWS, STEPS), -7)
    laws = torch.full((ROWS, STEPS, VOCAB_SIZE), 7.0) if kind is SharedSampler else None
    draw = sampler.step_drawer(drafts, laws, greedy=greedy)
    for step in range(1, STEPS + 1):
        expected = sampler.draw(logits[step - 1], step, np.arange(ROWS), greedy=greedy)
        error = draw(logits[step - 1], step)
        assert (error is not None) == (step == 2)
        found = np.zeros(ROWS, np.int64) if error is None else error
        assert found.tolist() == expected.error.tolist()
        assert drafts[:, step - 1].tolist() == expected.token_ids.tolist()
        if laws is not None:
            assert isinstance(expected, Drawn)
            torch.testing.assert_close(
                laws[:, step - 1], expected.logits, rtol=0, atol=0, equal_nan=True
            )
    assert (drafts[3, 1] == -1) and (np.delete(drafts, 3 * STEPS + 1) >= 0).all()


def test_what_is_more_than_a_draw_is_left_to_draw() -> None:
    sampler = new_sampler(SharedSampler)
    drafts = np.zeros((ROWS, STEPS), np.int64)
    assert sampler.step_drawer(drafts, None) is not None
    for changes in (
        {"filtered": np.arange(ROWS) == 1},
        {"process": lambda logits, rows, drawn: logits},
        {"trace": Trace()},
        {"impl": "reference"},
    ):
        assert replace(sampler, **changes).step_drawer(drafts, None) is None


def test_a_missing_row_is_refused() -> None:
    draw = new_sampler(SharedSampler).step_drawer(np.zeros((ROWS, STEPS), np.int64), None)
    with pytest.raises(ValueError, match="logits has 3 rows; draft 1 needs 4"):
        draw(torch.zeros(ROWS - 1, VOCAB_SIZE), 1)
