"""A simulated decoder for the auditor's own error rates: many texts in step, in plain NumPy.

It knows the laws it should follow and, on demand, one planted fault. Nothing of `ops` is used, so
an error there cannot hide one here. Axes: B texts in step, L tokens a text, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fairdraft.stats.tokens import NO_TOKEN, ScoredTokens, Source
from fairdraft.stats.view import View

__all__ = ["RULES", "Pair", "Simulated", "direct", "heated", "simulate", "tilted"]


@dataclass(frozen=True)
class Pair:
    """Transition tables: row c is the law of the token after c.

    Attributes:
        target: float64 [V, V].
        draft: float64 [V, V].
    """

    target: np.ndarray
    draft: np.ndarray

    @classmethod
    def random(cls, vocab_size: int, *, seed: int, noise: float = 0.7) -> Pair:
        """Logits of standard deviation 1.5, and a draft's that are off by `noise`."""
        generator = np.random.default_rng(seed)
        logits = 1.5 * generator.standard_normal((vocab_size, vocab_size))
        others = logits + noise * generator.standard_normal(logits.shape)
        return cls(_softmax(logits), _softmax(others))


@dataclass(frozen=True)
class Simulated:
    """Texts [B, L] as they were decided.

    Attributes:
        first: int64 [B], the token before each text.
        token: int64 [B, L].
        slot: int64 [B, L].
        source: int8 [B, L].
        drafted: int64 [B, L], -1 where none was tested.
    """

    first: np.ndarray
    token: np.ndarray
    slot: np.ndarray
    source: np.ndarray
    drafted: np.ndarray

    def take(self, rows: slice) -> Simulated:
        """Some of the texts."""
        return Simulated(
            self.first[rows],
            self.token[rows],
            self.slot[rows],
            self.source[rows],
            self.drafted[rows],
        )

    def scored(self, pair: Pair, text: int = 0, dtype: type = np.float64) -> ScoredTokens:
        """Scores the texts with tables, numbered from `text` on."""
        num_texts, length = self.token.shape
        before = np.concatenate([self.first[:, None], self.token[:, :-1]], axis=1)
        second = np.full_like(before, NO_TOKEN)
        second[:, 1:] = before[:, :-1]
        draft = pair.draft[before.ravel()].astype(dtype)
        draft[self.drafted.ravel() < 0] = np.nan
        return ScoredTokens(
            column=self.token.ravel(),
            target=pair.target[before.ravel()].astype(dtype),
            ids=None,
            draft=draft,
            text=np.repeat(np.arange(text, text + num_texts), length),
            position=np.tile(np.arange(length), num_texts),
            slot=self.slot.ravel(),
            source=self.source.ravel(),
            drafted=self.drafted.ravel(),
            previous=np.stack([before.ravel(), second.ravel()], axis=1),
        )


Emit = Callable[
    [np.ndarray, np.ndarray, np.random.Generator], "tuple[np.ndarray, np.ndarray, np.ndarray]"
]


