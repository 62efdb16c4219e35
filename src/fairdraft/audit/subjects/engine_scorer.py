"""Scores an engine's rounds as they are decided.

Axes: B rows of a round, K drafts, V vocabulary, N tokens that a round emitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fairdraft.audit.dense import dense_logits
from fairdraft.audit.subjects.engine_copies import observed
from fairdraft.audit.subjects.rows import DENSE_NUMBERS, Decided, RowBook
from fairdraft.noise import request_key
from fairdraft.stats.tokens import NO_TOKEN, ScoredTokens, Source

if TYPE_CHECKING:
    from fairdraft.engine import LLM, Observation, RequestOutput, SamplingParams

__all__ = ["EngineScorer"]


class EngineScorer:
    """Generates one batch and scores it round by round, so that memory stays small.

    Args:
        llm: Whose rounds are watched.
        max_columns: Ids kept of each law.
    """

    def __init__(self, llm: LLM, max_columns: int = 256) -> None:
        self._llm = llm
        self._book = RowBook(max_columns)
        self._index: dict[tuple[int, int], int] = {}
        self._prompt_length = np.zeros(0, np.int64)
        self._has_filter = False

    def generate(
        self, prompts: list[list[int]], params: list[SamplingParams]
    ) -> list[RequestOutput]:
        """Generates every prompt to its end, with the observer in place."""
        self._index = {}
        for ids, item in zip(prompts, params, strict=True):
            key = request_key(item.seed, ids)
            for sample in range(item.n):
                self._index[key, sample] = len(self._index)
        lengths = [[len(ids)] * item.n for ids, item in zip(prompts, params, strict=True)]
        self._prompt_length = np.concatenate(lengths)
        self._has_filter = any(item.has_filter for item in params)
        with observed(self._llm, self._note):
            return self._llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)

    def tokens(self, first_text: int, outputs: list[RequestOutput]) -> ScoredTokens | None:
        """The batch's scored tokens, each text up to where it was cut; None if there are none."""
        texts = [
            (output.prompt_token_ids, sample.token_ids)
            for output in outputs
            for sample in output.outputs
        ]
        return self._book.tokens(first_text, [p for p, _ in texts], [len(ids) for _, ids in texts])

    def _note(self, seen: Observation) -> None:
        width, vocab_size = seen.token_ids.shape[1], seen.target_logits.shape[-1]
        row, slot = np.nonzero(np.arange(width) < seen.num_emitted_tokens[:, None])
        laws = dense_logits(seen.draft_logits, vocab_size)
        # some rows at a time: copies of all of them would be as large as the round itself
        step = max(1, DENSE_NUMBERS // vocab_size)
        for begin in range(0, len(row), step):
            rows = slice(begin, begin + step)
            self._note_rows(seen, laws, row[rows], slot[rows])

    def _note_rows(
        self, seen: Observation, laws: Tensor | None, row: np.ndarray, slot: np.ndarray
    ) -> None:
        decided = self._decided(seen, row, slot)
        at = torch.from_numpy(row), torch.from_numpy(slot)
        temperature = torch.from_numpy(np.asarray(seen.temperature, np.float64)[row])[:, None]
        is_tested = slot < seen.num_draft_tokens[row]
        draft = None
        if laws is not None and is_tested.any():
            step = torch.from_numpy(np.minimum(slot, laws.shape[1] - 1))
            # indexing by arrays copies, so the laws themselves stay as they are
            draft = laws[at[0], step].to(torch.float32)
            draft[torch.from_numpy(~is_tested)] = torch.nan
        self._book.note(
            decided,
            _divided(seen.target_logits[at], temperature),
            None if draft is None else _divided(draft, temperature),
            _divided(seen.raw_target_logits[at], temperature) if self._has_filter else None,
            # what is drafted from is filtered already, so only the temperature can be undone
            None if draft is None or self._has_filter or (temperature == 1).all() else draft,
        )

    def _decided(self, seen: Observation, row: np.ndarray, slot: np.ndarray) -> Decided:
        names = zip(seen.key[row].tolist(), seen.sample[row].tolist(), strict=True)
        text = np.array([self._index[name] for name in names])
        present = seen.num_draft_tokens[row]
        is_tested = slot < present
        drafts = np.pad(seen.draft_token_ids, ((0, 0), (0, 1)), constant_values=NO_TOKEN)
        return Decided(
            text=text,
            position=seen.anchor[row] + slot - self._prompt_length[text],
            token_id=seen.token_ids[row, slot],
            slot=slot,
            source=_source(slot, seen.num_accepted_tokens[row], present),
            drafted_id=np.where(is_tested, drafts[row, slot], NO_TOKEN),
            # a guess knows more than what was decided before, so no cell may depend on it
            is_point_mass=is_tested & (seen.draft_logits is None and not seen.is_guessed),
        )


def _divided(logits: Tensor, temperature: Tensor) -> Tensor:
    """Logits [N, V] over temperatures [N, 1], rounded once."""
    return logits if (temperature == 1).all() else (logits.double() / temperature).float()


def _source(slot: np.ndarray, accepted: np.ndarray, present: np.ndarray) -> np.ndarray:
    last = np.where(accepted < present, int(Source.REPLACED), int(Source.BONUS))
    last = np.where(present > 0, last, int(Source.PLAIN))
    return np.where(slot < accepted, int(Source.ACCEPTED), last).astype(np.int8)
