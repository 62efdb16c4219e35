"""A subject without a model: laws and tokens from a seeded generator, right or wrong at will.

Axes: N tokens of a batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fairdraft.audit.subject import Batch, SubjectInfo
from fairdraft.stats.tokens import ScoredTokens, Source

VOCAB_SIZE = 8


@dataclass
class Scripted:
    """Draws every token from its target, moved towards the likeliest id by `bias`.

    Attributes:
        bias: Probability that a token is the likeliest id whatever the law says.
        changes: Fields of its `SubjectInfo` that differ.
        control: The A/A run, if it is rescored.
        num_batches: Batches until it ends; None for never.
        interrupt_at: Batch in the middle of which Ctrl-C comes.
        made: Cursors of the batches that were made.
    """

    bias: float = 0.0
    changes: dict[str, Any] = field(default_factory=dict)
    control: Any = None
    num_batches: int | None = None
    interrupt_at: int | None = None
    texts_per_batch: int = 16
    length: int = 8
    made: list[int] = field(default_factory=list)

    @property
    def info(self) -> SubjectInfo:
        """What is recorded."""
        info = SubjectInfo("scripted", "a script", {"temperature": 1.0}, is_speculative=False)
        return replace(info, **self.changes)

    def batches(self, cursor: Any = None) -> Iterator[Batch]:
        """Yields batches; the cursor is the number of batches before."""
        number = 0 if cursor is None else int(cursor)
        while self.num_batches is None or number < self.num_batches:
            if number == self.interrupt_at:
                raise KeyboardInterrupt
            self.made.append(number)
            tokens = scripted_tokens(number, self.texts_per_batch, self.length, self.bias)
            number += 1
            yield Batch(tokens, number, (f"batch {number}",) if number == 1 else ())


def scripted_tokens(
    number: int, num_texts: int = 16, length: int = 8, bias: float = 0.0
) -> ScoredTokens:
    """Tokens of one batch, the same for the same number."""
    generator = np.random.default_rng(number)
    count = num_texts * length
    target = generator.dirichlet(np.ones(VOCAB_SIZE), count)
    column = (target.cumsum(1) < generator.random((count, 1))).sum(1).clip(max=VOCAB_SIZE - 1)
    is_moved = generator.random(count) < bias
    column = np.where(is_moved, target.argmax(1), column)
    return ScoredTokens(
        column=column,
        target=target,
        ids=None,
        draft=None,
        text=np.repeat(np.arange(num_texts) + number * num_texts, length),
        position=np.tile(np.arange(length), num_texts),
        slot=np.zeros(count, np.int64),
        source=np.full(count, Source.PLAIN, np.int8),
        drafted=np.full(count, -1),
        previous=np.full((count, 2), -1),
    )