def token_rule(
    p: np.ndarray, q: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tests a draft: (token [B], whether it was accepted [B], the draft [B]); p, q [B, V]."""
    drafted = _draw(q, generator)
    accepted = _accept(_at(p, drafted), _at(q, drafted), generator)
    token = np.where(accepted, drafted, _draw(_residual(p, q), generator))
    return token, accepted, drafted


def shared_noise(
    p: np.ndarray, q: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The fault: the residual is raced with the noise that drew the draft (flat Gumbel)."""
    noise = generator.exponential(size=p.shape)
    with np.errstate(divide="ignore"):
        drafted = (noise / q).argmin(axis=1)
        replaced = (noise / _residual(p, q)).argmin(axis=1)
    accepted = _accept(_at(p, drafted), _at(q, drafted), generator)
    return np.where(accepted, drafted, replaced), accepted, drafted


def swapped_test(
    p: np.ndarray, q: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The fault: drafts are accepted with probability q / p."""
    drafted = _draw(q, generator)
    accepted = _accept(_at(q, drafted), _at(p, drafted), generator)
    token = np.where(accepted, drafted, _draw(_residual(p, q), generator))
    return token, accepted, drafted


def direct(
    p: np.ndarray, q: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """No test at all: the token follows p, and is called accepted at random."""
    token = _draw(p, generator)
    return token, generator.random(len(p)) < 0.8, token


#: name to rule; the first is right
RULES: dict[str, Emit] = {
    "token rule": token_rule,
    "shared noise": shared_noise,
    "swapped test": swapped_test,
}


def simulate(
    pair: Pair,
    *,
    num_texts: int,
    length: int,
    num_drafts: int,
    generator: np.random.Generator,
    rule: Emit = token_rule,
) -> Simulated:
    """Decodes texts in rounds of `num_drafts` drafts and a bonus token.

    Args:
        pair: Tables that the decoder follows.
        num_texts: B.
        length: L.
        num_drafts: K; 0 decodes plainly.
        generator: Source of every draw.
        rule: How a draft is tested.
    """
    vocab_size = len(pair.target)
    first = generator.integers(vocab_size, size=num_texts)
    shape = (num_texts, length)
    done = Simulated(
        first,
        np.empty(shape, np.int64),
        np.zeros(shape, np.int64),
        np.full(shape, Source.PLAIN, np.int8),
        np.full(shape, -1, np.int64),
    )
    before, slot = first, np.zeros(num_texts, np.int64)
    for at in range(length):
        p = pair.target[before]
        token = np.empty(num_texts, np.int64)
        tested = slot < num_drafts
        ends = ~tested
        token[ends] = _draw(p[ends], generator)
        if tested.any():
            found, accepted, drafted = rule(p[tested], pair.draft[before[tested]], generator)
            token[tested] = found
            done.drafted[tested, at] = drafted
            done.source[tested, at] = np.where(accepted, Source.ACCEPTED, Source.REPLACED)
            ends = ends.copy()
            ends[tested] = ~accepted
        if num_drafts:
            done.source[~tested, at] = Source.BONUS
        done.token[:, at], done.slot[:, at] = token, slot
        slot = np.where(ends, 0, slot + 1)
        before = token
    return done


def heated(pair: Pair, factor: float) -> Pair:
    """The target at `factor` times the temperature."""
    warm = pair.target ** (1.0 / factor)
    return replace(pair, target=warm / warm.sum(axis=1, keepdims=True))


def tilted(pair: Pair, gaining: tuple[int, ...], shift: float) -> Pair:
    """The target with `shift` of its mass moved into some q/p octiles from all others."""
    cell = View(_one_each(pair)).octiles
    assert cell is not None
    gains = np.isin(cell.cell, gaining)
    above = (pair.target * gains).sum(axis=1, keepdims=True)
    factor = np.where(gains, 1.0 + shift / above, 1.0 - shift / (1.0 - above))
    assert (factor > 0.0).all(), "an octile set is lighter than the shift"
    return replace(pair, target=pair.target * factor)


def _one_each(pair: Pair) -> ScoredTokens:
    """One token after each context, for the cells of the tables."""
    zero = np.zeros(len(pair.target), np.int64)
    return ScoredTokens(
        column=zero,
        target=pair.target,
        ids=None,
        draft=pair.draft,
        text=zero,
        position=np.arange(len(zero)),
        slot=zero,
        source=zero.astype(np.int8),
        drafted=zero,
        previous=np.stack([zero, zero], axis=1),
    )


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def _at(law: np.ndarray, column: np.ndarray) -> np.ndarray:
    return law[np.arange(len(column)), column]


def _draw(law: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """One column a row; the weights need not sum to 1."""
    total = np.cumsum(law, axis=1)
    goal = generator.random(len(law)) * total[:, -1]
    return np.minimum((total <= goal[:, None]).sum(axis=1), law.shape[1] - 1)


def _accept(
    numerator: np.ndarray, denominator: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    return generator.random(len(numerator)) * denominator < numerator


def _residual(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return np.maximum(p - q, 0.0)
