"""Scored tokens: what a decoder emitted, beside the laws that each token should follow.

Axes: N tokens, C columns of a law (ids of the vocabulary, or a few of them and a rest cell).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any

import numpy as np

__all__ = ["NO_TOKEN", "REST", "ScoredTokens", "Source", "compact"]

#: id of the column that lumps every id not listed
REST = -1
#: no such token: before the text began, or not known
NO_TOKEN = -1


class Source(IntEnum):
    """How a token came out of its round."""

    UNKNOWN = -1
    #: no draft was tested: plain decoding, or a round without drafts
    PLAIN = 0
    ACCEPTED = 1
    REPLACED = 2
    BONUS = 3


@dataclass(frozen=True)
class ScoredTokens:
    """Tokens in the order they were decided: text by text, position by position.

    Attributes:
        column: int64 [N], the column of each token.
        target: float [N, C], the law each token should follow: temperature and filters applied,
            every row sums to 1, and it depends on nothing but what was decided before.
        ids: int64 [N, C], the id of each column, REST for the lumped one; None: column j is id j.
        draft: float [N, C], the law that the draft tested at this token was drawn from; NaN rows
            where there was none or it is unknown; None if no row has one.
        text: int64 [N], serial number of the text; it grows along N, over all batches.
        position: int64 [N], index of the token in its text's output.
        slot: int64 [N], index of the token in its round, -1 where unknown.
        source: int8 [N], a `Source` each.
        drafted: int64 [N], column of the draft tested at this token, -1 for none or unknown.
        previous: int64 [N, 2], ids of the token before and of the one before that, NO_TOKEN
            where there is none; the prompt counts.
        unfiltered: float [N, C], the target's law without top-k, top-p and min-p, or None.
        raw_draft: float [N, C], the draft's law before temperature and filters, or None.
        point_mass: bool [N], whether the draft tested was deterministic; `draft` is then the
            softmax it was read off, if known.
    """

    column: np.ndarray
    target: np.ndarray
    ids: np.ndarray | None
    draft: np.ndarray | None
    text: np.ndarray
    position: np.ndarray
    slot: np.ndarray
    source: np.ndarray
    drafted: np.ndarray
    previous: np.ndarray
    unfiltered: np.ndarray | None = None
    raw_draft: np.ndarray | None = None
    point_mass: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.column)

    @property
    def num_columns(self) -> int:
        """C."""
        return self.target.shape[1]

    @property
    def token_id(self) -> np.ndarray:
        """int64 [N], the id of each token; REST where only the rest cell is known."""
        if self.ids is None:
            return self.column
        return self.ids[np.arange(len(self)), self.column]

    @property
    def probability(self) -> np.ndarray:
        """float64 [N], what the target gave each token (the whole rest cell if it is in it)."""
        return self.target[np.arange(len(self)), self.column].astype(np.float64)

    @property
    def has_draft(self) -> np.ndarray:
        """bool [N], whether the law of the tested draft is known."""
        if self.draft is None:
            return np.zeros(len(self), np.bool_)
        return ~np.isnan(self.draft[:, 0])

    def column_of(self, token_ids: np.ndarray) -> np.ndarray:
        """Finds the columns of ids [N, ...], -1 where an id is not listed."""
        wanted = np.asarray(token_ids)
        if self.ids is None:
            return np.where((wanted >= 0) & (wanted < self.num_columns), wanted, -1)
        flat = wanted.reshape(len(self), -1)
        match = (self.ids[:, None, :] == flat[:, :, None]) & (flat[:, :, None] >= 0)
        return np.where(match.any(-1), match.argmax(-1), -1).reshape(wanted.shape)

    def take(self, rows: np.ndarray) -> ScoredTokens:
        """The tokens that an index or mask selects."""
        kept: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            kept[field.name] = None if value is None else value[rows]
        return ScoredTokens(**kept)


_LAWS = ("target", "draft", "unfiltered", "raw_draft")


def compact(tokens: ScoredTokens, max_columns: int = 256) -> ScoredTokens:
    """Keeps the columns that matter and lumps the rest, exactly.

    Which columns are kept depends on the laws alone, so a test of the result is a test of the
    tokens. A row's kept columns are its largest max(target, draft). With draft laws there are two
    rest cells, first of ids that the target likes better than the draft and then of the others:
    lumped together, the residual that lies in the rest would be lost.

    Args:
        tokens: Any number of columns.
        max_columns: Columns of the result at most, the rest cells included.

    Returns:
        The same tokens over C <= max_columns columns, the rest last; `tokens` itself if it is
        narrow enough.
    """
    width = tokens.num_columns
    if width <= max_columns:
        return tokens
    is_liked = None
    weight = tokens.target
    if tokens.draft is not None:
        weight = np.fmax(weight, tokens.draft)
        # a NaN compares as false: without a draft law everything lands in the second cell
        is_liked = tokens.target > tokens.draft
    if tokens.ids is not None:
        weight = np.where(tokens.ids == REST, -1.0, weight)
    count = max_columns - (1 if is_liked is None else 2)
    kept = np.argpartition(weight, width - count, axis=1)[:, width - count :]
    kept.sort(axis=1)
    ids = kept if tokens.ids is None else np.take_along_axis(tokens.ids, kept, axis=1)
    rest = np.full((len(tokens), max_columns - count), REST, np.int64)
    laws = {
        name: _lump(law, kept, is_liked)
        for name in _LAWS
        if (law := getattr(tokens, name)) is not None
    }
    return replace(
        tokens,
        column=_moved(tokens.column, kept, is_liked),
        drafted=_moved(tokens.drafted, kept, is_liked),
        ids=np.concatenate([ids, rest], axis=1),
        **laws,
    )


def _lump(law: np.ndarray, kept: np.ndarray, is_liked: np.ndarray | None) -> np.ndarray:
    chosen = np.take_along_axis(law, kept, axis=1).astype(np.float64)
    rest = law.sum(axis=1, dtype=np.float64) - chosen.sum(axis=1)
    if is_liked is None:
        return np.concatenate([chosen, np.maximum(rest, 0.0)[:, None]], axis=1)
    chosen_liked = np.where(np.take_along_axis(is_liked, kept, axis=1), chosen, 0.0)
    liked = (law * is_liked).sum(axis=1, dtype=np.float64) - chosen_liked.sum(axis=1)
    liked = np.where(np.isnan(rest), np.nan, np.clip(liked, 0.0, np.maximum(rest, 0.0)))
    return np.concatenate([chosen, liked[:, None], np.maximum(rest - liked, 0.0)[:, None]], axis=1)


def _moved(column: np.ndarray, kept: np.ndarray, is_liked: np.ndarray | None) -> np.ndarray:
    # columns are ascending, so a search finds each in its own row
    offset = np.arange(len(column)) * (1 << 40)
    flat = (kept + offset[:, None]).ravel()
    wanted = column + offset
    place = np.minimum(np.searchsorted(flat, wanted), len(flat) - 1)
    found = flat[place] == wanted
    local = place - np.arange(len(column)) * kept.shape[1]
    rest = np.full(len(column), kept.shape[1])
    if is_liked is not None:
        rest += ~is_liked[np.arange(len(column)), np.maximum(column, 0)]
    return np.where(column < 0, -1, np.where(found, local, rest))
