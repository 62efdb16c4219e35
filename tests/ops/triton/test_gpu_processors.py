"""Processors of rows on a CUDA device: a real vocabulary, graphs, and no wait for the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fairdraft.ops import processors
from fairdraft.ops.processors import Bitmask, DraftedPaths, Guard, RowParams
from fairdraft.ops.processors.edits import EVERY_ROW, NUM_PROBES
from tests.ops.triton.edited import apply_in_order, assert_edited_alike, drafted_paths, everything

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
V, K = 151_936, 3
LENGTHS, CHOSEN, B = (1_500, 2, 3_000, 40), (4, 0, 2, 5), 6
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def logits_of(seed: int, dtype: torch.dtype = torch.float32, count: int = B) -> Tensor:
    """Rows in wider memory, zeros of both signs and bad numbers among them."""
    generator = torch.Generator().manual_seed(seed)
    wide = 4 * torch.randn(count, K + 1, V + 24, generator=generator)
    wide[..., 100:200] *= 0
    wide[0, 0, 1], wide[2, 1, 2], wide[4, 3, 3] = torch.nan, torch.inf, -torch.inf
    return wide.to(dtype)[..., :V]


def wide_paths(seed: int) -> DraftedPaths:
    """Texts of a thousand tokens and of a few."""
    paths = drafted_paths(V, K, LENGTHS, CHOSEN, seed)
    rng = np.random.default_rng(seed)
    text = paths.token_ids[2]
    text[:2_000] = rng.integers(0, V, 2_000)
    return paths


def masks_of(seed: int) -> list[Bitmask]:
    bits = np.random.default_rng(seed).integers(0, 256, (2, V // 8), np.uint8)
    return [Bitmask(0, 2, bits[0]), Bitmask(3, EVERY_ROW, bits[1])]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_together_equal_the_processors(dtype: torch.dtype) -> None:
    for seed in range(2):
        params = [everything(V, seed + c) for c in range(4)]
        assert_edited_alike(
            logits_of(seed, dtype), wide_paths(seed), params, masks_of(seed), device="cuda"
        )


@pytest.mark.parametrize(
    "change",
    [
        {"repetition": 1.1},
        {"presence": 0.1, "frequency": -0.7},
        {"bias_ids": np.arange(0, 30_000, 7), "bias": np.linspace(-3, 3, 4_286)},
        {"allowed_ids": np.arange(0, V, 151)},
        {"min_tokens": 3_000, "end_ids": np.array([0, V - 1])},
        {"ngram_size": 2},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_parameter_alone_equals_its_processor(change: dict[str, Any]) -> None:
    params = [RowParams(vocab_size=V, **change)] * 4
    assert_edited_alike(logits_of(3), wide_paths(3), params, device="cuda")


def test_calls_in_a_row_give_the_same_each_time() -> None:
    """A barrier that is missed would show in some of many calls."""
    raw, paths = logits_of(4), wide_paths(4)
    params = [everything(V, c) for c in range(4)]
    expected, edits = assert_edited_alike(raw, paths, params, device="cuda")
    raw = raw.cuda()
    got = torch.empty_like(raw)
    for _ in range(300):
        got.copy_(raw)
        processors.edit_rows(got, edits)
        assert torch.equal(got.nan_to_num(1.5), expected.nan_to_num(1.5))


@pytest.mark.parametrize("has_other", [False, True])
def test_a_row_without_a_token_is_found_and_stood_in_for(has_other: bool) -> None:
    paths = wide_paths(5)
    raw = logits_of(5)
    raw[CHOSEN[2], 1] = -torch.inf
    raw[CHOSEN[3], 1, : V - 1] = -torch.inf
    raw[CHOSEN[1], 2:] = -torch.inf
    other = logits_of(6).bfloat16()
    guards = [Guard(c, np.arange(NUM_PROBES)) for c in range(4)]
    params = [RowParams(vocab_size=V)] * 4
    edits = processors.pack_edits(paths, params, device="cuda", guards=guards)
    got = raw.cuda()
    stand_in = other.cuda() if has_other else None
    first = processors.guard_rows(got, edits, stand_in=stand_in)
    assert first.tolist() == [K + 1, K + 1, 1, K + 1]
    expected = raw.clone()
    expected[CHOSEN[2], 1:] = other[CHOSEN[2], 1:].float() if has_other else 0.0
    assert torch.equal(got.cpu().nan_to_num(1.5), expected.nan_to_num(1.5))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_round_does_not_wait_for_the_device() -> None:
    """Packed, sent, applied and looked at; the first round allocates pinned memory."""
    paths, logits = wide_paths(7), logits_of(7).cuda()
    params = [everything(V, c) for c in range(4)]
    guards = [Guard(c, np.arange(NUM_PROBES)) for c in range(4)]
    options: dict[str, Any] = {"device": "cuda", "bitmasks": masks_of(7), "guards": guards}
    for mode in ("default", "error"):
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode(mode)
        try:
            edits = processors.pack_edits(paths, params, **options)
            processors.edit_rows(logits, edits)
            first = processors.guard_rows(logits, edits).to("cpu", non_blocking=True)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert first.tolist() == [K + 1] * 4


def test_a_graph_applies_the_words_that_are_there_at_replay() -> None:
    """Two rounds of as many words; the second's are copied over the first's."""
    paths, raw = wide_paths(8), logits_of(8)
    rounds = [
        [everything(V, c, presence=p, bias=np.full(40, p)) for c in range(4)] for p in (0.5, -1.0)
    ]
    packed = [processors.pack_edits(paths, params, device="cuda") for params in rounds]
    assert len(packed[0].words) == len(packed[1].words)
    logits = raw.cuda()
    # compiled before the capture
    processors.edit_rows(logits, packed[0])
    edits = packed[0]._replace(words=packed[0].words.clone())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        processors.edit_rows(logits, edits)
    for params, own in zip(rounds, packed, strict=True):
        logits.copy_(raw)
        edits.words.copy_(own.words)
        graph.replay()
        expected = raw.clone()
        apply_in_order(expected, paths, params)
        assert torch.equal(logits.cpu().nan_to_num(1.5), expected.nan_to_num(1.5))
