"""What load_model settles for a good checkpoint, and what it says about a bad one."""

from __future__ import annotations

import inspect
import json
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from fairdraft import pocket
from fairdraft.models import load_model
from fairdraft.models.devices import check_device
from fairdraft.models.support import max_context
from tests.models.networks import MAX_POSITIONS, VOCAB_SIZE, llama, network, small


def make_tokenizer(num_words: int = 50) -> PreTrainedTokenizerFast:
    vocabulary = {f"w{i}": i for i in range(num_words - 1)} | {"<unk>": num_words - 1}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    network("llama", dtype=torch.bfloat16).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))


def test_a_folder(checkpoint: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lm = load_model(checkpoint)
    assert lm.name == str(checkpoint)
    assert lm.dtype == torch.float32 and lm.device == torch.device("cpu")
    assert lm.max_model_len == MAX_POSITIONS
    assert lm.vocab_size == 50 and lm.padded_vocab_size == VOCAB_SIZE
    assert lm.eos_token_ids == {2}
    assert lm.num_parameters == sum(p.numel() for p in lm.model.parameters())
    assert (lm.num_forwards, lm.num_forwarded_tokens, lm.num_padded_tokens) == (0, 0, 0)
    assert capfd.readouterr() == ("", "")


def test_the_quiet_load_leaves_settings_alone(checkpoint: Path) -> None:
    logging = transformers.utils.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    load_model(checkpoint)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float32", torch.float32),
        ("bfloat16", torch.bfloat16),
        ("float64", torch.float64),
        ("auto", torch.bfloat16),
    ],
)
def test_types(checkpoint: Path, dtype: str, expected: torch.dtype) -> None:
    lm = load_model(checkpoint, dtype=dtype)
    assert lm.dtype == expected
    logits = lm.forward(torch.tensor([[1, 2]]), torch.tensor([0]), lm.new_cache())
    assert logits.dtype == torch.float32


def test_added_tokens_count(copy: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["<a>", "<b>"])
    tokenizer.save_pretrained(copy)
    assert load_model(copy).vocab_size == 52
    assert load_model(copy, make_tokenizer(200)).vocab_size == VOCAB_SIZE


def test_a_checkpoint_without_a_tokenizer(copy: Path) -> None:
    for path in copy.glob("tokenizer*"):
        path.unlink()
    lm = load_model(copy)
    assert lm.tokenizer is None and lm.vocab_size == VOCAB_SIZE


def test_several_end_tokens(copy: Path) -> None:
    (copy / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    assert load_model(copy).eos_token_ids == {2, 7}


def test_a_loaded_model(checkpoint: Path) -> None:
    tokenizer = make_tokenizer()
    lm = load_model(network("llama"), tokenizer)
    assert lm.tokenizer is tokenizer and lm.vocab_size == 50
    assert lm.num_packed_layers == 0
    assert load_model(network("llama"), checkpoint).tokenizer is not None


def test_a_lower_context_limit(checkpoint: Path) -> None:
    lm = load_model(checkpoint, max_model_len=20)
    assert lm.max_model_len == 20
    with pytest.raises(ValueError, match=r"0\.\.19"):
        lm.forward(torch.zeros(1, 21, dtype=torch.int64), torch.tensor([0]), lm.new_cache())
    with pytest.raises(ValueError, match=r"max_model_len = 129 is above the 128 .* at most 128"):
        load_model(checkpoint, max_model_len=129)
    with pytest.raises(ValueError, match="max_model_len = 3; it must be at least 4"):
        load_model(checkpoint, max_model_len=3)
    assert load_model(checkpoint, max_model_len=4).max_model_len == 4


@pytest.mark.parametrize("model", ["no/such/folder", "nobody-model", "a b c", "x/y/z/w"])
def test_an_unknown_name(model: str) -> None:
    with pytest.raises(ValueError, match=rf"unknown draft model '{model}'.*pocket.*pass a folder"):
        load_model(model, role="draft")


def test_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no checkpoint: it has no config\.json; pass a"):
        load_model(tmp_path)
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(ValueError, match="is a file; pass the folder"):
        load_model(file)


def test_nothing_is_ever_downloaded(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(self: socket.socket, address: Any) -> None:
        raise AssertionError(f"a connection to {address} was tried")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    load_model(copy)
    with pytest.raises(ValueError, match="Nothing is downloaded"):
        load_model("gpt2")
    (copy / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="the weights of .* cannot be loaded"):
        load_model(copy)


def test_something_else() -> None:
    with pytest.raises(ValueError, match="target model is a int; pass a folder, a name"):
        load_model(3)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("text", ["{}", "", "[1]", "{", '{"model_type": "nonsense"}'])
def test_a_config_that_says_nothing(copy: Path, text: str) -> None:
    (copy / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"the config\.json of .* cannot be used: "):
        load_model(copy)


@pytest.mark.parametrize("keep", [0, 7, 100, -50])
def test_truncated_weights(copy: Path, keep: int) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="the weights of .* cannot be loaded: "):
        load_model(copy)


def test_absent_weights(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="the weights of .* cannot be loaded: .*model.safetensors"):
        load_model(copy)


def test_a_checkpoint_that_lacks_a_layer(copy: Path) -> None:
    edit_config(copy, num_hidden_layers=5)
    with pytest.raises(ValueError, match=r"lacks 9 weights of LlamaForCausalLM, .*layers\.4"):
        load_model(copy)


def test_weights_of_another_shape(copy: Path) -> None:
    edit_config(copy, intermediate_size=40)
    with pytest.raises(ValueError, match="the weights of .* cannot be loaded: "):
        load_model(copy)


def test_a_tokenizer_that_names_nothing(copy: Path) -> None:
    empty = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel()))
    with pytest.raises(ValueError, match="the tokenizer of .* names no token"):
        load_model(copy, empty)


