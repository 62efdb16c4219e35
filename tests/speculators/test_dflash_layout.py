"""Heads of blocks are read in the public layouts, written, and refused with a reason."""

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
from fairdraft.speculators.heads import DsparkHead, load_dflash, load_head, save_head
from tests.engine.toys import ids, tiny_llama
from tests.speculators.small_heads import law_of, save_small, with_head
from tests.speculators.test_heads import cut, retensor

HIDDEN, VOCAB, DRAFT_IDS, RANK = 32, 97, [0, 1, 2, 5, 8, 13, 21, 34, 55, 89], 6
LAYER = {
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB,
    "attention_bias": False,
    "tie_word_embeddings": False,
}
MARKOV = {
    "markov_rank": RANK,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}
# keys as vllm-project/speculators src/speculators/models/dflash/config.py (0a09610) and
# core.py (021e21b) write them; dspark/config.py (8965833) adds the last five
SPECULATORS = {
    "architectures": ["DFlashSpeculator"],
    "speculators_model_type": "dflash",
    "draft_vocab_size": len(DRAFT_IDS),
    "block_size": 5,
    "target_hidden_size": None,
    "aux_hidden_state_layer_ids": [0, 1],
    "mask_token_id": 11,
    "sliding_window_non_causal": False,
    "projector_type": "dflash",
    "sample_from_anchor": False,
    "speculators_config": {
        "algorithm": "dflash",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 4}],
        "verifier": {"name_or_path": "some/target", "architectures": ["LlamaForCausalLM"]},
    },
    "transformer_layer_config": LAYER,
}
SPECULATORS_DSPARK = SPECULATORS | {
    "architectures": ["DSparkSpeculator"],
    "speculators_model_type": "dspark",
    "sample_from_anchor": True,
    **MARKOV,
}
# keys as z-lab/dflash dflash/model.py (1012959) reads them
FLAT = LAYER | {
    "architectures": ["DFlashDraftModel"],
    "block_size": 5,
    "num_target_layers": 2,
    "dflash_config": {"target_layer_ids": [0, 1], "mask_token_id": 11},
}
# keys as deepseek-ai/DeepSpec deepspec/modeling/dspark/qwen3/config.py (041b652) writes them
FLAT_DSPARK = LAYER | {
    "architectures": ["Qwen3DSparkModel"],
    "block_size": 4,
    "num_target_layers": 2,
    "target_layer_ids": [-1, 1],
    "mask_token_id": 11,
    "num_anchors": 512,
    **MARKOV,
}
CONFIGS = {
    "speculators, dflash": SPECULATORS,
    "speculators, dspark": SPECULATORS_DSPARK,
    "flat, dflash": FLAT,
    "flat, dspark": FLAT_DSPARK,
}
PROMPTS, PARAMS = [[1, 2, 3]] * 3, [SamplingParams(seed=i, max_tokens=12) for i in range(3)]


@pytest.fixture(scope="module")
def target() -> CausalLM:
    return load_model(tiny_llama(0))


