"""Checks of the parameters that processors read, as they are written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairdraft.engine.checks import check_integer, check_number
from fairdraft.engine.processing.grammar import StructuredOutputsParams

if TYPE_CHECKING:
    from fairdraft.engine.params import SamplingParams


def check_processing(params: SamplingParams) -> None:
    """Refuses values out of range and parameters that contradict each other.

    Raises:
        ValueError: The message names the value and the way out.
    """
    _check_penalties(params)
    _check_tokens(params)
    _check_words(params)
    structured = params.structured_outputs
    if structured is not None and not isinstance(structured, StructuredOutputsParams):
        raise ValueError(
            f"structured_outputs={structured!r}: must be StructuredOutputsParams(json=...), or None"
        )
    if structured is not None and params.ignore_eos:
        raise ValueError(
            "ignore_eos=True contradicts structured_outputs, which end with the end of sequence: "
            "leave one out"
        )
    for processor in _listed("logits_processors", params.logits_processors):
        if not callable(processor):
            raise ValueError(
                f"logits_processors holds {processor!r}: each must be called as "
                "processor(input_ids, scores)"
            )


def _check_penalties(params: SamplingParams) -> None:
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(params, name)
        if not -2.0 <= check_number(name, value) <= 2.0:
            raise ValueError(f"{name}={value!r}: must be from -2 to 2; 0 is off")
    value = params.repetition_penalty
    if not 0.0 < check_number("repetition_penalty", value) < float("inf"):
        raise ValueError(f"repetition_penalty={value!r}: must be finite and above 0; 1 is off")
    size = params.no_repeat_ngram_size
    if check_integer("no_repeat_ngram_size", size) < 0:
        raise ValueError(f"no_repeat_ngram_size={size!r}: must be at least 1, or 0 for off")


def _check_tokens(params: SamplingParams) -> None:
    least, most = params.min_tokens, params.max_tokens
    if check_integer("min_tokens", least) < 0:
        raise ValueError(f"min_tokens={least!r}: must be at least 0")
    if most is not None and least > most:
        raise ValueError(
            f"min_tokens={least!r} is above max_tokens={most!r}: lower it, or raise max_tokens"
        )
    bias = params.logit_bias
    if bias is not None:
        if not isinstance(bias, Mapping):
            raise ValueError(f"logit_bias={bias!r}: must be a dict of token id to bias")
        for token_id, value in bias.items():
            check_integer("a token id of logit_bias", token_id)
            if abs(check_number(f"logit_bias[{token_id}]", value)) == float("inf"):
                raise ValueError(
                    f"logit_bias[{token_id}]={value!r}: must be finite; to ban the token use "
                    "bad_words_ids, to force it allowed_token_ids"
                )
    allowed = params.allowed_token_ids
    if allowed is not None:
        if not len(_listed("allowed_token_ids", allowed)):
            raise ValueError("allowed_token_ids=[]: nothing could follow; None allows every token")
        for token_id in allowed:
            check_integer("a token id of allowed_token_ids", token_id)


def _check_words(params: SamplingParams) -> None:
    for word in _listed("bad_words", params.bad_words):
        if not isinstance(word, str) or not word.strip():
            raise ValueError(f"bad_words holds {word!r}: each must be a str that is not blank")
    for ids in _listed("bad_words_ids", params.bad_words_ids):
        if isinstance(ids, str) or not isinstance(ids, Sequence) or not ids:
            raise ValueError(
                f"bad_words_ids holds {ids!r}: each must be a list of token ids, such as [5] or "
                "[7, 2]"
            )
        for token_id in ids:
            check_integer("a token id of bad_words_ids", token_id)


def _listed(name: str, values: Any) -> Sequence[Any]:
    if values is None:
        return ()
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(f"{name}={values!r}: must be a list, or None")
    return values
