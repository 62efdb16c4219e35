"""One request's processors, compiled for its target once, before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairdraft.engine.params import SamplingParams
from fairdraft.engine.processing.grammar import Grammar, compile_grammar
from fairdraft.models import CausalLM
from fairdraft.ops.processors import RowParams
from fairdraft.ops.processors.bad_words import BadWords


@dataclass(frozen=True, eq=False)
class ProcessingPlan:
    """What a request asks of its rows besides temperature and filters.

    Attributes:
        params: The request's parameters.
        allowed_ids: Tokens that may come at all, ascending, or None.
        bias_ids, bias: Tokens with a bias, and the biases.
        end_ids: Tokens that `min_tokens` holds back.
        bad_words: Bad sequences, or None.
        processors: Custom processors.
        grammar: What the output must look like, or None.
        mask_names: Parameters that can leave a row without a token.
        row_params: All but the custom processors and the grammar, as kernels take it.
    """

    params: SamplingParams
    allowed_ids: np.ndarray | None
    bias_ids: np.ndarray
    bias: np.ndarray
    end_ids: np.ndarray
    bad_words: BadWords | None
    processors: tuple[Any, ...]
    grammar: Grammar | None
    mask_names: tuple[str, ...]
    row_params: RowParams


def compile_plan(params: SamplingParams, target: CausalLM, where: str) -> ProcessingPlan | None:
    """Compiles a request's processors; None if it asks for none.

    Args:
        params: Checked parameters.
        target: Whose vocabulary, ends and tokenizer they refer to.
        where: What messages call the request, such as "prompts[3]".

    Raises:
        ValueError: If an id is outside the vocabulary, or words come without a tokenizer.
    """
    if not params.processing:
        return None
    bias = dict(params.logit_bias or {})
    allowed = params.allowed_token_ids
    words = _word_ids(params.bad_words or (), target, where)
    sequences = [list(ids) for ids in params.bad_words_ids or ()]
    _check_ids("logit_bias", bias, target, where)
    _check_ids("allowed_token_ids", allowed or (), target, where)
    _check_ids("bad_words_ids", (i for ids in sequences for i in ids), target, where)
    structured = params.structured_outputs
    marker = () if structured is None else structured.begin_after_ids or ()
    _check_ids("begin_after_ids", marker, target, where)
    ends = sorted(target.eos_token_ids | set(params.stop_token_ids or ()))
    lists: dict[str, Any] = {
        "allowed_ids": None if allowed is None else np.unique(np.array(allowed, np.int64)),
        "bias_ids": np.array([int(token_id) for token_id in bias], np.int64),
        "bias": np.array([float(value) for value in bias.values()], np.float64),
        "end_ids": np.array([i for i in ends if i < target.vocab_size], np.int64),
        "bad_words": BadWords.of(words, sequences) if words or sequences else None,
    }
    return ProcessingPlan(
        params=params,
        **lists,
        processors=tuple(params.logits_processors or ()),
        grammar=None if structured is None else compile_grammar(structured, target, where),
        mask_names=_mask_names(params),
        row_params=RowParams(
            vocab_size=target.vocab_size,
            **lists,
            min_tokens=params.min_tokens,
            repetition=params.repetition_penalty,
            presence=params.presence_penalty,
            frequency=params.frequency_penalty,
            ngram_size=params.no_repeat_ngram_size,
        ),
    )


def _mask_names(params: SamplingParams) -> tuple[str, ...]:
    names = ("structured_outputs", "allowed_token_ids", "min_tokens", "bad_words")
    names += ("bad_words_ids", "no_repeat_ngram_size", "logits_processors")
    return tuple(name for name in names if getattr(params, name))


def _check_ids(name: str, token_ids: Iterable[int], target: CausalLM, where: str) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < target.vocab_size:
            raise ValueError(
                f"{where}: {name} holds {token_id}; {target.name!r} has ids 0 to "
                f"{target.vocab_size - 1}"
            )


def _word_ids(words: Sequence[str], target: CausalLM, where: str) -> list[list[int]]:
    """Token ids of each bad word, as it begins a text and as it follows a space."""
    if words and target.tokenizer is None:
        raise ValueError(
            f"{where}: bad_words={list(words)!r} needs a tokenizer, and {target.name!r} has none; "
            "pass bad_words_ids, or LLM(..., tokenizer=...)"
        )
    found = []
    for word in words:
        plain = _encode(word.lstrip(), target, where)
        spaced = _encode(" " + word.lstrip(), target, where)
        found.append(plain)
        # where the space becomes a token of its own, the plain form covers the spaced one
        if spaced[0] != plain[0] and len(spaced) == len(plain):
            found.append(spaced)
    return found


def _encode(text: str, target: CausalLM, where: str) -> list[int]:
    ids = list(target.tokenizer(text, add_special_tokens=False)["input_ids"])
    unknown = getattr(target.tokenizer, "unk_token_id", None)
    if not ids or unknown in ids:
        raise ValueError(
            f"{where}: bad_words holds {text.strip()!r}, which the tokenizer of {target.name!r} "
            "does not know; leave it out, or pass bad_words_ids"
        )
    return ids
