"""Heads in the public layouts are read, written, converted, and refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from fairdraft import LLM, SamplingParams
from fairdraft.cli.app import app
from fairdraft.engine.config import infer_method
from fairdraft.models import CausalLM, load_model
from fairdraft.speculators.heads import default_feature_layers, load_head, save_head
from tests.engine.toys import ids, tiny_llama
from tests.speculators.small_heads import save_small, small_config, with_head

HIDDEN, VOCAB, DRAFT_IDS = 32, 97, [0, 1, 2, 5, 8, 13, 21, 34, 55, 89]
SHAPE = {
    "hidden_size": HIDDEN,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "tie_word_embeddings": False,
}
# keys as sgl-project/SpecForge configs/llama3-70B-ealge3.json has them (82b62f6); SafeAILab/EAGLE
# eagle/model/cnets.py (148042c) reads the same
EAGLE_CONFIG = {
    **SHAPE,
    "architectures": ["LlamaForCausalLMEagle3"],
    "bos_token_id": 1,
    "eos_token_id": [1, 2],
    "model_type": "llama",
    "pad_token_id": 0,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 64,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "torch_dtype": "float16",
    "transformers_version": "4.28.1",
    "use_cache": True,
    "draft_vocab_size": len(DRAFT_IDS),
}
# keys as vllm-project/speculators src/speculators/models/eagle3/config.py (11ecdd3),
# src/speculators/config.py (03a7c14) and convert/eagle/eagle3_converter.py (00823a7) write them
SPECULATORS_CONFIG = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "speculators_version": "0.3.0",
    "draft_vocab_size": len(DRAFT_IDS),
    "norm_before_residual": True,
    "target_hidden_size": None,
    "eagle_aux_hidden_state_layer_ids": [2, 0, 1],
    "embed_requires_grad": False,
    "speculators_config": {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
        "verifier": {"name_or_path": "some/target", "architectures": ["LlamaForCausalLM"]},
    },
    "transformer_layer_config": {**SHAPE, "model_type": "llama", "rope_theta": 10000.0},
}


def public_tensors(layer: str, **own: int) -> dict[str, torch.Tensor]:
    """Random tensors under the public names; `layer` is "midlayer" or "layers.0"."""
    generator = torch.Generator().manual_seed(1)
    shapes = {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (len(DRAFT_IDS), HIDDEN),
        f"{layer}.hidden_norm.weight": (HIDDEN,),
        f"{layer}.input_layernorm.weight": (HIDDEN,),
        f"{layer}.post_attention_layernorm.weight": (HIDDEN,),
        f"{layer}.self_attn.q_proj.weight": (32, 2 * HIDDEN),
        f"{layer}.self_attn.k_proj.weight": (16, 2 * HIDDEN),
        f"{layer}.self_attn.v_proj.weight": (16, 2 * HIDDEN),
        f"{layer}.self_attn.o_proj.weight": (HIDDEN, 32),
        f"{layer}.mlp.gate_proj.weight": (40, HIDDEN),
        f"{layer}.mlp.up_proj.weight": (40, HIDDEN),
        f"{layer}.mlp.down_proj.weight": (HIDDEN, 40),
    }
    shapes |= {name: (rows, HIDDEN) for name, rows in own.items()}
    tensors = {
        name: 0.3 * torch.randn(shape, generator=generator).half() for name, shape in shapes.items()
    }
    chosen = torch.tensor(DRAFT_IDS)
    tensors["d2t"] = chosen - torch.arange(len(DRAFT_IDS))
    tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, chosen, True)
    return tensors


def write(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return folder


def write_public(folder: Path, layout: str) -> Path:
    if layout == "speculators":
        own = {"embed_tokens.weight": VOCAB, "verifier_lm_head.weight": VOCAB}
        return write(folder, SPECULATORS_CONFIG, public_tensors("layers.0", **own))
    return write(folder, EAGLE_CONFIG, public_tensors("midlayer"))


@pytest.fixture(scope="module")
def target() -> CausalLM:
    return load_model(tiny_llama(0))


def test_usual_states_are_those_that_engines_assume() -> None:
    """(2, L // 2, L - 3) before the layer, vllm-project/vllm get_eagle3_aux_hidden_state_layers."""
    assert default_feature_layers(32) == (2, 16, 29)
    assert default_feature_layers(6) == (2, 3, 3)
    assert default_feature_layers(4) == (1, 2, 4)
    assert default_feature_layers(1) == (1, 1, 1)


@pytest.mark.parametrize("layout", ["speculators", "eagle"])
def test_public_layout_drafts_and_survives_a_conversion(
    layout: str, target: CausalLM, tmp_path: Path
) -> None:
    folder = write_public(tmp_path / "head", layout)
    assert infer_method(folder) == "eagle3"
    head = load_head(folder, target)
    config = head.config
    assert head.target_ids.tolist() == DRAFT_IDS
    if layout == "speculators":
        assert config.feature_layers == (2, 0, 1) and config.norm_before_residual
        assert head.owns_embedding and config.target_name == "some/target"
    else:
        assert config.feature_layers == (1, 1, 2) and not head.owns_embedding
        assert config.rope_parameters["rope_type"] == "llama3"
        assert config.rope_parameters["rope_theta"] == 500000.0
    params = [SamplingParams(seed=i, max_tokens=12) for i in range(3)]
    expected = ids(with_head(target, folder).generate([[1, 2, 3]] * 3, params))

    other = {"speculators": "eagle", "eagle": "speculators"}[layout]
    result = CliRunner().invoke(
        app,
        ["convert", str(folder), str(tmp_path / "b"), "--layout", other, "--target-layers", "2"],
    )
    assert result.exit_code == 0, result.output
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    assert any(
        name.startswith({"eagle": "midlayer.", "speculators": "layers.0."}[other])
        for name in tensors
    )
    assert {tensor.dtype for name, tensor in tensors.items() if "weight" in name} == {torch.float16}
    assert ids(with_head(target, tmp_path / "b").generate([[1, 2, 3]] * 3, params)) == expected
    # and as it is saved from memory
    save_head(head, tmp_path / "c", dtype=torch.float32)
    assert ids(with_head(target, tmp_path / "c").generate([[1, 2, 3]] * 3, params)) == expected


def test_pickled_and_sharded_weights_are_read(target: CausalLM, tmp_path: Path) -> None:
    tensors = public_tensors("midlayer")
    folder = write(tmp_path / "a", EAGLE_CONFIG, tensors)
    expected = load_head(folder, target).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    found = load_head(folder, target).state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    (folder / "pytorch_model.bin").unlink()
    names = sorted(tensors)
    parts = {"one.safetensors": names[:5], "two.safetensors": names[5:]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    found = load_head(folder, target).state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def poison(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["fc.weight"][3, 4] = torch.nan
    save_file(tensors, folder / "model.safetensors")


def change(**changes: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config |= {key: value for key, value in changes.items() if key in config}
        inner = config["transformer_layer_config"]
        inner |= {key: value for key, value in changes.items() if key not in config}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")

    return apply


def retensor(name: str, value: Callable[[torch.Tensor], torch.Tensor] | None) -> Callable:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        old = tensors.pop(name, torch.zeros(1))
        if value is not None:
            tensors[name] = value(old).contiguous()
        save_file(tensors, folder / "model.safetensors")

    return apply


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut, "truncated or damaged"),
        (poison, "'fc.weight' holds NaN or infinity"),
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "is no JSON"),
        (lambda f: (f / "model.safetensors").unlink(), "has no weights"),
        (change(speculators_model_type="mtp"), "of type 'mtp', not 'eagle3'"),
        (change(num_hidden_layers=2), "has 2 layers"),
        (change(model_type="qwen3"), "layer of type 'qwen3'"),
        (change(attention_bias=True), "sets attention_bias"),
        (change(vocab_size=98), "made for 98 ids"),
        (change(eagle_aux_hidden_state_layer_ids=[1, 2, 3]), "at least 3 layers"),
        (change(eagle_aux_hidden_state_layer_ids=[1, 2]), "fc.weight reads 96 numbers"),
        (change(target_hidden_size=48), "reads states of 48 numbers"),
        (change(intermediate_size=41), "its configuration calls for"),
        (retensor("norm.weight", None), "lacks 1 tensors, 'norm.weight'"),
        (retensor("layers.1.norm.weight", torch.clone), "'layers.1.norm.weight' first"),
        (retensor("fc.weight", None), "lacks fc.weight"),
        (retensor("d2t", None), "has no d2t"),
        (retensor("d2t", lambda t: t + 10), "leads to id 99"),
        (retensor("d2t", lambda t: t - torch.arange(10)), "two draft ids to one target id"),
        (retensor("d2t", lambda t: t[:5]), "d2t has shape"),
        (retensor("t2d", lambda t: ~t), "name different target ids"),
    ],
)
def test_a_head_that_cannot_work_is_refused_with_the_reason(
    spoil: Callable[[Path], None], message: str, target: CausalLM, tmp_path: Path
) -> None:
    folder = write_public(tmp_path / "head", "speculators")
    spoil(folder)
    with pytest.raises(ValueError, match=message):
        load_head(folder, target)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_size": 64, "num_attention_heads": 8}, "states of 32 numbers.*have 64"),
        ({"layers": 3}, "target of 2 layers.*has 3"),
        ({"vocab_size": 50}, "made for 97 ids.*has 50"),
    ],
)
def test_a_head_of_another_target_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = save_small(tiny_llama(0), tmp_path)
    from transformers import LlamaConfig, LlamaForCausalLM

    base = tiny_llama(0).config.to_dict()
    renamed = {"num_hidden_layers" if k == "layers" else k: v for k, v in options.items()}
    other = LlamaForCausalLM(LlamaConfig(**(base | renamed | {"head_dim": 8}))).eval()
    with pytest.raises(ValueError, match=message):
        with_head(other, folder)


def test_unusable_configurations_are_refused_by_name(target: CausalLM, tmp_path: Path) -> None:
    for config, message in (
        ({"method": "eagle3"}, "needs 'model', the folder of a head"),
        ({"method": "eagle3", "model": target}, "takes the folder of a head"),
        ({"method": "eagle3", "model": str(tmp_path / "no")}, "no such folder"),
        ({"method": "eagle3", "model": "x", "tokenizer": "y"}, "speaks its target's ids"),
        ({"method": "eagle3", "model": "x", "prompt_lookup_max": 3}, "belongs to method 'ngram'"),
    ):
        with pytest.raises(ValueError, match=message):
            LLM(target, speculative_config=config)
    with pytest.raises(ValueError, match="rope_type 'dynamic'"):
        small_config(target.model, rope_parameters={"rope_type": "dynamic"})


def test_more_drafts_than_the_head_was_trained_for_is_said(
    target: CausalLM, tmp_path: Path
) -> None:
    folder = save_small(target.model, tmp_path, num_trained_steps=3)
    assert "trained for 3 drafts a round" in with_head(target, folder, 4).describe()
    assert "trained for" not in with_head(target, folder, 3).describe()
