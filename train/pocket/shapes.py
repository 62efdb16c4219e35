"""Shapes of the pocket models: plain Llama, tied embeddings, a context of 1024 tokens."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM

CONTEXT = 1024


@dataclass(frozen=True)
class Shape:
    """Width and depth of one model; the vocabulary comes from the tokenizer."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int

    def as_dict(self) -> dict[str, int]:
        """The shape as plain numbers, for result files."""
        return asdict(self)


TARGETS = {
    "first": Shape(hidden=128, layers=3, heads=4, kv_heads=2, intermediate=256),
    "h224x8": Shape(hidden=224, layers=8, heads=7, kv_heads=1, intermediate=672),
    "h256x8": Shape(hidden=256, layers=8, heads=4, kv_heads=2, intermediate=512),
    "h256x6": Shape(hidden=256, layers=6, heads=4, kv_heads=2, intermediate=768),
    "h320x5": Shape(hidden=320, layers=5, heads=5, kv_heads=1, intermediate=704),
    "h384x4": Shape(hidden=384, layers=4, heads=6, kv_heads=2, intermediate=608),
    "toy": Shape(hidden=64, layers=2, heads=2, kv_heads=1, intermediate=128),
}
DRAFTS = {
    "first": Shape(hidden=64, layers=1, heads=2, kv_heads=1, intermediate=128),
    "h160x1": Shape(hidden=160, layers=1, heads=5, kv_heads=1, intermediate=480),
    "h192x1": Shape(hidden=192, layers=1, heads=6, kv_heads=2, intermediate=512),
    "h208x1": Shape(hidden=208, layers=1, heads=4, kv_heads=2, intermediate=800),
    "h192x2": Shape(hidden=192, layers=2, heads=6, kv_heads=2, intermediate=512),
    "toy": Shape(hidden=32, layers=1, heads=1, kv_heads=1, intermediate=64),
}


def build(shape: Shape, vocab_size: int, eos_token_id: int, *, seed: int = 0) -> LlamaForCausalLM:
    """Returns a freshly initialised fp32 Llama of this shape.

    Args:
        shape: Width, depth and heads.
        vocab_size: Rows of the tied embedding.
        eos_token_id: Id that ends a document and a generated text.
        seed: Seed of the initial weights.
    """
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.hidden // shape.heads,
        max_position_embeddings=CONTEXT,
        initializer_range=0.02,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=eos_token_id,
        eos_token_id=eos_token_id,
        pad_token_id=eos_token_id,
    )
    return LlamaForCausalLM(config).float()