def test_a_broken_tokenizer(copy: Path, tmp_path: Path) -> None:
    (copy / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="the tokenizer of .* cannot be loaded: "):
        load_model(copy)
    with pytest.raises(ValueError, match="is no folder with a tokenizer in it"):
        load_model(copy, tmp_path)


def test_a_vocabulary_wider_than_the_noise(copy: Path) -> None:
    edit_config(copy, vocab_size=2**24 + 1)
    with pytest.raises(ValueError, match=r"vocabulary of 16777217; at most 2\^24"):
        load_model(copy)


def test_no_context_limit() -> None:
    config = SimpleNamespace(rope_parameters=None)
    with pytest.raises(ValueError, match="'m' states no context limit; pass max_model_len"):
        max_context(config, "m", None)
    assert max_context(config, "m", 64) == 64


def test_settings_that_contradict_a_loaded_model() -> None:
    with pytest.raises(ValueError, match="is in training mode .*; call model.eval"):
        load_model(network("llama").train())
    with pytest.raises(ValueError, match=r'loaded as torch.float32 and dtype = .float64.*"auto"'):
        load_model(network("llama"), dtype="float64")
    with pytest.raises(ValueError, match="is on cpu and device = 'cuda' was asked for"):
        load_model(network("llama"), device="cuda")
    with pytest.raises(ValueError, match="is on cpu and device = 'nonsense' was asked for"):
        load_model(network("llama"), device="nonsense")
    model = network("llama")
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(ValueError, match="attn_implementation = 'flex_attention'.*sdpa"):
        load_model(model)


def test_an_unknown_type(checkpoint: Path) -> None:
    with pytest.raises(ValueError, match="dtype = 'int8'; pass one of float32, bfloat16"):
        load_model(checkpoint, dtype="int8")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a device that is there is used")
def test_a_device_that_is_not_there(checkpoint: Path) -> None:
    for device, reason in (
        ("cuda", "torch .* is built without CUDA|torch finds no CUDA device"),
        ("cuda:1", "torch .* is built without CUDA|torch finds no CUDA device"),
        ("nonsense", "torch knows no such device"),
        ("meta", "models run on a CPU or on CUDA devices"),
    ):
        message = f"device = '{device}' cannot be used: ({reason}); here there is cpu$"
        with pytest.raises(ValueError, match=message):
            load_model(checkpoint, device=device)


@pytest.mark.parametrize(
    ("built", "count", "device", "message"),
    [
        (None, 0, "cuda", "is built without CUDA; here there is cpu$"),
        ("12.9", 0, "cuda", "finds no CUDA device; here there is cpu$"),
        ("12.9", 2, "cuda:2", "there are not as many; here there is cpu and cuda:0 and cuda:1$"),
        ("12.9", 2, "cuda:1", None),
    ],
)
def test_what_there_is_instead_of_a_device(
    built: str | None,
    count: int,
    device: str,
    message: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    if message is None:
        check_device(device)
        return
    with pytest.raises(ValueError, match=message):
        check_device(device)


def test_a_head_is_no_model_and_is_named_among_drafters() -> None:
    with pytest.raises(ValueError, match=r"'pocket-mtp' is a head, no target model.*'mtp'"):
        load_model("pocket-mtp")
    names = ", ".join(["pocket, pocket-draft, smollm2", *pocket.installed_heads()])
    with pytest.raises(ValueError, match=f"not one of {names}. Did you mean 'pocket-draft'"):
        load_model("pocket-daft", role="draft")
    with pytest.raises(
        ValueError, match=r"not one of pocket, pocket-draft, smollm2\. Did you mean"
    ):
        load_model("pockt")


def test_rotary_scaling_that_follows_the_batch() -> None:
    config = llama()
    config.rope_parameters = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 64,
    }
    model = transformers.LlamaForCausalLM(config).eval()
    with pytest.raises(ValueError, match="uses longrope.*pass max_model_len=64 or less"):
        load_model(model)
    assert load_model(model, max_model_len=64).max_model_len == 64


