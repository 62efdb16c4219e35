"""From a GGUF file of a small Llama to a folder in Hugging Face format.

The package `gguf` reads the file, undoes its quantization and names its tensors; this module
turns what it gives into the config, the weights and the tokenizer that transformers load.
transformers reads GGUF files too, and from this family wrongly: it drops the split of digits
that `tokenizer.ggml.pre = smollm` asks for, so that line ends before a numbered list become
other tokens than the model was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

if TYPE_CHECKING:
    from gguf import GGUFReader

__all__ = ["Progress", "convert_gguf"]

#: bytes of the file that are converted, and its size
Progress = Callable[[int, int], None]

# a token of this type is one string of the text, whatever stands around it
_CONTROL = 3
_DTYPE = torch.bfloat16


def convert_gguf(file: Path, folder: Path, progress: Progress | None = None) -> None:
    """Writes config.json, model.safetensors and a tokenizer with its chat template.

    Weights are rounded to bfloat16 from the float32 values that the quantized blocks stand for.
    The same file gives the same bytes under the same versions of the libraries.

    Args:
        file: A GGUF file: a Llama without scaled rotations, with a byte-level BPE vocabulary
            that splits digits ("smollm").
        folder: An existing folder.
        progress: Called at the start, after the header and after each tensor.

    Raises:
        ValueError: If the file is broken or holds something else.
        ModuleNotFoundError: If the package `gguf` is not installed.
        OSError: If the folder cannot be written.
    """
    from gguf import GGUFReader

    size = file.stat().st_size
    if progress is not None:
        progress(0, size)
    try:
        reader = GGUFReader(file)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise ValueError(f"{str(file)!r} is no GGUF file, or a broken one: {error}") from error
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tokenizer = _tokenizer(fields, str(file))
    config = _config(fields, reader, str(file))
    config.save_pretrained(folder)
    ends = {"eos_token_id": _end_tokens(fields)}
    GenerationConfig(bos_token_id=config.bos_token_id, **ends).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    weights = {}
    done = size - sum(int(tensor.n_bytes) for tensor in reader.tensors)
    for key, tensor, num_bytes in _weights(reader, config, str(file)):
        weights[key] = tensor
        done += num_bytes
        if progress is not None:
            progress(done, size)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _config(fields: dict[str, Any], reader: GGUFReader, name: str) -> LlamaConfig:
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        raise ValueError(f"{name!r} holds the architecture {architecture!r}; only 'llama' is read.")
    unread = [key for key in fields if key.startswith(("llama.rope.scaling", "llama.expert"))]
    if unread:
        raise ValueError(f"{name!r} sets {unread[0]!r}, which this reader does not know.")
    num_heads = _field(fields, "llama.attention.head_count", name)
    width = _field(fields, "llama.embedding_length", name)
    theta = fields.get("llama.rope.freq_base", 10000.0)
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype=_DTYPE,
        vocab_size=len(_field(fields, "tokenizer.ggml.tokens", name)),
        hidden_size=width,
        intermediate_size=_field(fields, "llama.feed_forward_length", name),
        num_hidden_layers=_field(fields, "llama.block_count", name),
        num_attention_heads=num_heads,
        num_key_value_heads=fields.get("llama.attention.head_count_kv", num_heads),
        head_dim=fields.get("llama.rope.dimension_count", width // num_heads),
        max_position_embeddings=_field(fields, "llama.context_length", name),
        rms_norm_eps=_decimal(_field(fields, "llama.attention.layer_norm_rms_epsilon", name)),
        rope_parameters={"rope_type": "default", "rope_theta": _decimal(theta)},
        tie_word_embeddings=all(tensor.name != "output.weight" for tensor in reader.tensors),
        bos_token_id=fields.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=_field(fields, "tokenizer.ggml.eos_token_id", name),
        pad_token_id=fields.get("tokenizer.ggml.padding_token_id"),
    )


def _field(fields: dict[str, Any], key: str, name: str) -> Any:
    if key not in fields:
        raise ValueError(f"{name!r} lacks {key!r}; it is incomplete.")
    return fields[key]


def _decimal(value: float) -> float:
    """The shortest decimal number that is this float32: what the checkpoint's author wrote."""
    return float(str(torch.tensor(value, dtype=torch.float32).numpy()))


