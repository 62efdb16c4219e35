"""Heads over the target's keys are written, read, and refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from fairdraft import LLM
from fairdraft.engine.config import infer_method
from fairdraft.models import CausalLM, load_model
from fairdraft.speculators.heads import (
    SharedKvConfig,
    load_head,
    load_mtp,
    load_shared_kv,
    save_head,
)
from tests.engine.toys import ids, tiny_llama
from tests.speculators.small_heads import rotations_of, save_small, small_shape, with_head
from tests.speculators.test_heads import cut, retensor
from tests.speculators.test_mtp_layout import PARAMS, PROMPTS, restate

LAYER_NAMES = {
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    *(f"self_attn.{name}_proj.weight" for name in "qo"),
    *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
}


@pytest.fixture(scope="module")
def target() -> CausalLM:
    return load_model(tiny_llama(0))


@pytest.mark.parametrize(("layers", "drawn"), [((1,), None), ((1, 0), [0, 1, 5, 8, 21, 96])])
def test_a_head_survives_its_checkpoint(
    layers: tuple[int, ...], drawn: list[int] | None, target: CausalLM, tmp_path: Path
) -> None:
    folder = save_small(target.model, tmp_path / "a", memory_layers=layers, ids=drawn)
    assert infer_method(folder) == "shared_kv_mtp"
    expected = {f"layers.{i}.{name}" for i in range(len(layers)) for name in LAYER_NAMES}
    expected |= {f"{name}.weight" for name in ("embedding_norm", "hidden_norm", "norm")}
    expected |= {"pre_projection.weight", "post_projection.weight"}
    expected |= set() if drawn is None else {"d2t", "t2d"}
    assert load_file(folder / "model.safetensors").keys() == expected
    head = load_shared_kv(folder, target)
    assert head.config.memory_layers == layers and head.config.feature_layers == (2,)
    assert head.target_ids.tolist() == (drawn or list(range(97)))
    llm = with_head(target, folder)
    assert f"keys of layer {' and '.join(map(str, layers))}, " in llm.describe()
    text = ids(llm.generate(PROMPTS, PARAMS))
    save_head(head, tmp_path / "b", dtype=torch.float32)
    assert load_shared_kv(tmp_path / "b", target).config == head.config
    assert ids(with_head(target, tmp_path / "b").generate(PROMPTS, PARAMS)) == text
    # rows of its own, here the target's
    rows: Any = target.model.get_input_embeddings()
    retensor("embed_tokens.weight", lambda _: rows.weight.detach().clone())(tmp_path / "b")
    assert load_shared_kv(tmp_path / "b", target).owns_embedding
    assert ids(with_head(target, tmp_path / "b").generate(PROMPTS, PARAMS)) == text


def restate_own(**changes: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        own = json.loads((folder / "config.json").read_text(encoding="utf-8"))["fairdraft"]
        restate(fairdraft=own | changes)(folder)

    return apply


TURNED = {"rope_type": "default", "rope_theta": 500.0}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut, "truncated or damaged"),
        (retensor("norm.weight", lambda t: t / 0), "'norm.weight' holds NaN or infinity"),
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: (f / "model.safetensors").unlink(), "has no weights"),
        (restate(fairdraft={}), "is no head that shares its target's keys"),
        (restate(model_type="gemma4_assistant"), "is an assistant of Gemma 4"),
        (restate(model_type="qwen3"), "layer of type 'qwen3'"),
        (restate(attention_bias=True), "sets attention_bias"),
        (restate(vocab_size=98), "made for 98 ids"),
        (restate(hidden_size=64), "states of 64 numbers"),
        (restate(intermediate_size=41), "its configuration calls for"),
        (restate(num_hidden_layers=2), "has 2 layers and attends to the target's \\[1\\]"),
        (restate(num_key_value_heads=4), "4 key/value heads of 8; layer 1.*has 2 of 8"),
        (restate(rope_parameters=TURNED), "turns its queries by.*another target"),
        (restate_own(memory_layers=[2]), "layer 2 of its target.*keep every token are \\[0, 1\\]"),
        (restate_own(memory_layers="1"), "memory_layers = '1'"),
        (restate_own(target_layers=3), "target of 3 layers.*has 2"),
        (restate_own(target_layers=None), "target_layers = None"),
        (restate_own(draft_vocab_size=9), "has no d2t"),
        (retensor("pre_projection.weight", None), "lacks 1 tensors, 'pre_projection.weight'"),
        (retensor("layers.0.self_attn.k_proj.weight", torch.clone), "k_proj.weight' first"),
    ],
)
def test_a_head_that_cannot_work_is_refused_with_the_reason(
    spoil: Callable[[Path], None], message: str, target: CausalLM, tmp_path: Path
) -> None:
    folder = save_small(target.model, tmp_path, memory_layers=(1,))
    spoil(folder)
    with pytest.raises(ValueError, match=message):
        load_shared_kv(folder, target)


def test_other_heads_and_targets_are_refused(target: CausalLM, tmp_path: Path) -> None:
    shared = save_small(target.model, tmp_path / "shared", memory_layers=(1,))
    with pytest.raises(ValueError, match="is no EAGLE-3 head"):
        load_head(shared, target)
    with pytest.raises(ValueError, match="no modules for multi-token prediction"):
        load_mtp(shared, target)
    for num_modules in (1, None):
        other = save_small(target.model, tmp_path / str(num_modules), num_modules=num_modules)
        with pytest.raises(ValueError, match="is no head that shares its target's keys"):
            load_shared_kv(other, target)
    with pytest.raises(ValueError, match="'shared_kv_mtp' needs 'model', the folder of a head"):
        LLM(target, speculative_config={"method": "shared_kv_mtp"})
    config: dict[str, Any] = target.model.config.to_dict() | {"head_dim": 16}
    wider = LlamaForCausalLM(LlamaConfig(**config)).eval()
    with pytest.raises(ValueError, match="heads of 8; layer 1 of .* has 2 of 16"):
        with_head(wider, shared)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory_layers": ()}, "attends to the layers \\[\\]"),
        ({"memory_layers": (-1,)}, "attends to the layers \\[-1\\]"),
        ({"feature_layers": (1, 2)}, "takes the target's last one alone"),
        ({"target_hidden_size": 48}, "needs one width"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(
    changes: dict[str, Any], message: str, target: CausalLM
) -> None:
    shape = small_shape(target.model) | rotations_of(target.model)
    shape |= {"feature_layers": (2,), "memory_layers": (1,)}
    with pytest.raises(ValueError, match=message):
        SharedKvConfig(**(shape | changes))
