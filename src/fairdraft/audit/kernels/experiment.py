"""An experiment: laws of target and draft, a way to decode, and what its trials can show.

A trial is the first few tokens of one text; its cell is all of them together. Trials are
independent and their law is known exactly. Axes: V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairdraft.audit.subjects.markov import Decoding, MarkovPair
from fairdraft.audit.subjects.toy import PROMPT, ToySubject
from fairdraft.stats import Partition

__all__ = ["Experiment"]


@dataclass(frozen=True)
class Experiment:
    """What is decoded, how often, and what its PASS claims.

    Attributes:
        title: What is decoded, for people.
        published: The figures that public reports give for it, or a reason of ours.
        pair: Laws of target and draft.
        decoding: Drafts a round, temperature, rule and sampler.
        num_trials: Independent texts.
        eps: PASS claims that the cells are within this total variation of their law.
        num_tokens: Tokens of a trial; later ones are decoded but not read.
        num_groups: Cells are grouped by q / p into so many of equal mass; None: each is one.
        chunk: Trials decoded in step.
    """

    title: str
    published: str
    pair: MarkovPair
    decoding: Decoding
    num_trials: int
    eps: float
    num_tokens: int = 1
    num_groups: int | None = None
    chunk: int = 8192

    def subject(self, seed: int) -> ToySubject:
        """The decoder; trial i has the key seed + i."""
        return ToySubject(
            self.pair,
            self.decoding,
            length=self.num_tokens,
            seed=seed,
            has_plain_keys=True,
            name=self.title,
        )

    @cached_property
    def first_law(self) -> np.ndarray:
        """The law of a trial's first token, float64 [V]."""
        return _row(self.pair.target_law(self.decoding))

    @cached_property
    def draft_law(self) -> np.ndarray:
        """The law that the first draft is drawn from, or whose best token it is, float64 [V]."""
        decoding = self.decoding if self.decoding.temperature > 0 else Decoding(0)
        return _row(self.pair.draft_law(decoding))

    @cached_property
    def law(self) -> np.ndarray:
        """The law of a trial, float64 [V ** num_tokens]."""
        table = self.pair.target_law(self.decoding)
        size = self.pair.vocab_size
        table = np.broadcast_to(table, (size, size))
        joint = self.first_law
        for _ in range(self.num_tokens - 1):
            last = np.arange(len(joint)) % size
            joint = (joint[:, None] * table[last]).reshape(-1)
        return joint

    @cached_property
    def partition(self) -> Partition | None:
        """The grouping of cells, declared before the trials."""
        if self.num_groups is None:
            return None
        return Partition.by_score(
            self.law, np.log(self.draft_law / self.first_law), num_groups=self.num_groups
        )

    @cached_property
    def tested_law(self) -> np.ndarray:
        """The law of the tested cells, grouped if there is a partition."""
        return self.law if self.partition is None else self.partition.apply(self.law)

    @property
    def is_exact(self) -> bool:
        """Whether a single text is possible, so that any other one decides."""
        return bool((self.tested_law > 0).sum() == 1)

    @property
    def acceptance(self) -> float | None:
        """The chance that a text's first draft is accepted; None if there is none or a block's."""
        p, q = self.first_law, self.draft_law
        if self.decoding.rule == "block" or not self.decoding.num_drafts:
            return None
        if self.decoding.is_greedy or self.decoding.temperature == 0:
            return float(p[q.argmax()])
        return float(np.minimum(p, q).sum())

    @property
    def cost(self) -> float:
        """About how long the trials take, in an arbitrary unit; for the time left."""
        rows = (self.decoding.num_drafts + 1) * (1 + 0.5 * (self.num_tokens - 1))
        return self.num_trials * rows * (40 + self.pair.vocab_size)


def _row(table: np.ndarray) -> np.ndarray:
    return table[PROMPT[-1] if len(table) > 1 else 0]
