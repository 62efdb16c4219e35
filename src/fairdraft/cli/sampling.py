"""From the JSON of `--sampling-params` to arguments of `SamplingParams`."""

from __future__ import annotations

import difflib
from typing import Any

from fairdraft.cli.failure import UsageFault
from fairdraft.cli.json_option import read_object

#: parameters without an option of their own
NAMES = (
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    *("allowed_token_ids", "bad_words", "bad_words_ids", "no_repeat_ngram_size", "min_tokens"),
    *("stop_token_ids", "include_stop_str_in_output", "structured_outputs"),
    "prediction",
)


def read_sampling(text: str | None) -> dict[str, Any]:
    """Returns the object as plain values; empty for None.

    Raises:
        UsageFault: If it is no JSON object, or holds a name that does not belong there.
    """
    if text is None:
        return {}
    found = read_object("--sampling-params", text, '{"repetition_penalty": 1.1}')
    for name in found:
        if name not in NAMES:
            close = difflib.get_close_matches(name, NAMES, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(NAMES)}"
            raise UsageFault(f"--sampling-params does not take {name!r}; {hint}")
    return found


def arguments(sampling: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `SamplingParams`: what JSON cannot say is put back.

    Raises:
        UsageFault: If a key of logit_bias is no token id, or structured_outputs no object.
    """
    given = dict(sampling)
    bias = given.get("logit_bias")
    if isinstance(bias, dict):
        try:
            given["logit_bias"] = {int(token_id): value for token_id, value in bias.items()}
        except ValueError as error:
            raise UsageFault(f"logit_bias has a key that is no token id: {error}") from error
    structured = given.get("structured_outputs")
    if structured is not None:
        from fairdraft.engine import StructuredOutputsParams

        if not isinstance(structured, dict):
            raise UsageFault(
                f'structured_outputs {structured!r} is no object; write e.g. {{"regex": "[0-9]+"}}'
            )
        try:
            given["structured_outputs"] = StructuredOutputsParams(**structured)
        except TypeError as error:
            raise UsageFault(f"structured_outputs {structured!r}: {error}") from error
    return given
