"""A network changed for speed computes what it computed before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fairdraft.models import attention as grouped
from fairdraft.models import load_model, packing
from tests.models.networks import CONFIGS, network
from tests.models.test_causal_lm import Batch


@pytest.mark.parametrize("shape", CONFIGS)
def test_the_fast_network_equals_the_plain_one(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_MIN_WEIGHTS", 1)
    monkeypatch.setattr(packing, "_MIN_WEIGHTS_ONE_ROW", 500)
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


def test_grouped_attention_is_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network("llama").save_pretrained(tmp_path)
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
        network("llama")(input_ids=ids).logits,
        rtol=1e-5,
        atol=1e-5,
    )


def test_packed_layers_follow_their_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_MIN_WEIGHTS", 1)
    monkeypatch.setattr(packing, "_MIN_WEIGHTS_ONE_ROW", 500)
    checkpoint = tmp_path
    network("llama").save_pretrained(checkpoint)
    packed, plain = load_model(checkpoint), load_model(checkpoint, optimize=False)
    if packed.num_packed_layers == 0:
        pytest.skip("this torch has no oneDNN")
    assert packed.num_packed_layers == 4 * 7 + 1 and plain.num_packed_layers == 0
    block = torch.tensor([[3, 4, 5], [6, 7, 8]]), torch.tensor([0, 0])
    for change in (None, "written", "replaced"):
        if change is not None:
            with torch.no_grad():
                for lm in (packed, plain):
                    head: Any = lm.model.get_output_embeddings()
                    head.weight[9] += 1.0
                    if change == "replaced":
                        head.weight = torch.nn.Parameter(2 * head.weight)
        found = packed.forward(*block, packed.new_cache())
        expected = plain.forward(*block, plain.new_cache())
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_small_layers_keep_their_own_product(tmp_path: Path) -> None:
    network("llama").save_pretrained(tmp_path)
    assert load_model(tmp_path).num_packed_layers == 0
