"""Prompt lookup: the continuation of the request's own last tokens, seen earlier.

A point mass: a function of the decided tokens, so hypotheses (a) to (c) hold and it may be looked
at. Source: Saxena 2023, prompt lookup decoding.
"""

from __future__ import annotations

import numpy as np

from fairdraft.speculators.points import Rowless, propose_points
from fairdraft.speculators.proposal import DraftState, Proposal


def lookup(token_ids: np.ndarray, num_tokens: int, *, min_ngram: int, max_ngram: int) -> np.ndarray:
    """Continues a sequence as it went on after the last occurrence of its longest suffix.

    Args:
        token_ids: Decided ids [L], int64.
        num_tokens: Tokens to propose, at least 1.
        min_ngram: Shortest suffix that counts as a match.
        max_ngram: Longest suffix that is searched for.

    Returns:
        `num_tokens` ids, or none if no suffix of `min_ngram` tokens occurred before. A match that
        runs into the end goes on through its own copy, so a repeating text keeps repeating.
    """
    length = len(token_ids)
    if length <= min_ngram:
        return token_ids[:0]
    # ends: indexes just past an earlier copy of the suffix
    ends = np.flatnonzero(token_ids[:-1] == token_ids[-1]) + 1
    best = ends[:0]
    for size in range(1, min(max_ngram, length - 1) + 1):
        if size > 1:
            ends = ends[ends >= size]
            ends = ends[token_ids[ends - size] == token_ids[length - size]]
        if not len(ends):
            break
        if size >= min_ngram:
            best = ends
    if not len(best):
        return token_ids[:0]
    end = int(best[-1])
    period = length - end
    return token_ids[end + np.arange(num_tokens) % period]


class NgramSpeculator(Rowless):
    """Proposes what followed the last occurrence of the request's own last tokens.

    It reads nothing but the request's own decided tokens: no other request's text is proposed.
    """

    name = "ngram"

    def __init__(self, num_speculative_tokens: int, min_ngram: int, max_ngram: int) -> None:
        self.num_speculative_tokens = num_speculative_tokens
        self.min_ngram = min_ngram
        self.max_ngram = max_ngram

    def propose(self, state: DraftState) -> Proposal:
        """Looks each row up; a row without a match gets no drafts."""

        def continue_row(row: int, most: int) -> np.ndarray:
            text = state.token_ids[row, : state.num_decided[row]]
            return lookup(text, most, min_ngram=self.min_ngram, max_ngram=self.max_ngram)

        return propose_points(state, continue_row)
