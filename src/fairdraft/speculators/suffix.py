"""Suffix decoding: what most often followed the end of the text, here or in past outputs.

A point mass: a function of decided tokens, so hypotheses (a) to (c) hold and it may be looked at.
No tree is stored. A node of the suffix tree is the set of places where its string ends, and the
few nodes that a round visits are found from the text that the engine holds anyway; so there is
nothing to build for a prompt, to move with a row or to restore after a preemption. Past outputs,
where asked for, are indexed as they end. Source: Oliaro et al. 2024, SuffixDecoding.

Axes: N tokens searched, P places.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from fairdraft.speculators.matching import latest_places, match_lengths
from fairdraft.speculators.past_outputs import PastOutputs
from fairdraft.speculators.points import Rowless, propose_points
from fairdraft.speculators.proposal import DraftState, Proposal


class SuffixSpeculator(Rowless):
    """Follows the most frequent branch of a suffix tree over the text, as far as counts back it.

    For each end of the text that occurred before, up to `max_depth` tokens long, it walks to the
    most frequent next token again and again (ties to the latest), as long as the branch's
    frequency is at least `min_token_prob`, and for at most `max_spec_factor` drafts for each
    token that matched. The walk with the most expected tokens is proposed.
    """

    name = "suffix"

    def __init__(
        self,
        num_speculative_tokens: int,
        *,
        max_depth: int = 24,
        max_spec_factor: float = 1.0,
        min_token_prob: float = 0.1,
        past: PastOutputs | None = None,
    ) -> None:
        """Drafts up to `num_speculative_tokens` a round.

        Args:
            num_speculative_tokens: K.
            max_depth: Longest match, in tokens.
            max_spec_factor: Drafts for each matched token.
            min_token_prob: Least frequency of a branch from where the match ends.
            past: Outputs of ended requests to search as well, or None.
        """
        self.num_speculative_tokens = num_speculative_tokens
        self.max_depth = max_depth
        self.max_spec_factor = max_spec_factor
        self.min_token_prob = min_token_prob
        self.past = past

    def propose(self, state: DraftState) -> Proposal:
        """Walks the tree of each row; a row whose last token is new gets no drafts."""

        def continue_row(row: int, most: int) -> list[int]:
            text = state.token_ids[row, : state.num_decided[row]]
            return self.continue_text(text, most, int(state.sampler.key[row]))

        return propose_points(state, continue_row)

    def continue_text(self, text: np.ndarray, most: int, key: int = 0) -> list[int]:
        """The drafts after a text.

        Args:
            text: Decided ids [N], int64.
            most: Most drafts, at least 1.
            key: Of the request; past outputs under it are not read.
        """
        tail = text[-self.max_depth :]
        ends = np.flatnonzero(text[:-1] == text[-1]) + 1
        path: list[int] = []
        score = 0.0
        if len(ends):
            ends = latest_places(text, ends, tail)
            # a match that runs into the end goes on through its own copy
            at = ends[:, None] + np.arange(most) % (len(text) - ends)[:, None]
            path, score = self._best(text[at], match_lengths(text, ends, tail))
        # a score is at most the number of drafts
        if self.past is not None and score < most:
            branches, lengths = self.past.find(tail, most, key)
            if len(lengths):
                path, score = max((path, score), self._best(branches, lengths), key=_score)
        return path

    def learn_output(self, key: int, token_ids: list[int]) -> None:
        """Keeps the output of a request that ended, if past outputs are searched."""
        if self.past is not None:
            self.past.add(key, token_ids)

    def _best(self, branches: np.ndarray, lengths: np.ndarray) -> tuple[list[int], float]:
        """The walk with the highest score over all lengths of match.

        Args:
            branches: What followed each place [P, K], PLACEHOLDER_TOKEN_ID past an output's end.
            lengths: How many tokens match before each [P].
        """
        rows, matched = branches.tolist(), lengths.tolist()
        best: tuple[list[int], float] = ([], 0.0)
        for length in sorted(set(matched), reverse=True):
            most = min(branches.shape[1], math.floor(self.max_spec_factor * length))
            # a score is at most its number of drafts, and shorter matches may draft less
            if most <= best[1]:
                break
            node = [row for row, n in zip(rows, matched, strict=True) if n >= length]
            best = max(best, self._walk(node, most), key=_score)
        return best

    def _walk(self, rows: list[list[int]], most: int) -> tuple[list[int], float]:
        """Follows the most frequent token; returns it and how many are expected to be right."""
        path: list[int] = []
        probability, score = 1.0, 0.0
        for depth in range(most):
            rows = [row for row in rows if row[depth] >= 0]
            if not rows:
                break
            [(token_id, hits)] = Counter([row[depth] for row in rows]).most_common(1)
            if hits < len(rows):
                probability *= hits / len(rows)
                rows = [row for row in rows if row[depth] == token_id]
            if probability < self.min_token_prob:
                break
            path.append(token_id)
            score += probability
        return path, score


def _score(walk: tuple[list[int], float]) -> float:
    return walk[1]
