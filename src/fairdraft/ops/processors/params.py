"""What one sequence asks of its rows, all processors together."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fairdraft.ops.processors.bad_words import BadWords


def _nothing() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False, kw_only=True)
class RowParams:
    """Parameters of one sequence, checked once, for `edit_rows`.

    Attributes:
        vocab_size: V.
        allowed_ids: Tokens that may come at all [A], int64; None for every token.
        bias_ids, bias: Tokens [E], each once, and what is added to them, float64.
        min_tokens: Least number of output tokens before an end; 0 is off.
        end_ids: Tokens that end the sequence, int64.
        repetition: Above 0; 1 is off.
        presence, frequency: Finite; 0 is off.
        bad_words: Bad sequences, or None.
        ngram_size: No n-gram of this size twice; 0 is off.

    Raises:
        ValueError: If an id is outside the vocabulary, comes with two biases, or a number is out
            of range.
    """

    vocab_size: int
    allowed_ids: np.ndarray | None = None
    bias_ids: np.ndarray = field(default_factory=_nothing)
    bias: np.ndarray = field(default_factory=_nothing)
    min_tokens: int = 0
    end_ids: np.ndarray = field(default_factory=_nothing)
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    bad_words: BadWords | None = None
    ngram_size: int = 0

    def __post_init__(self) -> None:
        words = self.bad_words
        lists = {"allowed_ids": self.allowed_ids, "bias_ids": self.bias_ids}
        lists |= {"end_ids": self.end_ids}
        if words is not None:
            lists |= {"bad_words": np.concatenate([words.singles, words.last_ids])}
        for name, ids in lists.items():
            if ids is not None and ((ids < 0) | (ids >= self.vocab_size)).any():
                wrong = ids[(ids < 0) | (ids >= self.vocab_size)][0]
                raise ValueError(f"{name} holds {wrong}; ids go from 0 to {self.vocab_size - 1}")
        if len(self.bias) != len(self.bias_ids) or len(np.unique(self.bias_ids)) != len(self.bias):
            raise ValueError(f"{len(self.bias)} biases: give one to each id, and each id once")
        if not (np.isfinite(self.repetition) and self.repetition > 0):
            raise ValueError(f"repetition = {self.repetition} must be above 0; 1 is off")
        for name in ("presence", "frequency"):
            if not np.isfinite(getattr(self, name)):
                raise ValueError(f"{name} = {getattr(self, name)} must be finite; 0 is off")

    @property
    def is_penalized(self) -> bool:
        """Whether tokens of the history are changed."""
        return self.repetition != 1 or self.presence != 0 or self.frequency != 0

    @cached_property
    def allowed_bits(self) -> np.ndarray:
        """Bits of `allowed_ids`, the lowest first [V / 8 rounded up], uint8."""
        is_allowed = np.zeros(self.vocab_size, np.bool_)
        is_allowed[self.allowed_ids] = True
        return np.packbits(is_allowed, bitorder="little")
