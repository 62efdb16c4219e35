"""Modules for multi-token prediction are read, written, and refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fairdraft import LLM, SamplingParams
from fairdraft.engine.config import infer_method
from fairdraft.models import CausalLM, load_model
from fairdraft.speculators.heads import MtpConfig, load_head, load_mtp, save_head
from tests.engine.toys import ids, tiny_llama
from tests.speculators.small_heads import save_small, small_shape, with_head
from tests.speculators.test_heads import cut, retensor

# of a target of 2 layers, after README_WEIGHTS.md of deepseek-ai/DeepSeek-V3 (0b39205) and the
# names that vllm/model_executor/models/deepseek_mtp.py of vllm-project/vllm reads (03356f8)
MODULE_NAMES = {
    "enorm.weight",
    "hnorm.weight",
    "eh_proj.weight",
    "shared_head.norm.weight",
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
    *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
}
PROMPTS, PARAMS = [[1, 2, 3]] * 3, [SamplingParams(seed=i, max_tokens=12) for i in range(3)]


@pytest.fixture(scope="module")
def target() -> CausalLM:
    return load_model(tiny_llama(0))


def beside_the_target(folder: Path, target: CausalLM) -> Path:
    """One module among the target's own tensors, with copies of the matrices that it shares."""
    save_small(target.model, folder / "head", num_modules=1, intermediate_size=64)
    module = load_file(folder / "head" / "model.safetensors")
    whole = {name: tensor.contiguous() for name, tensor in target.model.state_dict().items()}
    copies = {
        "model.layers.2.embed_tokens.weight": whole["model.embed_tokens.weight"].clone(),
        "model.layers.2.shared_head.head.weight": whole["lm_head.weight"].clone(),
    }
    save_file(whole | module | copies, folder / "model.safetensors")
    config = target.model.config.to_dict() | {"num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize(("num_modules", "drawn"), [(1, None), (3, [0, 1, 5, 8, 21, 96])])
def test_a_head_is_written_as_layers_behind_the_targets(
    num_modules: int, drawn: list[int] | None, target: CausalLM, tmp_path: Path
) -> None:
    folder = save_small(target.model, tmp_path / "a", num_modules=num_modules, ids=drawn)
    assert infer_method(folder) == "mtp"
    expected = {f"model.layers.{2 + i}.{name}" for i in range(num_modules) for name in MODULE_NAMES}
    expected |= set() if drawn is None else {"d2t", "t2d"}
    assert load_file(folder / "model.safetensors").keys() == expected
    head = load_mtp(folder, target)
    assert head.config.num_modules == num_modules and head.config.feature_layers == (2,)
    assert head.target_ids.tolist() == (drawn or list(range(97)))
    text = ids(with_head(target, folder).generate(PROMPTS, PARAMS))
    save_head(head, tmp_path / "b", dtype=torch.float32)
    assert load_mtp(tmp_path / "b", target).config == head.config
    assert ids(with_head(target, tmp_path / "b").generate(PROMPTS, PARAMS)) == text


def test_modules_are_read_out_of_the_targets_own_folder(target: CausalLM, tmp_path: Path) -> None:
    folder = beside_the_target(tmp_path, target)
    assert infer_method(folder) == "draft_model"
    config = {"method": "mtp", "model": folder, "num_speculative_tokens": 3}
    found = ids(LLM(target, speculative_config=config).generate(PROMPTS, PARAMS))
    assert found == ids(with_head(target, folder / "head").generate(PROMPTS, PARAMS))
    retensor("model.layers.2.shared_head.head.weight", lambda t: t + 1)(folder)
    with pytest.raises(ValueError, match="layers.0.shared_head.head.weight differs from the lm_"):
        load_mtp(folder, target)


def poison(folder: Path) -> None:
    retensor("model.layers.2.eh_proj.weight", lambda t: t / 0)(folder)


def restate(**changes: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(config | changes), encoding="utf-8")

    return apply


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut, "truncated or damaged"),
        (poison, "eh_proj.weight' holds NaN or infinity"),
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: (f / "model.safetensors").unlink(), "has no weights"),
        (restate(num_nextn_predict_layers=0), "num_nextn_predict_layers = 0"),
        (restate(num_nextn_predict_layers=None), "no modules for multi-token prediction"),
        (restate(num_nextn_predict_layers=3), "lacks 13 tensors, 'layers.2.eh_proj.weight' first"),
        (restate(num_nextn_predict_layers=1), "holds 13 tensors that a head for multi-token"),
        (restate(num_hidden_layers=3), "target of 3 layers.*has 2"),
        (restate(num_hidden_layers="2"), "num_hidden_layers = '2'"),
        (restate(model_type="deepseek_v3"), "layer of type 'deepseek_v3'"),
        (restate(attention_bias=True), "sets attention_bias"),
        (restate(vocab_size=98), "made for 98 ids"),
        (restate(hidden_size=64), "states of 64 numbers"),
        (restate(intermediate_size=41), "its configuration calls for"),
        (restate(speculators_model_type="mtp"), "layout of vllm-project/speculators"),
        (retensor("model.layers.3.hnorm.weight", None), "lacks 1 tensors, 'layers.1.hnorm.weight"),
        (retensor("model.layers.2.extra", torch.clone), "'layers.0.extra' first"),
    ],
)
def test_modules_that_cannot_work_are_refused_with_the_reason(
    spoil: Callable[[Path], None], message: str, target: CausalLM, tmp_path: Path
) -> None:
    folder = save_small(target.model, tmp_path, num_modules=2)
    spoil(folder)
    with pytest.raises(ValueError, match=message):
        load_mtp(folder, target)


def test_heads_of_the_other_method_are_refused_by_name(target: CausalLM, tmp_path: Path) -> None:
    modules = save_small(target.model, tmp_path / "mtp", num_modules=1)
    eagle3 = save_small(target.model, tmp_path / "eagle3")
    with pytest.raises(ValueError, match="they go to method 'mtp'"):
        load_head(modules, target)
    with pytest.raises(ValueError, match="is not read for method 'mtp'"):
        load_mtp(eagle3, target)
    with pytest.raises(ValueError, match="'mtp' needs 'model', the folder of a head"):
        LLM(target, speculative_config={"method": "mtp"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_modules": 0}, "has 0 modules"),
        ({"feature_layers": (1, 2)}, "reads the last one alone"),
        ({"target_hidden_size": 48}, "needs one width"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope_type 'dynamic'"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(
    changes: dict[str, Any], message: str, target: CausalLM
) -> None:
    shape: dict[str, Any] = {"feature_layers": (2,)}
    with pytest.raises(ValueError, match=message):
        MtpConfig(**(small_shape(target.model) | shape | changes))