def _weights(
    reader: GGUFReader, config: LlamaConfig, name: str
) -> Iterator[tuple[str, torch.Tensor, int]]:
    """Names and weights as transformers has them, and the bytes that each took in the file."""
    from gguf import dequantize

    stored = {tensor.name: tensor for tensor in reader.tensors}
    wanted = _wanted(config)
    missing = sorted(set(wanted) - set(stored))
    foreign = sorted(set(stored) - set(wanted))
    if missing or foreign:
        what = f"lacks the tensor {missing[0]!r}" if missing else f"holds {foreign[0]!r} too"
        raise ValueError(f"{name!r} {what}; it is no plain Llama.")
    for key, (target, shape) in wanted.items():
        tensor = stored[key]
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if tuple(values.shape) != shape:
            raise ValueError(
                f"tensor {key!r} of {name!r} has the shape {list(values.shape)}; its config asks "
                f"for {list(shape)}."
            )
        heads = _rotated_heads(target, config)
        if heads:
            values = _halves_apart(values, heads)
        yield target, values.to(_DTYPE).contiguous(), int(tensor.n_bytes)


def _wanted(config: LlamaConfig) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Names in the file to names and shapes in transformers."""
    from gguf import MODEL_ARCH, get_tensor_name_map

    names = get_tensor_name_map(MODEL_ARCH.LLAMA, int(config.num_hidden_layers or 0))
    with torch.device("meta"):
        state = LlamaForCausalLM(config).state_dict()
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    found = {names.get_name(key, try_suffixes=(".weight",)): key for key in state}
    return {key or "": (own, tuple(state[own].shape)) for key, own in found.items()}


def _rotated_heads(name: str, config: LlamaConfig) -> int | None:
    if name.endswith("q_proj.weight"):
        return config.num_attention_heads
    return config.num_key_value_heads if name.endswith("k_proj.weight") else None


def _halves_apart(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a head from (pairs that turn together) to (first halves, second halves)."""
    pairs = rows.view(heads, -1, 2, rows.shape[1])
    return pairs.transpose(1, 2).reshape(rows.shape)


def _tokenizer(fields: dict[str, Any], name: str) -> PreTrainedTokenizerFast:
    kind = tuple(fields.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    if kind != ("gpt2", "smollm"):
        raise ValueError(
            f"{name!r} has a vocabulary of kind {kind}; only ('gpt2', 'smollm') is read."
        )
    tokens = _field(fields, "tokenizer.ggml.tokens", name)
    merges = [tuple(merge.split(" ")) for merge in _field(fields, "tokenizer.ggml.merges", name)]
    core = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))  # pyright: ignore[reportArgumentType]
    core.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    core.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    types = _field(fields, "tokenizer.ggml.token_type", name)
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    core.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {role: fields.get(f"tokenizer.ggml.{key}_token_id") for role, key in roles.items()}
    named = {f"{role}_token": tokens[i] for role, i in ids.items() if i is not None}
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        **named,
        model_max_length=_field(fields, "llama.context_length", name),
        clean_up_tokenization_spaces=False,
        chat_template=fields.get("tokenizer.chat_template"),
    )


def _end_tokens(fields: dict[str, Any]) -> list[int]:
    """The end of a turn, and the end of a document where the vocabulary has one."""
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    ends = [fields["tokenizer.ggml.eos_token_id"]]
    ends += [i for i, t in enumerate(tokens) if t == "<|endoftext|>" and types[i] == _CONTROL]
    return list(dict.fromkeys(ends))