@pytest.fixture
def cached_name(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "hub" / "models--someone--something"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    shutil.copytree(copy, folder / "snapshots" / ("0" * 40))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return "someone/something"


def test_a_name_in_the_local_cache(cached_name: str) -> None:
    lm = load_model(cached_name)
    assert lm.name == cached_name and lm.vocab_size == 50
    with pytest.raises(ValueError, match="unknown target model 'someone/else'"):
        load_model("someone/else")


def jamba() -> Any:
    return small(
        transformers.JambaConfig,
        num_experts=2,
        num_experts_per_tok=1,
        attn_layer_period=2,
        attn_layer_offset=1,
        use_mamba_kernels=False,
    )


def qwen3_next() -> Any:
    return small(
        transformers.Qwen3NextConfig,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    )


RECURRENT = {
    "jamba": (jamba, "jamba.*recurrent state: it has layers of type linear_attention"),
    "qwen3_next": (qwen3_next, "qwen3_next.*it has layers of type linear_attention"),
    "lfm2": (lambda: small(transformers.Lfm2Config), "lfm2.*recurrent state: .*conv"),
    "mamba": (lambda: small(transformers.MambaConfig), "mamba.*recurrent state"),
    "rwkv": (lambda: small(transformers.RwkvConfig), "rwkv.*recurrent state: .*RwkvForCausalLM"),
}


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_state_that_cannot_forget_is_refused(kind: str, tmp_path: Path) -> None:
    make_config, message = RECURRENT[kind]
    config = make_config()
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(ValueError, match=message):
        load_model(model)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path)


class RunningHash(transformers.LlamaForCausalLM):
    """Looks like attention and remembers, in secret, every token that it was sent."""

    total = 0

    def forward(self, input_ids: Any, **arguments: Any) -> Any:  # pyright: ignore
        outputs: Any = super().forward(input_ids=input_ids, **arguments)
        self.total += int(input_ids.sum())
        outputs.logits = outputs.logits + torch.sin(torch.arange(VOCAB_SIZE) * self.total)
        return outputs

    forward.__signature__ = inspect.signature(transformers.LlamaForCausalLM.forward)  # pyright: ignore


def test_the_probe_finds_a_hidden_state() -> None:
    with pytest.raises(ValueError, match="cannot be rolled back by position: after rejected"):
        load_model(RunningHash(llama()).eval())


class Unsteady(transformers.LlamaForCausalLM):
    """Every forward adds another wave of `height` spreads to its logits."""

    height, calls = 0.0, 0

    def forward(self, input_ids: Any, **arguments: Any) -> Any:  # pyright: ignore
        outputs: Any = super().forward(input_ids=input_ids, **arguments)
        self.calls += 1
        wave = torch.sin(torch.arange(VOCAB_SIZE) * self.calls)
        outputs.logits = outputs.logits + self.height * outputs.logits.std() * wave
        return outputs

    forward.__signature__ = inspect.signature(transformers.LlamaForCausalLM.forward)  # pyright: ignore


@pytest.mark.parametrize(("height", "is_refused"), [(0.08, False), (0.2, True)])
def test_the_probe_weighs_all_logits_and_not_the_worst(height: float, is_refused: bool) -> None:
    """Two waves differ by `height` as a root mean square, and by twice that at their worst."""
    model = Unsteady(llama()).bfloat16().eval()
    model.height = height
    if not is_refused:
        load_model(model, dtype="auto")
        return
    with pytest.raises(ValueError, match="cannot be rolled back by position"):
        load_model(model, dtype="auto")


def test_a_forward_that_takes_no_mask_is_refused() -> None:
    config = transformers.BloomConfig(vocab_size=VOCAB_SIZE, hidden_size=32, n_layer=1, n_head=4)
    model = transformers.BloomForCausalLM(config).eval()
    with pytest.raises(ValueError, match="does not work with a cache that is rolled back"):
        load_model(model, max_model_len=64)


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    config = transformers.T5Config(
        vocab_size=VOCAB_SIZE, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=4
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    with pytest.raises(ValueError, match=r"is an encoder-decoder \(t5\); pass a decoder-only"):
        load_model(model)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"is an encoder-decoder \(t5\); pass a decoder-only"):
        load_model(tmp_path)


def test_a_bidirectional_model_is_refused() -> None:
    config = small(
        transformers.Gemma3TextConfig, sliding_window=8, use_bidirectional_attention=True
    )
    model = transformers.Gemma3ForCausalLM(config).eval()
    with pytest.raises(ValueError, match="attends to later tokens; pass a causal LM"):
        load_model(model)


def test_a_model_that_returns_nan_is_loaded() -> None:
    model = network("llama")
    with torch.no_grad():
        model.lm_head.weight[5] = float("nan")
    lm = load_model(model)
    logits = lm.forward(torch.tensor([[1, 2]]), torch.tensor([0]), lm.new_cache())
    assert logits[..., 5].isnan().all() and logits.isnan().sum() == 2
