"""The planted faults of the equivalence matrix: by parameter in chains, and of `common_noise`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fairdraft.audit.faults import FAULTS, Fault, Planting
from fairdraft.ops.dispatch import Impl
from tests.law import faults

__all__ = ["FAULT_EFFECT", "PLANTED", "PLANTED_COMMON", "Planted"]

#: TV that a cell with a planted fault sees, unless it says another
FAULT_EFFECT = 0.08


def _on_first_row(original: Any, planting: Planting) -> Any:
    def apply_custom(logits: Any, paths: Any, *args: Any) -> Any:
        is_read = paths.is_read & (np.arange(paths.width) < 1)
        return original(logits, replace(paths, is_read=is_read), *args)

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


def _allowed_on_first_row(original: Any, planting: Planting) -> Any:
    def allow_only(logits: Any, sequence: int, token_ids: Any) -> None:
        later = logits[sequence, 1:].clone()
        original(logits, sequence, token_ids)
        logits[sequence, 1:] = later

    return allow_only


def _by_the_drafts_filter(original: Any, planting: Planting) -> Any:
    """What the sampler keeps of a draft's row is kept of the target's, in place of its filter."""

    def new_sampler(self: Any, rows: Any, *args: Any, **options: Any) -> Any:
        sampler = original(self, rows, *args, **options)
        own_law, own_filter = sampler.law, self._filter
        kept: dict[tuple[int, int], Any] = {}

        def law(logits: Any, step: int, at: np.ndarray, **more: Any) -> Any:
            found = own_law(logits, step, at, **more)
            kept.update(((int(b), step - 1), row) for b, row in zip(at, found, strict=True))
            return found

        def filter_as_drafts(rows: Any, logits: Any) -> Any:
            # for this round alone
            del self._filter
            filtered = own_filter(rows, logits).clone()
            for (b, r), row in kept.items():
                filtered[b, r] = logits[b, r].masked_fill(row == -torch.inf, -torch.inf)
            return filtered

        sampler.law, self._filter = law, filter_as_drafts
        return sampler

    return new_sampler


ALLOWED_ON_FIRST_ROW = Fault(
    "allowed-on-first-row",
    "allowed ids mask the first row of a round alone",
    "fairdraft.ops.processors.allow_only",
    _allowed_on_first_row,
    "processor",
)
FILTERED_AS_DRAFTS = Fault(
    "filtered-as-drafts",
    "the target's pick is made among what the draft's filter keeps",
    "fairdraft.engine.round.RoundRunner._new_sampler",
    _by_the_drafts_filter,
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


@dataclass(frozen=True)
class Planted:
    """A fault of a cell.

    Attributes:
        fault: What is planted.
        breaks_law: Whether the law must fail. Under rule `common_noise` the text must change in any
            case; by proof the law stays where the numbers that are taken instead are as good.
        effect: TV that the test sees.
        impl: Of the engine's ops: a formula of the readable walk can be replaced there alone.
        q: The draft's law after every id, where the toy's own hides the fault.
    """

    fault: Fault
    breaks_law: bool = True
    effect: float = FAULT_EFFECT
    impl: Impl = "auto"
    q: tuple[float, ...] | None = None


#: by parameter: a processor that is not advanced along the drafted path, or an error of the rule.
#: A grammar has none here: a text that its mask let go astray ends its request with an error
PLANTED_COMMON: dict[str, tuple[Planted, ...]] = {
    parameter: (Planted(fault),)
    for parameter, fault in PLANTED.items()
    if fault is not FAULTS["masked-as-absent"]
}
PLANTED_COMMON["allowed_token_ids"] = (
    Planted(ALLOWED_ON_FIRST_ROW),
    Planted(FAULTS["common-drawn-again"]),
)
PLANTED_COMMON["presence_penalty"] += (
    Planted(FAULTS["common-drawn-again"]),
    Planted(FAULTS["common-one-behind"]),
    Planted(FAULTS["common-one-ahead"], breaks_law=False),
    Planted(FAULTS["common-named-as-ratio"], breaks_law=False),
    Planted(FAULTS["common-from-draft"], breaks_law=False),
)
PLANTED_COMMON["top_k, after penalties"] += (Planted(FILTERED_AS_DRAFTS),)
