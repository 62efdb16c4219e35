"""A network changed for speed computes what it computed before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from fairdraft.models import attention as grouped
from fairdraft.models import load_model, packing
from fairdraft.models.direct import DirectLlama
from tests.models.networks import CONFIGS, network, small
from tests.models.test_causal_lm import Batch


@pytest.mark.parametrize("shape", CONFIGS)
def test_the_fast_network_equals_the_plain_one(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_MIN_WEIGHTS", 1)
    network(shape).save_pretrained(tmp_path)
    fast, plain = load_model(tmp_path), load_model(tmp_path, optimize=False)
    batches = [Batch(lm, num_rows=3, seed=5) for lm in (fast, plain)]
    starts = [0, 0, 0]
    lengths = [40, 3, 12]
    for _ in range(6):
        logits = [b.forward(starts, [b.draw(n) for n in lengths]) for b in batches]
        for row, length in enumerate(lengths):
            found, expected = (values[row, :length] for values in logits)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        last = [
            b.forward(starts, [b.texts[i][s:] for i, s in enumerate(starts)], last_only=True)
            for b in batches
        ]
        torch.testing.assert_close(last[0], last[1], rtol=1e-4, atol=1e-4)
        random = batches[0].random
        starts = [len(text) - random.randrange(0, 3) for text in batches[0].texts]
        lengths = [random.randrange(1, 7) for _ in starts]
        batches[1].random.setstate(random.getstate())


def test_a_llama_is_computed_directly(tmp_path: Path) -> None:
    network("llama").save_pretrained(tmp_path)
    lm = load_model(tmp_path)
    assert lm.direct is not None
    assert load_model(network("llama")).direct is None
    assert load_model(tmp_path, optimize=False).direct is None
    assert load_model(tmp_path, dtype="bfloat16").direct is None


@pytest.mark.parametrize("changes", [{"attention_bias": True, "mlp_bias": True}, {"head_dim": 6}])
def test_llamas_with_other_parts(changes: dict[str, Any], tmp_path: Path) -> None:
    model = transformers.LlamaForCausalLM(small(transformers.LlamaConfig, **changes)).eval()
    model.save_pretrained(tmp_path)
    lm = load_model(tmp_path)
    assert lm.direct is not None
    batch = Batch(lm, num_rows=2, seed=1)
    logits = batch.forward([0, 0], [batch.draw(7), batch.draw(4)])
    assert batch.worst_difference(logits, [0, 0]) < 1e-5


@pytest.mark.parametrize("last_only", [False, True])
def test_direct_hidden_states_are_those_of_the_network(last_only: bool, tmp_path: Path) -> None:
    network("llama").save_pretrained(tmp_path)
    results = []
    for optimize in (True, False):
        batch = Batch(load_model(tmp_path, optimize=optimize), num_rows=2, seed=6)
        new = [batch.draw(4), batch.draw(2)]
        results.append(batch.forward([0, 0], new, hidden_states=True, last_only=last_only))
    (found, found_states), (expected, expected_states) = results
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-5)
    assert len(found_states) == len(expected_states)
    for state, wanted in zip(found_states, expected_states, strict=True):
        torch.testing.assert_close(state[0], wanted[0], rtol=1e-5, atol=1e-5)


def test_grouped_attention_is_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network("qwen3").save_pretrained(tmp_path)
    calls = []
    attend = grouped._grouped_attention

    def counted(module: Any, query: torch.Tensor, key: torch.Tensor, *rest: Any, **kwargs: Any):
        calls.append((query.shape[1], key.shape[1]))
        return attend(module, query, key, *rest, **kwargs)

    monkeypatch.setattr(grouped, "_grouped_attention", counted)
    lm = load_model(tmp_path)
    calls.clear()
    lm.forward(torch.tensor([[1, 2, 3]]), torch.tensor([0]), lm.new_cache())
    assert calls == [(4, 2)] * 4
    # without a mask of ours it is the attention of transformers
    ids = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(
        lm.model(input_ids=ids).logits,
        network("qwen3")(input_ids=ids).logits,
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize(("shape", "num_packed"), [("llama", 4 * 4 + 1), ("qwen3", 4 * 7 + 1)])
def test_copies_follow_their_weights(
    shape: str, num_packed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_MIN_WEIGHTS", 1)
    network(shape).save_pretrained(tmp_path)
    packed, plain = load_model(tmp_path), load_model(tmp_path, optimize=False)
    if packed.num_packed_layers == 0:
        pytest.skip("this torch has no oneDNN")
    assert packed.num_packed_layers == num_packed and plain.num_packed_layers == 0
    block = torch.tensor([[3, 4, 5], [6, 7, 8]]), torch.tensor([0, 0])
    for change in (None, "written", "replaced"):
        for lm in (packed, plain):
            change_weights(lm.model, change)
        found = packed.forward(*block, packed.new_cache())
        expected = plain.forward(*block, plain.new_cache())
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def change_weights(model: Any, change: str | None) -> None:
    for layer in (model.lm_head, model.model.layers[1].mlp.up_proj):
        if change == "written":
            layer.weight[9] += 1.0
        elif change == "replaced":
            layer.weight = torch.nn.Parameter(2 * layer.weight)


def test_small_layers_keep_their_own_product(tmp_path: Path) -> None:
    network("llama").save_pretrained(tmp_path)
    assert load_model(tmp_path).num_packed_layers == 0


@pytest.mark.parametrize("last_only", [False, True])
def test_a_few_tokens_of_one_small_row_equal_the_plain_ones(
    last_only: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network("llama").save_pretrained(tmp_path)
    fast, plain = load_model(tmp_path), load_model(tmp_path, optimize=False)
    widths = widths_of_compiled_blocks(monkeypatch)
    caches = [lm.new_cache(num_rows=2, length=16) for lm in (fast, plain)]
    draw = Batch(fast, 1, seed=3).draw
    # from nothing, past a growth of the cache, back, and with a token of padding
    blocks = [(0, 3, 3), (3, 30, 30), (33, 1, 1), (34, 4, 4), (35, 2, 2), (37, 4, 3), (40, 1, 1)]
    for start, width, num_real in blocks:
        block, options = torch.tensor([draw(width)]), {"first_row": 1, "last_only": last_only}
        found, expected = (
            lm.forward(block, np.array([start]), cache, num_tokens=np.array([num_real]), **options)
            for lm, cache in zip((fast, plain), caches, strict=True)
        )
        real = slice(None) if last_only else (0, slice(num_real))
        torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=3e-5)
    assert widths == [width for _, width, _ in blocks if width <= 4]
    for parts in zip(*(cache.read(0, 2, 41) for cache in caches), strict=True):
        torch.testing.assert_close(parts[0][1, :, :41], parts[1][1, :, :41], rtol=1e-4, atol=3e-5)
        assert not parts[0][0].any()


def test_a_broken_weight_shows_in_a_compiled_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network("llama").save_pretrained(tmp_path)
    lm = load_model(tmp_path)
    widths = widths_of_compiled_blocks(monkeypatch)
    block, start = torch.tensor([[3, 4]]), torch.tensor([0])
    before = lm.forward(block, start, lm.new_cache())
    weight: Any = lm.model.model.layers[1].mlp.down_proj.weight
    with torch.no_grad():
        weight[0, 0] = torch.nan
    assert torch.isfinite(before).all()
    assert lm.forward(block, start, lm.new_cache()).isnan().all()
    assert widths == [2, 2]


def test_the_probe_tries_a_compiled_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network("llama").save_pretrained(tmp_path)
    run = DirectLlama._run_row

    def doubled(self: DirectLlama, *given: Any) -> torch.Tensor:
        return 2 * run(self, *given)

    monkeypatch.setattr(DirectLlama, "_run_row", doubled)
    with pytest.raises(ValueError, match="logits differ from those of the same text"):
        load_model(tmp_path)


def test_a_llama_has_no_window_whatever_its_configuration_says(tmp_path: Path) -> None:
    """transformers' Llama does not look at one: a row alone, two rows, and it must agree."""
    model = transformers.LlamaForCausalLM(small(transformers.LlamaConfig, sliding_window=4)).eval()
    model.save_pretrained(tmp_path)
    lm = load_model(tmp_path)
    ids = torch.arange(12)[None] % lm.vocab_size
    with torch.inference_mode():
        expected = lm.model(ids).logits[0, -1]
    for num_rows in (1, 2):
        cache, rows = lm.new_cache(num_rows), ids.expand(num_rows, -1)
        lm.forward(rows[:, :11], np.zeros(num_rows, int), cache)
        found = lm.forward(rows[:, 11:], np.full(num_rows, 11), cache)
        torch.testing.assert_close(found[0, 0], expected, rtol=1e-4, atol=1e-5)


def widths_of_compiled_blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts blocks that run compiled, by the tokens of each."""
    widths: list[int] = []
    run = DirectLlama._run_row

    def counted(self: DirectLlama, token_ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        widths.append(token_ids.shape[1])
        return run(self, token_ids, *rest)

    monkeypatch.setattr(DirectLlama, "_run_row", counted)
    return widths
