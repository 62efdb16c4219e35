"""Predicted outputs: drafts follow a text that the caller expects, from where the output is in it.

A point mass: a function of the decided tokens and of what the request brought, so hypotheses (a)
to (c) hold and it may be looked at. The prediction must not come from draws under the request's
own noise key; replaying a key with its own output as prediction is no fresh sample.

Axes: N tokens of the prediction, L of the output.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairdraft.speculators.matching import match_lengths
from fairdraft.speculators.points import propose_points
from fairdraft.speculators.proposal import DraftState, Proposal

#: tokens of the output that a lost place is searched by
MAX_MATCH = 16
#: a single equal token finds the place again only this near to where it should be
NEAR = 32


class PredictionCursor:
    """Where an output is in its prediction; a function of the output's tokens, read one by one.

    Attributes:
        prediction: Ids [N].
        place: Index of the token that should come next, or None while the output goes its own way.
        is_found: Which tokens of the prediction appeared in the output, in step with it [N].
    """

    def __init__(self, prediction: Sequence[int]) -> None:
        self.prediction = np.array(prediction, np.int64)
        self.place: int | None = 0
        self.is_found = np.zeros(len(self.prediction), bool)
        self._expected = 0
        self._num_read = 0

    def read(self, output: np.ndarray) -> None:
        """Reads what the output holds beyond what was read before.

        Args:
            output: All decided ids of the output [L], int64.
        """
        for end in range(self._num_read + 1, len(output) + 1):
            self._expected += 1
            place = self.place
            if (
                place is not None
                and place < len(self.prediction)
                and self.prediction[place] == output[end - 1]
            ):
                self.is_found[place] = True
                self.place = self._expected = place + 1
            else:
                self._search(output[max(end - MAX_MATCH, 0) : end])
        self._num_read = max(self._num_read, len(output))

    def drafts(self, most: int) -> np.ndarray:
        """The next tokens of the prediction, none while the place is lost."""
        if self.place is None:
            return self.prediction[:0]
        return self.prediction[self.place : self.place + most]

    def _search(self, tail: np.ndarray) -> None:
        """Goes to the place with the longest match; of equal ones to the nearest."""
        self.place = None
        ends = np.flatnonzero(self.prediction == tail[-1]) + 1
        if not len(ends):
            return
        lengths = match_lengths(self.prediction, ends, tail)
        longest = int(lengths.max())
        ends = ends[lengths == longest]
        distance = np.abs(ends - self._expected)
        end = int(ends[distance.argmin()])
        if longest > 1 or distance.min() <= NEAR:
            self.place = self._expected = end
            self.is_found[end - longest : end] = True


def count_found(prediction: Sequence[int], output: Sequence[int]) -> int:
    """Tokens of a prediction that appear in an output, in step with it."""
    cursor = PredictionCursor(prediction)
    cursor.read(np.array(output, np.int64))
    return int(cursor.is_found.sum())


class PredictionSpeculator:
    """Proposes what the request's prediction says next; a request without one gets no drafts."""

    name = "prediction"

    def __init__(self, num_speculative_tokens: int) -> None:
        self.num_speculative_tokens = num_speculative_tokens
        self._cursors: dict[int, tuple[PredictionCursor, int]] = {}

    def propose(self, state: DraftState) -> Proposal:
        """Reads what was decided since the last round, and drafts from there."""

        def continue_row(row: int, most: int) -> Sequence[int] | np.ndarray:
            if row not in self._cursors:
                return ()
            cursor, prompt_length = self._cursors[row]
            cursor.read(state.token_ids[row, prompt_length : state.num_decided[row]])
            return cursor.drafts(most)

        return propose_points(state, continue_row)

    def begin_request(self, row: int, prompt_length: int, prediction: Sequence[int] | None) -> None:
        """Starts at the beginning; an output that came before a preemption is read again."""
        if prediction is not None:
            self._cursors[row] = PredictionCursor(prediction), prompt_length

    def commit(self, num_accepted_tokens: np.ndarray) -> None:
        """Does nothing: the next round reads what was decided."""

    def admit_row(self, row: int) -> None:
        """Does nothing: `begin_request` follows."""

    def move_row(self, source: int, destination: int) -> None:
        """Moves the row's place."""
        self._cursors.pop(destination, None)
        if source in self._cursors:
            self._cursors[destination] = self._cursors.pop(source)

    def drop_row(self, row: int) -> None:
        """Forgets the row."""
        self._cursors.pop(row, None)
