"""What several families need of the same tokens, worked out once.

Axes: N tokens, C columns, M of the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairdraft.stats.octiles import Octiles, octiles_of
from fairdraft.stats.tokens import NO_TOKEN, REST, ScoredTokens, Source

__all__ = ["LAGS", "LastText", "Pairs", "View"]

#: offsets at which a text is compared with the one before
LAGS = (0, 1, -1)


@dataclass(frozen=True)
class LastText:
    """The text before a batch, complete.

    Attributes:
        text: Its serial number.
        position: Position of its first token.
        ids: int64 [L], its tokens, REST where unknown.
    """

    text: int
    position: int
    ids: np.ndarray


@dataclass(frozen=True)
class Pairs:
    """Tokens beside what the text before them says at another position.

    Attributes:
        column: int64 [N, lags], column of the other text's token, -1 where no column lists it.
        is_known: bool [N, lags], whether the other text has a known token there.
    """

    column: np.ndarray
    is_known: np.ndarray


class View:
    """Scored tokens with the arrays that families share; each is worked out on first use."""

    def __init__(self, tokens: ScoredTokens, last: LastText | None = None) -> None:
        self.tokens = tokens
        self.last = last

    @cached_property
    def is_rest(self) -> np.ndarray | None:
        """bool [N, C], which columns lump ids; None if none does."""
        if self.tokens.ids is None:
            return None
        return self.tokens.ids == REST

    @cached_property
    def is_listed(self) -> np.ndarray:
        """bool [N], whether the token's own id is known."""
        return self.tokens.token_id >= 0

    @cached_property
    def is_point_mass(self) -> np.ndarray:
        """bool [N], whether a deterministic draft was tested and its column is known."""
        if self.tokens.point_mass is None:
            return np.zeros(len(self.tokens), np.bool_)
        return self.tokens.point_mass & (self.tokens.drafted >= 0)

    @cached_property
    def draft(self) -> np.ndarray | None:
        """float64 [N, C], draft laws; one-hot for deterministic drafts of unknown softmax."""
        law, one_hot = self.tokens.draft, self.is_point_mass & ~self.tokens.has_draft
        if not one_hot.any():
            return law
        law = np.full(self.tokens.target.shape, np.nan) if law is None else law.copy()
        law[one_hot] = 0.0
        law[one_hot, self.tokens.drafted[one_hot]] = 1.0
        return law

    @cached_property
    def octiles(self) -> Octiles | None:
        """Cells by q/p, over the tokens with a draft law; None if there are none."""
        if self.draft is None:
            return None
        rows = np.flatnonzero(~np.isnan(self.draft[:, 0]))
        if not len(rows):
            return None
        return octiles_of(rows, self.tokens, self.draft)

    @cached_property
    def before(self) -> np.ndarray:
        """int8 [N], the `Source` of the token before in the text, UNKNOWN if there is none."""
        tokens = self.tokens
        source = np.full(len(tokens), Source.UNKNOWN, np.int8)
        follows = (np.diff(tokens.text) == 0) & (np.diff(tokens.position) == 1)
        source[1:] = np.where(follows, tokens.source[:-1], Source.UNKNOWN)
        return source

    @cached_property
    def pairs(self) -> Pairs:
        """Each token beside the text before, at every lag."""
        tokens = self.tokens
        first = np.flatnonzero(np.diff(tokens.text, prepend=tokens.text[:1] - 1))
        length = np.diff(np.append(first, len(tokens)))
        begin = tokens.position[first]
        ids, start, size, origin = tokens.token_id, first, length, begin
        if self.last is not None:
            ids = np.concatenate([self.last.ids, ids])
            start = np.append(0, first + len(self.last.ids))
            size = np.append(len(self.last.ids), length)
            origin = np.append(self.last.position, begin)
        # ordinal of the text before each token, -1 for none
        other = np.repeat(np.arange(len(first)) + len(start) - len(first) - 1, length)
        at = tokens.position[:, None] + np.array(LAGS) - origin[other, None]
        inside = (other >= 0)[:, None] & (at >= 0) & (at < size[other, None])
        found = np.where(inside, ids[np.where(inside, start[other, None] + at, 0)], NO_TOKEN)
        return Pairs(tokens.column_of(found), found >= 0)

    def last_text(self) -> LastText | None:
        """The last text of these tokens, for the view of the next batch."""
        tokens = self.tokens
        if not len(tokens):
            return self.last
        rows = tokens.text == tokens.text[-1]
        begin = int(tokens.position[rows][0])
        return LastText(int(tokens.text[-1]), begin, tokens.token_id[rows].copy())
