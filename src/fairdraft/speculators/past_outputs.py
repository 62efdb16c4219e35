"""Outputs of requests that ended, indexed by pairs of tokens, the oldest dropped first.

Axes: D depth, P places, K drafts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

import numpy as np

from fairdraft.ops import PLACEHOLDER_TOKEN_ID
from fairdraft.speculators.matching import MAX_PLACES, match_lengths

#: most tokens held, whatever the number of outputs
MAX_TOKENS = 1 << 20


class PastOutputs:
    """A bounded store of outputs that finds where the end of a text occurred.

    An output is never read by requests under its own key. Such a request is a replay: its draws
    are those that made the output, so drafts that follow the output would know them, and which
    address a token is drawn at depends on the drafts.

    Args:
        max_outputs: Most outputs held.
        max_tokens: Most tokens held.
    """

    def __init__(self, max_outputs: int, max_tokens: int = MAX_TOKENS) -> None:
        self.max_outputs = max_outputs
        self.max_tokens = max_tokens
        # places count all tokens ever added; the buffer begins at `_base`
        self._base = self._end = 0
        self._tokens = np.empty(1024, np.int64)
        self._keys = np.empty(1024, np.uint64)
        self._outputs: deque[tuple[int, int]] = deque()
        self._places: dict[int, list[int]] = {}

    def __len__(self) -> int:
        """Outputs held."""
        return len(self._outputs)

    @property
    def num_tokens(self) -> int:
        """Tokens held."""
        return sum(end - begin for begin, end in self._outputs)

    def add(self, key: int, token_ids: list[int]) -> None:
        """Adds an output and drops the oldest ones that have no room any more.

        Args:
            key: Of its request.
            token_ids: Its ids, each below 2^32; of a longer one than `max_tokens` the end is kept.
        """
        ids = np.array(token_ids[-self.max_tokens :], np.int64)
        if len(ids) < 3:
            # nothing follows a pair
            return
        while self._outputs and (
            len(self._outputs) >= self.max_outputs
            or self._end - self._outputs[0][0] + len(ids) > self.max_tokens
        ):
            self._drop_oldest()
        self._reserve(len(ids) + 1)
        begin = self._end
        self._end = begin + len(ids) + 1
        at = slice(begin - self._base, self._end - self._base)
        self._tokens[at] = [*ids.tolist(), PLACEHOLDER_TOKEN_ID]
        self._keys[at] = key
        self._outputs.append((begin, begin + len(ids)))
        for pair, place in zip(_pairs(ids), range(begin + 2, begin + len(ids)), strict=True):
            places = self._places.setdefault(pair, [])
            places.append(place)
            # older ones are never looked at; dropped in bulk, so that the cost a token is constant
            if len(places) > 2 * MAX_PLACES:
                del places[:-MAX_PLACES]

    def find(self, tail: np.ndarray, most: int, key: int) -> tuple[np.ndarray, np.ndarray]:
        """What followed the latest places where the end of a text occurred.

        Args:
            tail: End of the text [D], int64.
            most: K.
            key: Of the request that asks.

        Returns:
            Ids that followed [P, K], PLACEHOLDER_TOKEN_ID past an output's end, and how many
            tokens match before each place [P], at least 2; the latest place first.
        """
        places = None
        if len(tail) > 1:
            places = self._places.get(int(tail[-2]) << 32 | int(tail[-1]))
        if places is None:
            return np.empty((0, most), np.int64), np.empty(0, np.int64)
        ends = np.array(places[: -MAX_PLACES - 1 : -1]) - self._base
        ends = ends[self._keys[ends - 1] != key]
        held = self._tokens[: self._end - self._base]
        at = ends[:, None] + np.arange(most)
        branches = held[np.minimum(at, len(held) - 1)]
        return branches, match_lengths(held, ends, tail)

    def _drop_oldest(self) -> None:
        begin, end = self._outputs.popleft()
        ids = self._tokens[begin - self._base : end - self._base]
        for pair in set(_pairs(ids)):
            places = self._places[pair]
            # places of a pair are in order, so the oldest output's come first
            del places[: bisect_left(places, end)]
            if not places:
                del self._places[pair]

    def _reserve(self, num_more: int) -> None:
        """Makes room for more tokens; what was dropped is overwritten."""
        used = self._end - self._base
        if used + num_more <= len(self._tokens):
            return
        first = self._outputs[0][0] if self._outputs else self._end
        held = slice(first - self._base, used)
        needed = self._end - first + num_more
        size = max(len(self._tokens), 2 * needed)
        for name in ("_tokens", "_keys"):
            old = getattr(self, name)
            grown = np.empty(size, old.dtype)
            grown[: self._end - first] = old[held]
            setattr(self, name, grown)
        self._base = first


def _pairs(ids: np.ndarray) -> list[int]:
    """Each token with the one before it, the last left out: nothing follows it."""
    return (ids[:-2] << 32 | ids[1:-1]).tolist()
