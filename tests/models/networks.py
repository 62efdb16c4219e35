"""Small random networks of every shape that the adapter promises to serve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

MAX_POSITIONS = 128
VOCAB_SIZE = 97


def _common(**changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": MAX_POSITIONS,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "initializer_range": 0.3,
    } | changes


def small(config_class: Any, **changes: Any) -> Any:
    """Makes a small configuration of any class that takes the common names."""
    return config_class(**_common(**changes))


def llama() -> Any:
    return transformers.LlamaConfig(**_common())


def qwen3() -> Any:
    return transformers.Qwen3Config(**_common())


def gpt2() -> Any:
    return transformers.GPT2Config(
        vocab_size=VOCAB_SIZE,
        n_embd=32,
        n_layer=3,
        n_head=4,
        n_positions=MAX_POSITIONS,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.3,
    )


def gemma3() -> Any:
    return transformers.Gemma3TextConfig(
        **_common(
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention"] * 2,
            query_pre_attn_scalar=8,
            final_logit_softcapping=30.0,
        )
    )


def mistral() -> Any:
    return transformers.MistralConfig(**_common(sliding_window=8))


def gemma2() -> Any:
    return transformers.Gemma2Config(
        **_common(
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention"] * 2,
            query_pre_attn_scalar=8,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=30.0,
        )
    )


CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": llama,
    "qwen3": qwen3,
    "gpt2": gpt2,
    "gemma3": gemma3,
    "mistral": mistral,
    "gemma2": gemma2,
}


def network(
    shape: str, *, dtype: torch.dtype = torch.float32, attention: str | None = None
) -> PreTrainedModel:
    """Builds one network with weights from a fixed seed, in evaluation mode."""
    config = CONFIGS[shape]()
    if attention is None:
        attention = "eager" if shape == "gemma2" else "sdpa"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation=attention, dtype=dtype
        )
    return model.eval()


def reference_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """Returns [T, V] logits of one text forwarded alone, at once, without a cache."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]
