"""Ragged, incremental, rolled-back forwards against one forward of each text from scratch."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from fairdraft.models import load_model
from tests.models.networks import CONFIGS, MAX_POSITIONS, VOCAB_SIZE, network, reference_logits


def tolerance(shape: str, dtype: torch.dtype, attention: str = "sdpa") -> float:
    """1e-10 in float64, except that eager attention takes its softmax in float32."""
    eager = attention == "eager" or shape == "gemma2"
    return 1e-10 if dtype == torch.float64 and not eager else 1e-5


class Batch:
    """Texts of a batch, and the forwards that the adapter has made of them."""

    def __init__(self, lm: Any, num_rows: int, seed: int) -> None:
        self.lm = lm
        self.cache = lm.new_cache(num_rows=1, length=16)
        self.random = random.Random(seed)
        self.texts: list[list[int]] = [[] for _ in range(num_rows)]

    def draw(self, count: int) -> list[int]:
        return [self.random.randrange(VOCAB_SIZE) for _ in range(count)]

    def forward(self, starts: list[int], new: list[list[int]], **options: Any) -> Any:
        """Rolls each row back to its start and continues it; padding ids are poison."""
        width = max(len(ids) for ids in new)
        block = torch.full((len(new), width), -1, dtype=torch.int64)
        for row, ids in enumerate(new):
            block[row, : len(ids)] = torch.tensor(ids)
            self.texts[row] = self.texts[row][: starts[row]] + ids
        counts = torch.tensor([len(ids) for ids in new])
        return self.lm.forward(
            block, torch.tensor(starts), self.cache, num_tokens=counts, **options
        )

    def worst_difference(self, logits: torch.Tensor, starts: list[int]) -> float:
        """Largest difference from forwards from scratch, relative to the largest logit."""
        worst = 0.0
        for row, start in enumerate(starts):
            expected = reference_logits(self.lm.model, self.texts[row])[start:]
            difference = (logits[row, : len(expected)] - expected).abs().max()
            worst = max(worst, float(difference / expected.abs().max()))
        return worst


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("shape", CONFIGS)
def test_ragged_rollbacks_equal_forwards_from_scratch(shape: str, dtype: torch.dtype) -> None:
    lm = load_model(network(shape, dtype=dtype))
    batch = Batch(lm, num_rows=3, seed=5)
    prompts = [batch.draw(12), batch.draw(3), batch.draw(25)]
    logits = batch.forward([0, 0, 0], prompts, logits_dtype=None)
    assert batch.worst_difference(logits, [0, 0, 0]) < tolerance(shape, dtype)
    for _ in range(12):
        starts = [len(text) - batch.random.randrange(0, 4) for text in batch.texts]
        starts = [max(start, 0) for start in starts]
        new = [batch.draw(batch.random.randrange(1, 7)) for _ in starts]
        logits = batch.forward(starts, new, logits_dtype=None)
        assert batch.worst_difference(logits, starts) < tolerance(shape, dtype)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("prompt_length", [7, 8, 9, 12])
@pytest.mark.parametrize("shape", ["gemma3", "mistral"])
def test_sliding_windows_roll_back_after_they_wrapped(
    shape: str, prompt_length: int, attention: str
) -> None:
    lm = load_model(network(shape, dtype=torch.float64, attention=attention))
    batch = Batch(lm, num_rows=1, seed=prompt_length)
    batch.forward([0], [batch.draw(prompt_length)])
    while len(batch.texts[0]) < prompt_length + 64:
        # five drafts, of which a random number stands
        start = len(batch.texts[0]) - batch.random.randrange(0, 5)
        logits = batch.forward([start], [batch.draw(6)], logits_dtype=None)
        worst = batch.worst_difference(logits, [start])
        assert worst < tolerance(shape, torch.float64, attention)
    # a second turn that keeps a prefix from long before the window
    start = prompt_length - 2
    logits = batch.forward([start], [batch.draw(20)], logits_dtype=None)
    assert batch.worst_difference(logits, [start]) < tolerance(shape, torch.float64, attention)


@pytest.mark.parametrize("shape", CONFIGS)
@pytest.mark.parametrize("lengths", [[1, 1, 1], [4, 4, 4], [4, 1, 3]])
def test_last_only_is_the_last_real_row(shape: str, lengths: list[int]) -> None:
    lm = load_model(network(shape))
    full, last = Batch(lm, 3, seed=1), Batch(lm, 3, seed=1)
    for batch in (full, last):
        batch.forward([0, 0, 0], [batch.draw(5), batch.draw(2), batch.draw(9)])
    new = [full.draw(length) for length in lengths]
    starts = [5, 2, 9]
    logits = full.forward(starts, new)
    only = last.forward(starts, new, last_only=True)
    assert only.shape == (3, lm.padded_vocab_size)
    expected = torch.stack([logits[row, length - 1] for row, length in enumerate(lengths)])
    torch.testing.assert_close(only, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", CONFIGS)
def test_positions_are_right_up_to_the_limit(shape: str) -> None:
    lm = load_model(network(shape))
    batch = Batch(lm, num_rows=2, seed=3)
    batch.forward([0, 0], [batch.draw(MAX_POSITIONS - 3), batch.draw(20)])
    starts = [MAX_POSITIONS - 3, 20]
    for new in ([batch.draw(3), batch.draw(6)], [batch.draw(2), batch.draw(5)]):
        logits = batch.forward(starts, new)
        assert batch.worst_difference(logits, starts) < 1e-5
    starts = [MAX_POSITIONS - 1, 25]
    logits = batch.forward(starts, [batch.draw(1), batch.draw(7)])
    assert batch.worst_difference(logits, starts) < 1e-5
    # the padding of the first row went nowhere that a query of it reads
    starts = [MAX_POSITIONS - 1, 32]
    logits = batch.forward(starts, [batch.texts[0][-1:], batch.draw(2)])
    assert batch.worst_difference(logits, starts) < 1e-5


def test_a_position_past_the_limit_is_refused() -> None:
    lm = load_model(network("llama"))
    cache = lm.new_cache()
    with pytest.raises(ValueError, match=r"row 1 would use positions 127\.\.128 .* 0\.\.127"):
        lm.forward(torch.zeros(2, 2, dtype=torch.int64), torch.tensor([0, 127]), cache)
    with pytest.raises(ValueError, match="row 0 would use positions -1"):
        lm.forward(torch.zeros(1, 2, dtype=torch.int64), torch.tensor([-1]), cache)


def test_ids_outside_the_embedding_are_refused() -> None:
    lm = load_model(network("llama"))
    for bad in (-1, VOCAB_SIZE):
        with pytest.raises(ValueError, match=rf"token id {bad} .* 0\.\.{VOCAB_SIZE - 1}"):
            lm.forward(torch.tensor([[3, bad]]), torch.tensor([0]), lm.new_cache())


@pytest.mark.parametrize(
    ("shape", "start", "num_tokens", "message"),
    [
        ((2, 0), [0, 0], None, "at least 1"),
        ((2, 3), [0], None, "start has 1 entries for 2 rows"),
        ((2, 3), [0, 0], [1], "num_tokens has 1 entries for 2 rows"),
        ((2, 3), [0, 0], [1, 4], r"num_tokens = \[1, 4\]: each must be 0\.\.3"),
    ],
)
def test_malformed_blocks_are_refused(
    shape: tuple[int, int], start: list[int], num_tokens: list[int] | None, message: str
) -> None:
    lm = load_model(network("llama"))
    counts = None if num_tokens is None else torch.tensor(num_tokens)
    with pytest.raises(ValueError, match=message):
        lm.forward(
            torch.zeros(shape, dtype=torch.int64),
            torch.tensor(start),
            lm.new_cache(),
            num_tokens=counts,
        )


def test_a_round_forwards_its_own_tokens_only() -> None:
    lm = load_model(network("llama"))
    batch = Batch(lm, num_rows=3, seed=9)
    batch.forward([0, 0, 0], [batch.draw(30), batch.draw(10), batch.draw(20)])
    lm.reset_counters()
    batch.forward([30, 8, 19], [batch.draw(5), batch.draw(3), batch.draw(1)])
    assert (lm.num_forwards, lm.num_forwarded_tokens, lm.num_padded_tokens) == (1, 9, 6)


def test_moved_and_dropped_rows() -> None:
    lm = load_model(network("gemma3"))
    batch = Batch(lm, num_rows=3, seed=2)
    batch.forward([0, 0, 0], [batch.draw(9), batch.draw(15), batch.draw(4)])
    batch.cache.drop_row(0)
    batch.cache.move_row(2, 0)
    batch.texts = [batch.texts[2], batch.texts[1]]
    starts = [4, 14]
    logits = batch.forward(starts, [batch.draw(2), batch.draw(3)])
    assert batch.worst_difference(logits, starts) < 1e-5
    with pytest.raises(ValueError, match="row 99 is outside the cache"):
        batch.cache.move_row(99, 0)


def test_a_row_that_held_nan_is_clean_once_dropped() -> None:
    lm = load_model(network("llama"))
    batch = Batch(lm, num_rows=2, seed=4)
    batch.forward([0, 0], [batch.draw(9), batch.draw(5)])
    with torch.inference_mode():
        for tensor in (*batch.cache._keys.values(), *batch.cache._values.values()):
            tensor[1] = float("nan")
    logits = batch.forward([9, 5], [batch.draw(2), batch.draw(2)])
    assert logits[0].isfinite().all() and logits[1].isnan().all()
    batch.cache.drop_row(1)
    batch.texts[1] = []
    logits = batch.forward([11, 0], [batch.draw(1), batch.draw(1)])
    assert batch.worst_difference(logits, [11, 0]) < 1e-5


def test_later_rows_are_filled_while_earlier_ones_wait() -> None:
    lm = load_model(network("llama"))
    batch = Batch(lm, num_rows=4, seed=8)
    batch.texts = [batch.draw(7), batch.draw(70), [], batch.draw(33)]
    lm.prefill(batch.texts[:2], batch.cache)
    lm.prefill(batch.texts[2:], batch.cache, first_row=2)
    starts = [7, 70, 0, 33]
    logits = batch.forward(starts, [batch.draw(2) for _ in starts])
    assert batch.worst_difference(logits, starts) < 1e-5


def test_prefill_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairdraft.models.causal_lm._PREFILL_TOKENS", 24)
    lm = load_model(network("gemma3"))
    batch = Batch(lm, num_rows=3, seed=8)
    batch.texts = [batch.draw(50), batch.draw(3), batch.draw(30)]
    lm.prefill(batch.texts, batch.cache)
    assert lm.num_forwards > 3
    starts = [50, 3, 30]
    logits = batch.forward(starts, [batch.draw(2) for _ in starts])
    assert batch.worst_difference(logits, starts) < 1e-5


def test_hidden_states_come_along() -> None:
    lm = load_model(network("llama"))
    batch = Batch(lm, num_rows=2, seed=6)
    logits, hidden = batch.forward([0, 0], [batch.draw(4), batch.draw(2)], hidden_states=True)
    with torch.no_grad():
        expected = lm.model(
            input_ids=torch.tensor([batch.texts[0]]), use_cache=False, output_hidden_states=True
        ).hidden_states
    assert logits.shape == (2, 4, VOCAB_SIZE) and len(hidden) == len(expected)
    for found, wanted in zip(hidden, expected, strict=True):
        torch.testing.assert_close(found[0], wanted[0], rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize("shape", ["llama", "gemma3"])
@pytest.mark.parametrize("starts", [[6, 6], [4, 6]], ids=["aligned", "ragged"])
def test_a_step_is_a_forward_of_one_token(shape: str, starts: list[int]) -> None:
    lm = load_model(network(shape))
    new = torch.tensor([[3], [5]])
    found = []
    for is_step in (False, True):
        batch = Batch(lm, num_rows=2, seed=8)
        batch.forward([0, 0], [batch.draw(6), batch.draw(6)])
        lm.reset_counters()
        with torch.inference_mode():
            if is_step:
                logits = lm.step(new, np.array(starts), batch.cache)
            else:
                logits = lm.forward(new, torch.tensor(starts), batch.cache, last_only=True)
        found.append((logits, lm.num_forwards, lm.num_forwarded_tokens, lm.num_padded_tokens))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:] == (1, 2, 0)
