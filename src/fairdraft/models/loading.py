"""Loading a causal LM from a folder, a name or memory, or refusing it with a reason."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as hf_logging

from fairdraft import pocket
from fairdraft.models import smollm2
from fairdraft.models.attention import use_grouped_attention
from fairdraft.models.causal_lm import CausalLM
from fairdraft.models.devices import check_device
from fairdraft.models.direct import DirectLlama
from fairdraft.models.packing import can_pack, pack_linear_layers
from fairdraft.models.probe import check_rollback
from fairdraft.models.support import (
    attention_kinds,
    check_config,
    max_context,
    recurrent_message,
)

__all__ = ["load_model", "named_folder"]

_POCKET_NAMES = {"pocket": "target", "pocket-draft": "draft"}
_NAMES = (*_POCKET_NAMES, smollm2.NAME)
_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
    "tekken.json",
)


def load_model(
    model: str | Path | PreTrainedModel,
    tokenizer: Any = None,
    *,
    dtype: str | None = None,
    device: str | torch.device = "cpu",
    role: str = "target",
    max_model_len: int | None = None,
    optimize: bool = True,
) -> CausalLM:
    """Loads a causal LM that can be rolled back, or says why it cannot be used.

    Nothing is ever downloaded. The model is tried with a few tokens before it is returned:
    ragged rows, a rollback, and a comparison with a forward from scratch.

    Args:
        model: A folder in Hugging Face format, "pocket", "pocket-draft" or "smollm2", a name in
            the local Hugging Face cache, or a loaded model in evaluation mode.
        tokenizer: A tokenizer, or the folder of one; None takes the model folder's, if any.
        dtype: "float32", "bfloat16", "float16", "float64", or "auto" for the checkpoint's own.
            None means "float32" for a folder and "auto" for a loaded model.
        device: Where to compute.
        role: "target" or "draft", for messages.
        max_model_len: A context limit below the model's own.
        optimize: Whether a network that is read from a folder for a CPU may be computed in other
            ways than its own (for a Llama its whole forward, else attention and products), with
            a second copy of float32 weights. A loaded model is never changed.

    Returns:
        The adapter.

    Raises:
        ValueError: If the model is unknown, broken, or cannot be rolled back.
    """
    if dtype is not None and dtype != "auto" and dtype not in _DTYPES:
        raise ValueError(f"dtype = {dtype!r}; pass one of {', '.join((*_DTYPES, 'auto'))}.")
    if isinstance(model, PreTrainedModel):
        name = getattr(model, "name_or_path", "") or type(model).__name__
        _check_loaded(model, name, dtype, device)
        network, folder = model, None
        config = model.config
    elif isinstance(model, str | Path):
        check_device(device)
        name = str(model)
        folder = _resolve(model, role)
        config = _load_config(folder, name)
        network = None
    else:
        raise ValueError(
            f"{role} model is a {type(model).__name__}; pass a folder, a name or a PreTrainedModel."
        )
    check_config(config, name)
    config = config.get_text_config(decoder=True)
    kinds = attention_kinds(config, name)
    limit = max_context(config, name, max_model_len)
    tokenizer = _load_tokenizer(tokenizer, folder, name)
    if network is None:
        assert folder is not None
        network = _load_network(folder, name, config, dtype or "float32", device)
    _check_network(network, name)
    lm = _adapt(network, tokenizer, name, kinds, limit)
    if folder is not None and optimize:
        _optimize(lm)
    check_rollback(lm)
    return lm


def _optimize(lm: CausalLM) -> None:
    if lm.device.type != "cpu":
        return
    if can_pack(lm.model) and DirectLlama.supports(lm.model):
        lm.direct = DirectLlama(lm.model, lm.max_model_len)
        assert lm.places.is_full, "a Llama's row runs without a mask, and sees all before it"
        lm.num_packed_layers = lm.direct.num_packed
        lm.places.num_bare_tokens = lm.direct.num_compiled
        return
    with _quiet():
        use_grouped_attention(lm.model)
    if can_pack(lm.model):
        lm.num_packed_layers = pack_linear_layers(lm.model)


def _adapt(
    network: PreTrainedModel, tokenizer: Any, name: str, kinds: dict[str, Any], limit: int
) -> CausalLM:
    head = network.get_output_embeddings()
    width = int(network.config.get_text_config(decoder=True).vocab_size)
    weight = getattr(head, "weight", None)
    if weight is not None:
        width = int(weight.shape[0])
    vocab_size = width
    if tokenizer is not None:
        ids = tokenizer.get_vocab().values()
        if not ids:
            raise ValueError(f"the tokenizer of {name!r} names no token; pass another.")
        vocab_size = min(width, max(ids) + 1)
    return CausalLM(
        network,
        tokenizer,
        name=name,
        kinds=kinds,
        max_model_len=limit,
        vocab_size=vocab_size,
        padded_vocab_size=width,
        eos_token_ids=_eos_token_ids(network, tokenizer),
    )


def _eos_token_ids(network: PreTrainedModel, tokenizer: Any) -> frozenset[int]:
    for source in (network.generation_config, network.config, tokenizer):
        value = getattr(source, "eos_token_id", None)
        if value is not None:
            return frozenset(value if isinstance(value, list | tuple) else [value])
    return frozenset()


def named_folder(name: str) -> Path | None:
    """The folder of an embedded or packaged model; None for any other name.

    Raises:
        ValueError: If its files are not part of this installation.
    """
    if name == smollm2.NAME:
        return smollm2.path()
    if name not in _POCKET_NAMES:
        return None
    folder = pocket.path(_POCKET_NAMES[name])
    if not (folder / "config.json").is_file():
        raise ValueError(f"{name!r} is not part of this installation; pass a folder instead.")
    return folder


def _resolve(model: str | Path, role: str) -> str:
    text = str(model)
    named = named_folder(text)
    if named is not None:
        return str(named)
    if text in pocket.HEAD_NAMES:
        raise ValueError(
            f"{text!r} is a head, no {role} model: it drafts for 'pocket', with method "
            f"{pocket.HEAD_NAMES[text]!r}."
        )
    path = Path(text).expanduser()
    if path.is_file():
        raise ValueError(f"{text!r} is a file; pass the folder that holds config.json.")
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(
                f"{text!r} is no checkpoint: it has no config.json; pass a folder in Hugging Face "
                "format (config.json, model.safetensors)."
            )
        return str(path)
    if isinstance(model, Path) or not _is_cached(text):
        heads = pocket.installed_heads() if role == "draft" else []
        names = [*_NAMES, *heads]
        close = difflib.get_close_matches(text, names, n=1)
        meant = f"Did you mean {close[0]!r}? " if close else ""
        raise ValueError(
            f"unknown {role} model {text!r}: no such folder, not in the local Hugging Face cache, "
            f"and not one of {', '.join(names)}. {meant}Nothing is downloaded; pass a folder."
        )
    return text


def _is_cached(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:
        return False


def _load_config(folder: str, name: str) -> Any:
    try:
        with _quiet():
            return AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:
        raise ValueError(
            f"the config.json of {name!r} cannot be used: {_first_line(error)}"
        ) from error


def _load_network(
    folder: str, name: str, config: Any, dtype: str, device: str | torch.device
) -> PreTrainedModel:
    # logit soft-capping inside attention exists in the eager form only
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    options: dict[str, Any] = {
        "local_files_only": True,
        "trust_remote_code": False,
        "dtype": _DTYPES.get(dtype, "auto"),
        "output_loading_info": True,
    }
    attempts = ["eager"] if capped else ["sdpa", "eager"]
    for attention in attempts:
        try:
            with _quiet():
                loaded: Any = AutoModelForCausalLM.from_pretrained(
                    folder, attn_implementation=attention, **options
                )
            break
        except Exception as error:
            if attention == "sdpa" and "scaled_dot_product_attention" in str(error):
                continue
            raise ValueError(
                f"the weights of {name!r} cannot be loaded: {_first_line(error)}"
            ) from error
    network, info = loaded
    missing = sorted(info["missing_keys"])
    if missing:
        raise ValueError(
            f"the checkpoint {name!r} lacks {len(missing)} weights of "
            f"{type(network).__name__}, {missing[0]!r} first; it is incomplete."
        )
    try:
        return network.to(device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device = {str(device)!r} cannot be used: {_first_line(error)}"
        ) from error


def _load_tokenizer(tokenizer: Any, folder: str | None, name: str) -> Any:
    if tokenizer is not None and not isinstance(tokenizer, str | Path):
        return tokenizer
    source = str(tokenizer) if tokenizer is not None else folder
    if source is None:
        return None
    path = Path(source).expanduser()
    has_files = path.is_dir() and any((path / file).is_file() for file in _TOKENIZER_FILES)
    if not has_files and (tokenizer is not None or path.is_dir()):
        if tokenizer is None:
            return None
        raise ValueError(f"tokenizer {source!r} is no folder with a tokenizer in it.")
    try:
        with _quiet():
            return AutoTokenizer.from_pretrained(
                source, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:
        raise ValueError(
            f"the tokenizer of {name!r} cannot be loaded: {_first_line(error)}"
        ) from error


def _check_loaded(
    model: PreTrainedModel, name: str, dtype: str | None, device: str | torch.device
) -> None:
    if model.training:
        raise ValueError(f"{name!r} is in training mode (dropout); call model.eval() first.")
    if dtype is not None and dtype != "auto" and model.dtype != _DTYPES[dtype]:
        raise ValueError(
            f"{name!r} is loaded as {model.dtype} and dtype = {dtype!r} was asked for; pass "
            f'dtype="auto" or call model.to(torch.{dtype}).'
        )
    if model.device.type != str(device).split(":")[0]:
        raise ValueError(
            f"{name!r} is on {model.device} and device = {str(device)!r} was asked for; move it "
            "with model.to(...), or pass its device."
        )


def _check_network(network: PreTrainedModel, name: str) -> None:
    model_type = getattr(network.config, "model_type", "unknown")
    if getattr(network, "_is_stateful", False):
        reason = f"transformers marks {type(network).__name__} as stateful"
        raise ValueError(recurrent_message(name, model_type, reason))
    if not network.can_generate() or network.get_input_embeddings() is None:
        raise ValueError(f"{name!r} ({type(network).__name__}) is not a causal LM.")
    attention = getattr(network.config, "_attn_implementation", None)
    if attention not in ("sdpa", "eager"):
        raise ValueError(
            f"{name!r} was loaded with attn_implementation = {attention!r}, which takes no mask a "
            'row; load it with "sdpa" or "eager".'
        )


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"


# progress bars and load reports are for people at a prompt, and go to whatever stderr is
@contextmanager
def _quiet() -> Iterator[None]:
    verbosity, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity(logging.CRITICAL)
    if bars:
        hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()
