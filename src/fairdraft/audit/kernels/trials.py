"""Runs an experiment's trials under a layout, and traces a few of them.

Axes: C cells of a trial.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fairdraft.audit.kernels.experiment import Experiment
from fairdraft.audit.kernels.naming import names_of
from fairdraft.audit.layouts import Layout
from fairdraft.noise import Trace
from fairdraft.stats.tokens import Source

__all__ = ["NUM_TRACED", "Traced", "Trials", "run_trials", "trace_texts"]

#: texts that the trace looks at; a shared address shows within the first ones
NUM_TRACED = 24
TRACED_TOKENS = 8


@dataclass(frozen=True)
class Trials:
    """What an experiment counted.

    Attributes:
        counts: Trials of each cell, int64 [C].
        num_accepted: Texts whose first draft was accepted.
        num_impossible: Further texts, with a token that has no chance at all; they have no cell.
    """

    counts: np.ndarray
    num_accepted: int
    num_impossible: int = 0

    @property
    def num_trials(self) -> int:
        """Texts decoded."""
        return int(self.counts.sum()) + self.num_impossible


@dataclass(frozen=True)
class Traced:
    """What the address trace found.

    Attributes:
        num_draws: Addresses that were used.
        num_collisions: Uses of an address that had raced something else.
        names: What the collisions are, the most telling first.
    """

    num_draws: int
    num_collisions: int
    names: tuple[str, ...]


def run_trials(experiment: Experiment, layout: Layout, seed: int) -> Trials:
    """Decodes every trial; the layout is in place meanwhile."""
    subject = experiment.subject(seed)
    size = experiment.pair.vocab_size
    counts = np.zeros(size**experiment.num_tokens, np.int64)
    num_accepted = 0
    with layout:
        for first in range(0, experiment.num_trials, experiment.chunk):
            count = min(experiment.chunk, experiment.num_trials - first)
            texts = subject.decode(first, count)
            cells = np.ravel_multi_index(tuple(texts.token.T), (size,) * experiment.num_tokens)
            counts += np.bincount(cells, minlength=len(counts))
            num_accepted += int((texts.source[:, 0] == Source.ACCEPTED).sum())
    return Trials(counts, num_accepted)


def trace_texts(experiment: Experiment, make: Callable[..., Layout], seed: int) -> Traced:
    """Decodes a few texts with a trace; one round each, or eight tokens of several rounds."""
    subject = experiment.subject(seed)
    if experiment.num_tokens > 1:
        subject.length = TRACED_TOKENS
    trace = Trace()
    with make(trace=trace) as layout:
        subject.decode(0, NUM_TRACED, trace)
    return Traced(len(trace), len(trace.collisions), names_of(trace, layout))
