"""Where a sequence ends, and which text may be shown before that is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairdraft.engine.detokenize import Detokenizer

#: pads a row's stop ids; no token has this id
NO_TOKEN = -2


def first_stop(
    token_ids: np.ndarray, num_tokens: np.ndarray, stop_ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cuts each row's block just after its first stop token.

    Args:
        token_ids: A round's tokens [B, K + 1].
        num_tokens: How many of them are emitted [B].
        stop_ids: Stop ids of each row [B, S], padded with NO_TOKEN.

    Returns:
        Tokens to keep [B], and whether a stop token is the last of them [B].
    """
    hits = token_ids[:, :, None] == stop_ids[:, None, :]
    # few rounds have any
    if not np.count_nonzero(hits):
        return num_tokens.copy(), np.zeros(len(num_tokens), np.bool_)
    hits = hits.any(axis=2) & (np.arange(token_ids.shape[1]) < num_tokens[:, None])
    is_stopped = hits.any(axis=1)
    return np.where(is_stopped, hits.argmax(axis=1) + 1, num_tokens), is_stopped


def find_stop(text: str, stops: Sequence[str], after: int = 0) -> tuple[int, int] | None:
    """Finds the stop string that completes first; of several that do, the longest.

    Args:
        text: Where to look.
        stops: What for.
        after: Characters in which none may complete, though one may begin there.

    Returns:
        Where it begins and ends, or None. The answer does not depend on token borders.
    """
    best: tuple[int, int] | None = None
    for stop in stops:
        begin = text.find(stop, max(0, after - len(stop) + 1))
        if begin < 0:
            continue
        end = begin + len(stop)
        if best is None or (end, begin) < (best[1], best[0]):
            best = (begin, end)
    return best


def held_length(text: str, stops: Sequence[str]) -> int:
    """How many last characters of `text` may be the beginning of a stop string."""
    longest = max((len(stop) for stop in stops), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        tail = text[-length:]
        if any(stop.startswith(tail) for stop in stops):
            return length
    return 0


class SequenceText:
    """The text of one sequence, token by token, with each piece's source.

    Text that may be the beginning of a stop string is held until it is decided.

    Attributes:
        released: Text that may be shown, as (text, source code) pieces in order.
    """

    def __init__(
        self, detokenizer: Detokenizer, stops: Sequence[str] = (), include_stop: bool = False
    ) -> None:
        self.released: list[tuple[str, int]] = []
        self._detokenizer = detokenizer
        self._stops = stops
        self._include_stop = include_stop
        self._held: list[tuple[str, int]] = []

    def push(self, token_id: int, source: int, *, may_stop: bool = True) -> str | None:
        """Adds a token; returns the stop string that it completes, or None.

        With `may_stop=False` the token completes none, now or later.
        """
        new = self._detokenizer.push(token_id)
        if not new:
            return None
        if not self._stops:
            self.released.append((new, source))
            return None
        num_before = sum(len(piece) for piece, _ in self._held)
        self._held.append((new, source))
        text = "".join(piece for piece, _ in self._held)
        found = find_stop(text, self._stops, num_before) if may_stop else None
        if found is None:
            self._release(len(text) - held_length(text, self._stops))
            return None
        begin, end = found
        self._release(end if self._include_stop else begin)
        self._held.clear()
        return text[begin:end]

    def finish(self) -> None:
        """Releases what was held: the sequence ended, so it begins no stop string."""
        self.released += self._held
        self._held.clear()

    def _release(self, length: int) -> None:
        while length > 0:
            piece, source = self._held[0]
            if len(piece) > length:
                self._held[0] = (piece[length:], source)
                piece = piece[:length]
            else:
                del self._held[0]
            self.released.append((piece, source))
            length -= len(piece)
