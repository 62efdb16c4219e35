"""Scores rows of logits as they are decided, and keeps of each row only what matters.

Axes: N rows, V vocabulary, C columns kept, T texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairdraft.audit.narrowing import narrow_rows
from fairdraft.stats.tokens import NO_TOKEN, ScoredTokens, Source

__all__ = ["Decided", "RowBook", "softmax"]

#: numbers of one law that are held dense at once
DENSE_NUMBERS = 1 << 23


@dataclass(frozen=True)
class Decided:
    """Tokens that one round, or one step, decided.

    Attributes:
        text: int64 [N], index of the text in the batch.
        position: int64 [N], of the token in its text's output.
        token_id: int64 [N].
        slot: int64 [N], -1 where unknown.
        source: int8 [N].
        drafted_id: int64 [N], the draft tested, -1 for none.
        is_point_mass: bool [N].
    """

    text: np.ndarray
    position: np.ndarray
    token_id: np.ndarray
    slot: np.ndarray
    source: np.ndarray
    drafted_id: np.ndarray
    is_point_mass: np.ndarray

    def __len__(self) -> int:
        return len(self.text)

    def take(self, rows: slice) -> Decided:
        """The tokens of a slice."""
        return Decided(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


class RowBook:
    """Collects scored rows in any order of texts, and hands them over text by text.

    Args:
        max_columns: C; a row keeps its C - 1 likeliest ids, under target or draft.
    """

    def __init__(self, max_columns: int = 256) -> None:
        self.max_columns = max_columns
        self._parts: list[ScoredTokens] = []
        self._token_ids: list[np.ndarray] = []

    def note(
        self,
        decided: Decided,
        target: Tensor,
        draft: Tensor | None = None,
        unfiltered: Tensor | None = None,
        raw_draft: Tensor | None = None,
    ) -> None:
        """Scores tokens with the logits they were decided by, divided by temperature already.

        Args:
            decided: N tokens.
            target: [N, V]; its softmax is the law that was sampled.
            draft: [N, V], NaN rows where no draft law is known; None if none is.
            unfiltered: [N, V] without filters, or None where nothing is filtered.
            raw_draft: [N, V] likewise, NaN rows as in `draft`.
        """
        step = max(1, DENSE_NUMBERS // target.shape[1])
        for begin in range(0, len(decided), step):
            rows = slice(begin, begin + step)
            laws = [
                None if logits is None else softmax(logits[rows])
                for logits in (target, draft, unfiltered, raw_draft)
            ]
            self._note(decided.take(rows), laws)

    def _note(self, decided: Decided, laws: Sequence[np.ndarray | None]) -> None:
        target, draft, unfiltered, raw_draft = laws
        assert target is not None
        dense = ScoredTokens(
            column=decided.token_id,
            target=target,
            ids=None,
            draft=draft,
            text=decided.text,
            position=decided.position,
            slot=decided.slot,
            source=decided.source,
            drafted=decided.drafted_id,
            previous=np.full((len(decided), 2), NO_TOKEN),
            unfiltered=unfiltered,
            raw_draft=raw_draft,
            point_mass=decided.is_point_mass,
        )
        self._parts.append(_normalized(narrow_rows(dense, self.max_columns)))
        self._token_ids.append(decided.token_id)

    def tokens(
        self, first_text: int, prompts: Sequence[Sequence[int]], lengths: Sequence[int]
    ) -> ScoredTokens | None:
        """Everything noted, text by text, and forgets it.

        Args:
            first_text: Serial number of the batch's text 0.
            prompts: Ids of each text's prompt.
            lengths: Tokens that each text kept; what was decided past them is dropped.

        Returns:
            Scored tokens, or None if no text kept any.
        """
        parts, ids = self._parts, self._token_ids
        self._parts, self._token_ids = [], []
        if not parts:
            return None
        tokens = _joined(parts)
        token_id = np.concatenate(ids)
        order = np.lexsort((tokens.position, tokens.text))
        order = order[tokens.position[order] < np.asarray(lengths)[tokens.text[order]]]
        if not len(order):
            return None
        tokens, token_id = tokens.take(order), token_id[order]
        previous = _previous(tokens, token_id, prompts)
        return replace(tokens, text=tokens.text + first_text, previous=previous)


def softmax(logits: Tensor) -> np.ndarray:
    """Laws [N, V] of logits [N, V], in float32 from the very numbers; NaN rows stay NaN."""
    return torch.softmax(logits.detach().to("cpu", torch.float32), dim=-1).numpy()


def plain_decided(text: np.ndarray, position: np.ndarray, token_id: np.ndarray) -> Decided:
    """Tokens of a step without drafts."""
    count = len(text)
    return Decided(
        text=text,
        position=position,
        token_id=token_id,
        slot=np.zeros(count, np.int64),
        source=np.full(count, Source.PLAIN, np.int8),
        drafted_id=np.full(count, NO_TOKEN),
        is_point_mass=np.zeros(count, np.bool_),
    )


def _normalized(tokens: ScoredTokens) -> ScoredTokens:
    """Float64 laws whose rows sum to 1: float32 sums miss it in the seventh digit."""
    laws = {}
    for name in ("target", "draft", "unfiltered", "raw_draft"):
        law = getattr(tokens, name)
        if law is not None:
            law = law.astype(np.float64)
            laws[name] = law / law.sum(axis=1, keepdims=True)
    return replace(tokens, **laws)


def _joined(parts: list[ScoredTokens]) -> ScoredTokens:
    """Parts one after the other; a law that only some have is NaN in the others."""
    columns: dict[str, Any] = {}
    for name in ScoredTokens.__dataclass_fields__:
        values = [getattr(part, name) for part in parts]
        if all(value is None for value in values):
            columns[name] = None
            continue
        filled = [
            np.full(part.target.shape, np.nan) if value is None else value
            for part, value in zip(parts, values, strict=True)
        ]
        columns[name] = np.concatenate(filled)
    return ScoredTokens(**columns)


def _previous(
    tokens: ScoredTokens, token_id: np.ndarray, prompts: Sequence[Sequence[int]]
) -> np.ndarray:
    """Ids of the two tokens before each [N, 2], the prompt's last ones included."""
    previous = np.full((len(tokens), 2), NO_TOKEN)
    for back in (1, 2):
        shifted = np.roll(token_id, back)
        inside = tokens.position >= back
        ends = np.array(
            [[ids[-i] if len(ids) >= i else NO_TOKEN for i in (1, 2)] for ids in prompts]
        )
        from_prompt = ends[tokens.text, np.clip(back - tokens.position - 1, 0, 1)]
        previous[:, back - 1] = np.where(inside, shifted, from_prompt)
    return previous
