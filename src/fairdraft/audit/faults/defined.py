"""The engine scored by what a request's processors are defined to do, not by what was done.

Masks, bias, frequency and presence penalties alone, in NumPy on raw logits and emitted tokens, so
that a fault planted in the processors does not move what it is judged by. Axes: V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fairdraft.audit.subjects.engine import EngineSubject
from fairdraft.audit.subjects.engine_scorer import EngineScorer

if TYPE_CHECKING:
    from fairdraft.engine import Observation, SamplingParams

__all__ = ["DefinedSubject"]


class DefinedSubject(EngineSubject):
    """An engine whose laws come from its raw logits by definition; as `EngineSubject` otherwise."""

    def new_scorer(self) -> EngineScorer:
        return _DefinedScorer(self, self.max_columns)


class _DefinedScorer(EngineScorer):
    def __init__(self, subject: EngineSubject, max_columns: int) -> None:
        super().__init__(subject.llm, max_columns)
        self._params = subject.params
        self._outputs: dict[tuple[int, int], list[int]] = {}

    def _note(self, seen: Observation) -> None:
        rows = seen.raw_target_logits.numpy().copy()
        for b, emitted in enumerate(seen.num_emitted_tokens.tolist()):
            output = self._outputs.setdefault((int(seen.key[b]), int(seen.sample[b])), [])
            for slot in range(emitted):
                rows[b, slot] = defined_row(rows[b, slot], output, self._params)
                output.append(int(seen.token_ids[b, slot]))
        super()._note(replace(seen, target_logits=torch.from_numpy(rows)))


def defined_row(raw: np.ndarray, output: list[int], params: SamplingParams) -> np.ndarray:
    """Processed logits [V] of a row, from the output tokens before it."""
    row = raw.copy()
    for token_id, bias in (params.logit_bias or {}).items():
        row[token_id] += bias
    for token_id in set(output):
        row[token_id] -= params.presence_penalty
        row[token_id] -= params.frequency_penalty * output.count(token_id)
    if params.allowed_token_ids is not None:
        is_out = np.ones(len(row), np.bool_)
        is_out[list(params.allowed_token_ids)] = False
        row[is_out] = -np.inf
    return row
