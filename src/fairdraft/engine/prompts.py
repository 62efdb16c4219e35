"""Prompts as callers write them, turned into token ids or refused before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairdraft.engine.params import SamplingParams
from fairdraft.models import CausalLM

Prompt = str | Sequence[int] | Mapping[str, Any]


def split_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Returns a list of prompts; a str, a dict or a list of ints is one prompt."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if isinstance(prompts, np.ndarray) or hasattr(prompts, "tolist"):
        prompts = prompts.tolist()  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(prompts, Sequence):
        raise ValueError(
            f"prompts is a {type(prompts).__name__}: pass a str, a list of token ids, or a list "
            "of prompts"
        )
    if prompts and all(isinstance(item, (int, np.integer)) for item in prompts):
        return [prompts]  # pyright: ignore[reportReturnType]
    return list(prompts)  # pyright: ignore[reportReturnType]


def match_params(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    """Returns one `SamplingParams` for each prompt.

    Raises:
        ValueError: If a list of another length, or something else, was given.
    """
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    params = list(params)
    if len(params) != num_prompts:
        raise ValueError(
            f"{len(params)} sampling_params for {num_prompts} prompts: pass one for all, or one "
            "for each"
        )
    for item in params:
        if not isinstance(item, SamplingParams):
            raise ValueError(f"sampling_params holds {item!r}: pass SamplingParams(...)")
    return params


def read_prompt(
    prompt: Prompt, where: str, target: CausalLM, max_model_len: int
) -> tuple[str | None, list[int]]:
    """Returns a prompt's text, if it has one, and its checked token ids.

    Args:
        prompt: Text, token ids, {"prompt": text} or {"prompt_token_ids": ids}.
        where: What messages call it, such as "prompts[3]".
        target: Whose tokenizer and vocabulary it must fit.
        max_model_len: Context that must hold it and one token more.

    Raises:
        ValueError: If it is empty, too long, holds a foreign id, or is text without a tokenizer.
    """
    text, ids = None, prompt
    if isinstance(prompt, Mapping):
        unknown = set(prompt) - {"prompt", "prompt_token_ids"}
        if unknown or not prompt:
            raise ValueError(
                f"{where} has keys {sorted(prompt)}: use 'prompt' or 'prompt_token_ids'"
            )
        text = prompt.get("prompt")
        ids = prompt.get("prompt_token_ids", text)
    if isinstance(ids, str):
        text = ids
        ids = _encode(text, where, target)
    token_ids = _check_ids(ids, where, target)
    if len(token_ids) >= max_model_len:
        raise ValueError(
            f"{where} has {len(token_ids)} tokens and the context holds {max_model_len}, with room "
            f"for at least one more needed; shorten it to {max_model_len - 1} tokens"
        )
    return text, token_ids


def chat_prompt(message: str, target: CausalLM) -> dict[str, Any]:
    """Returns a user's message as a prompt in the target's chat template, ready for an answer.

    Args:
        message: What the user says; it stays the prompt's text.
        target: Whose tokenizer holds the template.

    Raises:
        ValueError: If the target has no chat template.
    """
    if getattr(target.tokenizer, "chat_template", None) is None:
        raise ValueError(f"{target.name!r} has no chat template; pass prompts as they are to run")
    conversation = [{"role": "user", "content": message}]
    ids = target.tokenizer.apply_chat_template(
        conversation, add_generation_prompt=True, return_dict=False
    )
    return {"prompt": message, "prompt_token_ids": ids}


def read_prediction(prediction: str | Sequence[int], where: str, target: CausalLM) -> list[int]:
    """Returns the ids of an expected output, without special tokens.

    Args:
        prediction: Text or ids; may be empty.
        where: What messages call its prompt.
        target: Whose tokenizer and vocabulary it must fit.

    Raises:
        ValueError: If it holds a foreign id, or is text without a tokenizer.
    """
    where = f"{where}: prediction"
    if not isinstance(prediction, str):
        is_empty = isinstance(prediction, Sequence) and not prediction
        return [] if is_empty else _check_ids(prediction, where, target)
    if not prediction:
        return []
    if target.tokenizer is None:
        raise ValueError(f"{where} is text and {target.name!r} has no tokenizer: pass token ids")
    return target.tokenizer(prediction, add_special_tokens=False)["input_ids"]


def _encode(text: str, where: str, target: CausalLM) -> list[int]:
    if target.tokenizer is None:
        raise ValueError(
            f"{where} is text and {target.name!r} has no tokenizer: pass token ids, or "
            "LLM(..., tokenizer=...)"
        )
    if not text:
        raise ValueError(f"{where} is empty: pass at least one character or token")
    return target.tokenizer(text)["input_ids"]


def _check_ids(ids: Any, where: str, target: CausalLM) -> list[int]:
    try:
        array = np.asarray(ids)
    except ValueError:
        array = np.asarray(None)
    if array.size == 0:
        raise ValueError(f"{where} is empty: pass at least one token")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{where} is {_short(ids)}: pass a str or a flat list of int token ids")
    lowest, highest = int(array.min()), int(array.max())
    if lowest < 0 or highest >= target.vocab_size:
        bad = lowest if lowest < 0 else highest
        raise ValueError(
            f"{where} holds token id {bad}; {target.name!r} has ids 0 to {target.vocab_size - 1}"
        )
    return array.tolist()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
