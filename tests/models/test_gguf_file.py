"""A GGUF file becomes the network that it stands for, or is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from fairdraft.models import CausalLM, load_model
from fairdraft.models.gguf_file import convert_gguf
from tests.models.tiny_gguf import tiny_gguf, vocabulary

IDS = {token: i for i, token in enumerate(vocabulary())}
LINE, SPACE = "\u010a", "\u0120"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf")


@pytest.fixture(scope="module")
def network(folder: Path) -> LlamaForCausalLM:
    return tiny_gguf(folder / "tiny.gguf")


@pytest.fixture(scope="module")
def steps() -> list[tuple[int, int]]:
    return []


@pytest.fixture(scope="module")
def converted(network: LlamaForCausalLM, folder: Path, steps: list[tuple[int, int]]) -> CausalLM:
    (folder / "out").mkdir()
    convert_gguf(folder / "tiny.gguf", folder / "out", lambda *step: steps.append(step))
    return load_model(folder / "out")


def test_weights_and_logits_are_those_of_the_blocks(
    network: LlamaForCausalLM, converted: CausalLM
) -> None:
    found = dict(converted.model.named_parameters())
    for name, weight in network.named_parameters():
        assert torch.equal(found[name], weight), name
    ids = torch.arange(40)[None] * 5 % len(IDS)
    with torch.no_grad():
        expected = network(ids).logits
        torch.testing.assert_close(converted.model(ids).logits, expected, rtol=1e-5, atol=1e-5)


def test_config_is_read_as_its_author_wrote_it(converted: CausalLM) -> None:
    config: Any = converted.model.config
    assert config.rms_norm_eps == 1e-5 and config.rope_parameters["rope_theta"] == 100000.0
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (4, 2, 16)
    assert converted.max_model_len == 256 and converted.vocab_size == len(IDS)
    assert config.tie_word_embeddings and config.dtype == torch.float32


def test_turns_and_documents_end_a_text(converted: CausalLM) -> None:
    assert converted.eos_token_ids == {IDS["<|im_end|>"], IDS["<|endoftext|>"]}
    assert converted.tokenizer.eos_token == "<|im_end|>"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        # a run of spaces before a digit is one piece, since digits are split off first
        ("\n\n12", [LINE + LINE, "1", "2"]),
        ("hi 12", ["hi", SPACE, "1", "2"]),
        ("\n\n hi", [LINE + LINE, SPACE + "hi"]),
        ("<|im_end|>hi<|im_end|>", ["<|im_end|>", "hi", "<|im_end|>"]),
        ("\u00e9", ["\u00c3", "\u00a9"]),
    ],
)
def test_text_is_cut_as_the_model_was_trained(
    converted: CausalLM, text: str, pieces: list[str]
) -> None:
    ids = converted.tokenizer(text)["input_ids"]
    assert ids == [IDS[piece] for piece in pieces]
    assert converted.tokenizer.decode(ids) == text


def test_chat_template_comes_along(converted: CausalLM) -> None:
    conversation = [{"role": "user", "content": "hi"}]
    text = converted.tokenizer.apply_chat_template(
        conversation, tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_progress_grows_from_nothing_to_the_size_of_the_file(
    converted: CausalLM, folder: Path, steps: list[tuple[int, int]]
) -> None:
    size = (folder / "tiny.gguf").stat().st_size
    assert steps[0] == (0, size) and steps[-1] == (size, size)
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": {"general.architecture": "gemma"}}, "the architecture 'gemma'"),
        ({"fields": {"tokenizer.ggml.pre": "llama-bpe"}}, "vocabulary of kind"),
        ({"fields": {"tokenizer.ggml.model": "llama"}}, "vocabulary of kind"),
        ({"fields": {"llama.block_count": None}}, "lacks 'llama.block_count'"),
        ({"fields": {"llama.block_count": 3}}, "lacks the tensor 'blk.2"),
        ({"fields": {"llama.rope.scaling.type": "yarn"}}, "sets 'llama.rope.scaling.type'"),
        ({"fields": {"llama.feed_forward_length": 64}}, r"has the shape \[96, 64\]"),
        ({"left_out": "blk.1.ffn_up.weight"}, "lacks the tensor 'blk.1.ffn_up.weight'"),
        ({"added": "blk.0.attn_q.bias"}, "holds 'blk.0.attn_q.bias' too"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    tiny_gguf(tmp_path / "other.gguf", **options)
    with pytest.raises(ValueError, match=message):
        convert_gguf(tmp_path / "other.gguf", tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.99])
def test_broken_files_are_refused(
    network: LlamaForCausalLM, folder: Path, tmp_path: Path, share: float
) -> None:
    data = (folder / "tiny.gguf").read_bytes()
    (tmp_path / "broken.gguf").write_bytes(data[: int(share * len(data))])
    with pytest.raises(ValueError, match=r"broken\.gguf' is no GGUF file, or a broken one"):
        convert_gguf(tmp_path / "broken.gguf", tmp_path)
    (tmp_path / "broken.gguf").write_bytes(b"<html>" + data)
    with pytest.raises(ValueError, match="no GGUF file"):
        convert_gguf(tmp_path / "broken.gguf", tmp_path)


def test_the_same_file_gives_the_same_bytes(
    converted: CausalLM, folder: Path, tmp_path: Path
) -> None:
    convert_gguf(folder / "tiny.gguf", tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {path.name for path in (folder / "out").iterdir()}
    for name in names:
        assert (tmp_path / name).read_bytes() == (folder / "out" / name).read_bytes(), name
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
