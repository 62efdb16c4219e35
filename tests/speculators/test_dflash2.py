"""DFlash2: convolutions, candidates, whose noise a candidate reads, and its public layouts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fairdraft import LLM, SamplingParams, noise, ops
from fairdraft.audit.dense import dense_logits
from fairdraft.engine.config import infer_method
from fairdraft.models import CausalLM, load_model
from fairdraft.noise import Stream
from fairdraft.ops import SparseLogits
from fairdraft.speculators import DraftState, Drawn, Proposal, SharedSampler
from fairdraft.speculators.heads import (
    BlockConvolution,
    Dflash2Config,
    Dflash2Head,
    best_ids,
    load_dflash,
    save_head,
)
from tests.engine.toys import ids, tiny_llama
from tests.speculators.small_heads import save_small, small_shape, with_head
from tests.speculators.test_heads import cut, retensor
from tests.speculators.test_mtp_layout import PARAMS, PROMPTS, restate

HIDDEN, VOCAB, BLOCK, TAPS, GROUP, RANK = 32, 97, 5, 2, 8, 6
# keys as tests/fixtures/dflash2-config.json of z-lab/dflash has them (0a7587c), which slides over
# 2048 tokens and caps its logits; this one does neither
FLAT_CONFIG = {
    "architectures": ["DFlash2DraftModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "is_causal": False,
    "dflash_config": {
        "block_size": BLOCK,
        "conv_group_size": GROUP,
        "conv_kernel_size": TAPS,
        "mask_token_id": 11,
        "selector_rank": RANK,
        "selector_top_k": 4,
        "target_layer_ids": [0, 1],
    },
    "dtype": "bfloat16",
    "eos_token_id": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": 40,
    "layer_types": ["full_attention"],
    "max_position_embeddings": 128,
    "max_window_layers": 5,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "num_target_layers": 2,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_cache": False,
    "use_sliding_window": False,
    "vocab_size": VOCAB,
}
_INNER = ("head_dim", "hidden_act", "hidden_size", "intermediate_size", "layer_types")
_INNER += ("max_position_embeddings", "model_type", "num_attention_heads", "num_hidden_layers")
_INNER += ("num_key_value_heads", "rms_norm_eps", "rope_parameters", "vocab_size")
# keys as src/speculators/models/dflash2/config.py of vllm-project/speculators (961aeaa) adds them
SPECULATORS_CONFIG = {
    "architectures": ["DFlash2DraftModel"],
    "speculators_model_type": "dflash2",
    "draft_vocab_size": VOCAB,
    "block_size": BLOCK,
    "aux_hidden_state_layer_ids": [1, 2],
    "mask_token_id": 11,
    "sample_from_anchor": False,
    "sliding_window_non_causal": True,
    "conv_kernel_size": TAPS,
    "conv_group_size": GROUP,
    "selector_rank": RANK,
    "selector_top_k": 4,
    "speculators_config": {
        "algorithm": "dflash2",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": BLOCK - 1}],
        "verifier": {"name_or_path": "some/target", "architectures": ["LlamaForCausalLM"]},
    },
    "transformer_layer_config": {key: FLAT_CONFIG[key] for key in _INNER},
}


@pytest.fixture(scope="module")
def target() -> CausalLM:
    return load_model(tiny_llama(0))


def write_public(folder: Path, config: dict[str, Any]) -> Path:
    """Random tensors under the public names, which both layouts share.

    src/speculators/models/dflash2/model_definitions.py of vllm-project/speculators (1f7db3a).
    """
    generator = torch.Generator().manual_seed(1)
    convolution = {
        "base_kernel": (2, TAPS, HIDDEN),
        "kernel_projection.weight": (2 * TAPS * HIDDEN // GROUP, HIDDEN),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, 2 * HIDDEN),
        "hidden_norm.weight": (HIDDEN,),
        "norm.weight": (HIDDEN,),
        "candidate_selector.predecessor_codebook": (VOCAB, RANK),
        "candidate_selector.successor_codebook": (VOCAB, RANK),
        "candidate_selector.hidden_projection.weight": (RANK, HIDDEN),
        "layers.0.input_layernorm.weight": (HIDDEN,),
        "layers.0.post_attention_layernorm.weight": (HIDDEN,),
        **{f"layers.0.self_attn.{name}_norm.weight": (8,) for name in "qk"},
        **{f"layers.0.self_attn.{name}_proj.weight": (16, HIDDEN) for name in "kv"},
        **{f"layers.0.self_attn.{name}_proj.weight": (32, HIDDEN) for name in "qo"},
        **{f"layers.0.mlp.{name}_proj.weight": (40, HIDDEN) for name in ("gate", "up")},
        "layers.0.mlp.down_proj.weight": (HIDDEN, 40),
        **{f"layers.0.attention_conv.{name}": shape for name, shape in convolution.items()},
        **{f"layers.0.mlp_conv.{name}": shape for name, shape in convolution.items()},
    }
    tensors = {
        name: 0.3 * torch.randn(shape, generator=generator).bfloat16()
        for name, shape in shapes.items()
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("config", [FLAT_CONFIG, SPECULATORS_CONFIG], ids=["flat", "speculators"])
def test_public_layouts_draft_and_survive_a_checkpoint(
    config: dict[str, Any], target: CausalLM, tmp_path: Path
) -> None:
    folder = write_public(tmp_path / "a", config)
    assert infer_method(folder) == "dflash2"
    head = load_dflash(folder, target)
    assert isinstance(head, Dflash2Head)
    assert head.config.feature_layers == (1, 2) and head.config.num_drafts == BLOCK - 1
    llm = with_head(target, folder)
    assert "dflash2, 3 tokens a round" in llm.describe() and "4 candidates" in llm.describe()
    text = ids(llm.generate(PROMPTS, PARAMS))
    save_head(head, tmp_path / "b", dtype=torch.float32)
    saved = load_file(tmp_path / "b" / "model.safetensors")
    assert saved.keys() == load_file(folder / "model.safetensors").keys()
    again = load_dflash(tmp_path / "b", target)
    assert isinstance(again, Dflash2Head)
    assert again.config.selector_top_k == 4
    assert ids(with_head(target, tmp_path / "b").generate(PROMPTS, PARAMS)) == text


def restate_block(**changes: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        block = FLAT_CONFIG["dflash_config"] | changes
        kept = {key: value for key, value in block.items() if value is not None}
        restate(dflash_config=kept)(folder)

    return apply


def poison(folder: Path) -> None:
    retensor("candidate_selector.successor_codebook", lambda t: t / 0)(folder)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut, "truncated or damaged"),
        (poison, "successor_codebook' holds NaN or infinity"),
        (restate_block(selector_rank=None), "has no selector_rank, which method"),
        (restate_block(selector_top_k=0), "selector_top_k = 0; it must be from 1 to 97"),
        (restate_block(selector_top_k=98), "selector_top_k = 98; it must be from 1 to 97"),
        (restate_block(conv_kernel_size=6), "conv_kernel_size = 6; it must be from 1 to 5"),
        (restate_block(conv_group_size=5), "conv_group_size = 5, which does not divide"),
        (restate_block(output_multiplier=0.2), "output_multiplier = 0.2.*not supported"),
        (restate_block(final_logit_softcapping=20.0), "final_logit_softcapping = 20.0"),
        (restate(layer_types=["sliding_attention"]), "layers of 'sliding_attention'"),
        (restate(vocab_size=98), "made for 98 ids"),
        (restate(num_target_layers=3), "target of 3 layers.*has 2"),
        (retensor("layers.0.mlp_conv.base_kernel", None), "lacks 1 tensors, 'layers.0.mlp_conv"),
        (retensor("layers.0.mlp_conv.bias", torch.clone), "'layers.0.mlp_conv.bias' first"),
        (restate_block(selector_rank=4), "its configuration calls for"),
    ],
)
def test_a_head_that_cannot_work_is_refused_with_the_reason(
    spoil: Callable[[Path], None], message: str, target: CausalLM, tmp_path: Path
) -> None:
    folder = write_public(tmp_path, FLAT_CONFIG)
    spoil(folder)
    with pytest.raises(ValueError, match=message):
        load_dflash(folder, target)


def test_heads_of_the_other_method_are_refused(target: CausalLM, tmp_path: Path) -> None:
    """A selector that nobody asks is a head with another law."""
    first = save_small(target.model, tmp_path / "1", num_drafts=3)
    second = save_small(target.model, tmp_path / "2", num_drafts=3, selector_top_k=3)
    for folder, method in ((first, "dflash2"), (second, "dflash"), (second, "dspark")):
        config = {"method": method, "model": folder, "num_speculative_tokens": 2}
        with pytest.raises(ValueError, match=f"and method '{method}' was asked for"):
            LLM(target, speculative_config=config)


def small_convolution(**changes: Any) -> BlockConvolution:
    shape = small_shape(tiny_llama(0))
    shape |= {"num_trained_steps": 3, "conv_group_size": GROUP, "selector_rank": 4}
    return BlockConvolution(Dflash2Config(**(shape | changes)))


def test_convolutions_are_the_sum_over_taps_inside_a_block() -> None:
    torch.manual_seed(0)
    convolution = small_convolution(conv_kernel_size=3)
    hidden = torch.randn(2, 8, HIDDEN)
    read, kernels = convolution.before(hidden)
    assert torch.equal(read, hidden) and torch.equal(convolution.behind(read, kernels), hidden)
    with torch.no_grad():
        for parameter in convolution.parameters():
            parameter.normal_()
    read, kernels = convolution.before(hidden)
    found = read, convolution.behind(hidden, kernels)
    made = convolution.kernel_projection(hidden).view(2, 8, 2, 3, HIDDEN // GROUP)
    for side in range(2):
        expected = torch.zeros_like(hidden)
        for query in range(8):
            for tap in range(min(query % 4, 2) + 1):
                kernel = convolution.base_kernel[side, tap]
                kernel = kernel + made[:, query, side, tap].repeat_interleave(GROUP, -1)
                expected[:, query] += kernel * hidden[:, query - tap]
        torch.testing.assert_close(found[side], expected)


def test_equal_logits_are_ranked_by_id() -> None:
    inf, nan = torch.inf, torch.nan
    rows = {
        (0.5, 2.0, 2.0, -1.0, 2.0): [1, 2, 4],
        (-0.0, 0.0, -inf, -2.0, -1.0): [0, 1, 4],
        (-inf, -inf, -inf, -inf, -inf): [0, 1, 2],
        (1.0, -nan, inf, 3.0, nan): [1, 4, 2],
    }
    logits = torch.tensor(list(rows))
    # as a product of 0 and infinity: its sign bit is set
    logits[3, 1] = torch.tensor(-1, dtype=torch.int32).view(torch.float32)
    assert best_ids(logits, 3).tolist() == list(rows.values())


def counted(llm: LLM) -> tuple[int, int]:
    """Drafts for a few requests, and those that are not what their address draws from q."""
    speculator: Any = llm.speculator
    propose, counts = speculator.propose, [0, 0]

    def noted(state: DraftState) -> Proposal:
        proposal = propose(state)
        counts[0] += int(proposal.num_draft_tokens.sum())
        counts[1] += mismatches(state, proposal)
        return proposal

    speculator.propose = noted
    params = [SamplingParams(seed=seed, max_tokens=12, temperature=0.7) for seed in range(8)]
    llm.generate([[1, 2, 3]] * len(params), params)
    return counts[0], counts[1]


def mismatches(state: DraftState, proposal: Proposal) -> int:
    """Drafts that are not what their address draws from q, spread over the vocabulary."""
    assert isinstance(proposal.draft_logits, SparseLogits)
    assert isinstance(state.sampler, SharedSampler)
    laws = dense_logits(proposal.draft_logits, VOCAB)
    assert laws is not None
    count = 0
    for step in range(1, proposal.token_ids.shape[1] + 1):
        rows = np.flatnonzero(proposal.num_draft_tokens.numpy() >= step)
        at = noise.address(
            Stream.DRAFT,
            key=state.sampler.key[rows],
            position=state.num_decided[rows] + step - 1,
            anchor=state.num_decided[rows],
            node=step,
            sample=state.sampler.sample[rows],
        )
        drawn = ops.sample(laws[rows, step - 1], at, temperature=0.7).token_ids
        count += int((drawn != proposal.token_ids[rows, step - 1]).sum())
    return count


def test_a_candidate_reads_the_noise_of_its_token(
    target: CausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the noise of its rank among the candidates, which has the same law."""
    folder = save_small(target.model, tmp_path, num_drafts=4, selector_top_k=5)
    num_drafts, num_others = counted(with_head(target, folder, 4))
    assert num_drafts > 100 and num_others == 0
    draw = SharedSampler.draw

    def by_rank(
        self: SharedSampler, logits: torch.Tensor, step: int, rows: np.ndarray, **options: Any
    ) -> Drawn:
        candidates = logits.topk(5).indices
        drawn = draw(self, logits.gather(1, candidates), step, rows, **options)
        token_ids = candidates.gather(1, drawn.token_ids[:, None])[:, 0]
        return Drawn(token_ids, drawn.error, logits)

    monkeypatch.setattr(SharedSampler, "draw", by_rank)
    num_drafts, num_others = counted(with_head(target, folder, 4))
    assert num_others > num_drafts / 4