def public_tensors(name: str) -> dict[str, torch.Tensor]:
    """Random tensors under the public names; heads of a reduced vocabulary own their output."""
    is_flat, is_dspark = name.startswith("flat"), name.endswith("dspark")
    size = VOCAB if is_flat else len(DRAFT_IDS)
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, 2 * HIDDEN),
        "hidden_norm.weight": (HIDDEN,),
        "norm.weight": (HIDDEN,),
    }
    for layer in ("layers.0.", "layers.1."):
        shapes |= {f"{layer}{norm}.weight": (HIDDEN,) for norm in ("input_layernorm",)}
        shapes |= {
            f"{layer}post_attention_layernorm.weight": (HIDDEN,),
            f"{layer}self_attn.q_proj.weight": (32, HIDDEN),
            f"{layer}self_attn.k_proj.weight": (16, HIDDEN),
            f"{layer}self_attn.v_proj.weight": (16, HIDDEN),
            f"{layer}self_attn.o_proj.weight": (HIDDEN, 32),
            f"{layer}self_attn.q_norm.weight": (8,),
            f"{layer}self_attn.k_norm.weight": (8,),
            f"{layer}mlp.gate_proj.weight": (40, HIDDEN),
            f"{layer}mlp.up_proj.weight": (40, HIDDEN),
            f"{layer}mlp.down_proj.weight": (HIDDEN, 40),
        }
    if is_dspark:
        shapes |= {
            "markov_head.markov_w1.weight": (VOCAB, RANK),
            "markov_head.markov_w2.weight": (size, RANK),
            "confidence_head.proj.weight": (1, HIDDEN + RANK),
            "confidence_head.proj.bias": (1,),
        }
    if is_flat and is_dspark:
        shapes |= {"embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
    if not is_flat:
        shapes |= {"lm_head.weight": (size, HIDDEN), "verifier_norm.weight": (HIDDEN,)}
    generator = torch.Generator().manual_seed(1)
    tensors = {
        key: 0.5 * torch.randn(shape, generator=generator).half() for key, shape in shapes.items()
    }
    if not is_flat:
        chosen = torch.tensor(DRAFT_IDS)
        tensors["d2t"] = chosen - torch.arange(size)
        tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, chosen, True)
    return tensors


