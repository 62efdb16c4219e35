"""The planted fault of each parameter of the equivalence matrix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fairdraft.audit.faults import FAULTS, Fault, Planting
from tests.law import faults

__all__ = ["PLANTED"]


def _on_first_row(original: Any, planting: Planting) -> Any:
    def apply_custom(logits: Any, paths: Any, *args: Any) -> Any:
        return original(logits, replace(paths, num_rows=np.ones_like(paths.num_rows)), *args)

    return apply_custom


def _best_two_before(original: Any, planting: Planting) -> Any:
    def apply_penalties(logits: Any, paths: Any, **params: Any) -> None:
        is_out = logits < logits.topk(2, dim=-1).values[..., 1:]
        original(logits, paths, **params)
        logits[is_out] = -torch.inf

    return apply_penalties


CUSTOM_ON_FIRST_ROW = Fault(
    "custom-on-first-row",
    "custom processors are applied to the first row of a round alone",
    "fairdraft.engine.processing.order.apply_custom",
    _on_first_row,
    "processor",
)
FILTERED_BEFORE = Fault(
    "filtered-before-penalties",
    "top-k looks at rows before their penalties",
    "fairdraft.ops.processors.apply_penalties",
    _best_two_before,
    "processor",
)

#: by parameter, as in `matrix_cells.PARAMETERS`
PLANTED: dict[str, Fault] = {
    "repetition_penalty": FAULTS["penalties-once-a-round"],
    "presence_penalty": faults.PROMPT_AS_OUTPUT.fault,
    "frequency_penalty": FAULTS["penalties-once-a-round"],
    "logit_bias": FAULTS["unbiased-bonus"],
    "allowed_token_ids": FAULTS["masked-as-absent"],
    "bad_words": faults.BAD_WORDS_ONCE_A_ROUND.fault,
    "bad_words_ids": faults.BAD_WORDS_ONCE_A_ROUND.fault,
    "no_repeat_ngram_size": faults.NGRAMS_ONCE_A_ROUND.fault,
    "min_tokens": faults.EARLY_ENDS_ONCE_A_ROUND.fault,
    "logits_processors": CUSTOM_ON_FIRST_ROW,
    "top_k, after penalties": FILTERED_BEFORE,
    "all together": faults.PROMPT_AS_OUTPUT.fault,
    "structured_outputs": FAULTS["masked-as-absent"],
}