def write(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
    save_file(public_tensors(name), folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name", CONFIGS)
def test_public_layout_drafts_and_survives_being_saved(
    name: str, target: CausalLM, tmp_path: Path
) -> None:
    folder = write(tmp_path / "head", name)
    assert infer_method(folder) == name[-6:]
    head = load_dflash(folder, target)
    config = head.config
    assert config.num_drafts == (5 if name == "speculators, dspark" else 4)
    assert config.anchor_first == name.endswith("dspark") == isinstance(head, DsparkHead)
    flat_layers = (0, 2) if name == "flat, dspark" else (1, 2)
    assert config.feature_layers == (flat_layers if name.startswith("flat") else (0, 1))
    assert config.mask_token_id == 11 and config.num_layers == 2
    assert config.target_name == (None if name.startswith("flat") else "some/target")
    llm = with_head(target, folder)
    assert f"blocks of {config.num_drafts} drafts" in llm.describe()
    text = ids(llm.generate(PROMPTS, PARAMS))
    save_head(head, tmp_path / "saved", dtype=torch.float32)
    again = load_dflash(tmp_path / "saved", target)
    assert again.config == config
    assert (again.owns_embedding, again.owns_output) == (head.owns_embedding, head.owns_output)
    assert ids(with_head(target, tmp_path / "saved").generate(PROMPTS, PARAMS)) == text


def test_a_flat_layout_numbers_states_by_the_layer_that_they_leave(
    target: CausalLM, tmp_path: Path
) -> None:
    """The same head in both layouts, one with its states numbered one less."""
    laws = []
    for name, config in (("flat", FLAT), ("own", {**SPECULATORS, "draft_vocab_size": VOCAB})):
        config = dict(config)
        if name == "own":
            config |= {"aux_hidden_state_layer_ids": [1, 2]}
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
        save_file(public_tensors("flat, dflash"), tmp_path / name / "model.safetensors")
        head = load_dflash(tmp_path / name, target)
        laws.append(law_of(target.model, head, [1, 2, 3, 4], [5]))
    assert torch.equal(*laws)


def test_a_head_of_the_older_layout_drafts_nothing_at_its_anchor(
    target: CausalLM, tmp_path: Path
) -> None:
    folder = write(tmp_path / "head", "speculators, dspark")
    edit("sample_from_anchor", None)(folder)
    config = load_dflash(folder, target).config
    assert not config.anchor_first and config.num_drafts == 4


def edit(key: str, value: Any, *, inside: bool = False) -> Callable[[Path], None]:
    """Sets a key of config.json; None removes it."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        part = config["transformer_layer_config"] if inside else config
        part[key] = value
        if value is None:
            del part[key]
        path.write_text(json.dumps(config), encoding="utf-8")

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (cut, "truncated or damaged"),
        (retensor("fc.weight", None), "lacks fc.weight"),
        (
            retensor("layers.1.self_attn.q_norm.weight", None),
            "lacks 1 tensors",
        ),
        (
            retensor("layers.2.mlp.up_proj.weight", lambda old: torch.ones(2)),
            "a DSpark head has not",
        ),
        (retensor("markov_head.markov_w2.weight", lambda old: old[:3]), "has shape (3, 6)"),
        (retensor("norm.weight", lambda old: old * torch.nan), "holds NaN or infinity"),
        (retensor("d2t", None), "has no d2t to say which"),
        (edit("block_size", None), "has block_size = None"),
        (edit("block_size", 0), "num_trained_steps = 0"),
        (edit("mask_token_id", None), "has no mask_token_id"),
        (edit("mask_token_id", VOCAB), "mask_token_id = 97; the target has the ids 0 to 96"),
        (edit("aux_hidden_state_layer_ids", None), "does not say which states"),
        (edit("aux_hidden_state_layer_ids", [0, 1, 2]), "fc.weight reads 64 numbers, but 3 states"),
        (edit("aux_hidden_state_layer_ids", [0, 3]), "a target of at least 3 layers"),
        (edit("markov_rank", 0), "a head without it is one of method 'dflash'"),
        (edit("markov_head_type", "rnn"), "sets markov_head_type = 'rnn'"),
        (edit("projector_type", "domino"), "sets projector_type = 'domino'"),
        (edit("final_logit_softcapping", 30.0), "sets final_logit_softcapping = 30.0"),
        (edit("model_type", "llama", inside=True), "only 'qwen3' is supported"),
        (edit("attention_bias", True, inside=True), "sets attention_bias = True"),
        (
            edit("layer_types", ["full_attention", "sliding_attention"], inside=True),
            "has layers of 'sliding_attention'",
        ),
        (edit("vocab_size", 200, inside=True), "is made for 200 ids"),
        (edit("hidden_size", 64, inside=True), "reads states of 64 numbers"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    change: Callable[[Path], None], message: str, target: CausalLM, tmp_path: Path
) -> None:
    folder = write(tmp_path / "head", "speculators, dspark")
    change(folder)
    with pytest.raises(ValueError) as refused:
        load_dflash(folder, target)
    assert message in str(refused.value)


def test_heads_of_other_methods_are_told_apart(target: CausalLM, tmp_path: Path) -> None:
    folder = save_small(target.model, tmp_path / "dflash", num_drafts=3)
    with pytest.raises(ValueError, match="a speculator of type 'dflash', not 'eagle3'"):
        load_head(folder, target)
    eagle = save_small(target.model, tmp_path / "eagle3")
    with pytest.raises(
        ValueError, match="is no head of method dflash or dflash2 or dspark, but 'eagle3'"
    ):
        load_dflash(eagle, target)
    config = {"method": "dspark", "model": folder, "num_speculative_tokens": 3}
    with pytest.raises(ValueError, match="holds a DFlash head, and method 'dspark' was asked for"):
        LLM(target, speculative_config=config)
    config = {"model": folder, "dspark_draft_topk": 3}
    with pytest.raises(ValueError, match="dspark_draft_topk=3 belongs to method 'dspark'"):
        LLM(target, speculative_config=config)
    config = {"method": "dspark", "model": folder, "dspark_draft_topk": 0}
    with pytest.raises(ValueError, match="dspark_draft_topk=0: must be at least 1"):
        LLM(target, speculative_config=config)
    with pytest.raises(ValueError, match="drafts blocks of 3 tokens; ask for at most 3"):
        with_head(target, folder, 4)


def test_a_mask_without_a_token_is_saved_beside_the_weights(
    target: CausalLM, tmp_path: Path
) -> None:
    folder = save_small(target.model, tmp_path, num_drafts=3)
    saved = load_file(folder / "model.safetensors")
    head = load_dflash(folder, target)
    assert head.mask_embedding is not None
    assert torch.equal(head.mask_embedding, saved["mask_embedding"])
