"""Adversarial laws, and target and draft laws that depend on the whole history.

p is the target's law and q the draft's. Axes: V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

History = tuple[int, ...]
Rows = dict[History, np.ndarray]

#: at this temperature c = log2(e) / T is 1.0, so integer logits give weights that are powers of two
BASE_TWO = float(np.log2(np.e))

P4 = np.array([0.4, 0.3, 0.2, 0.1])
Q4 = P4[::-1].copy()
P8 = np.array([0.30, 0.20, 0.15, 0.10, 0.10, 0.05, 0.05, 0.05])
Q8 = P8[::-1].copy()


def softmax(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Float64 law of logits [..., V]; greedy (ties to the lowest id) at temperature 0."""
    values = np.asarray(logits, np.float64)
    if temperature == 0:
        return np.eye(values.shape[-1])[values.argmax(-1)]
    weights = np.exp((values - values.max(-1, keepdims=True)) / temperature)
    return weights / weights.sum(-1, keepdims=True)


def log(law: np.ndarray) -> np.ndarray:
    """Float32 logits of a law, -inf where it is 0."""
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(law, np.float64)).astype(np.float32)


def opposed(vocab_size: int = 16, gap: float = 0.35) -> tuple[np.ndarray, np.ndarray]:
    """Target falls from id to id, draft = -target: most trials reach the residual."""
    logits = gap * (np.arange(vocab_size - 1, -1, -1) - (vocab_size - 1) / 2)
    return softmax(logits), softmax(-logits)


def markov(
    vocab_size: int, seed: int, p: np.ndarray, q: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Tables [V, V] by the last token: p and q carried around by one random permutation a row."""
    generator = np.random.default_rng(seed)
    orders = [generator.permutation(vocab_size) for _ in range(vocab_size)]
    return np.stack([p[order] for order in orders]), np.stack([q[order] for order in orders])


def histories(vocab_size: int, depth: int) -> list[History]:
    """Every history of at most `depth` tokens, shorter ones first."""
    return [h for n in range(depth + 1) for h in itertools.product(range(vocab_size), repeat=n)]


@dataclass(frozen=True)
class Tables:
    """Target and draft of one request, as logits by history, with their exact laws.

    Attributes:
        vocab_size: V.
        depth: Longest history with an entry; also the number of drafts, K.
        target_logits, draft_logits: History to logits [V].
        p, q: History to law [V], float64.
        temperature, draft_temperature: What turns the logits into these laws.
    """

    vocab_size: int
    depth: int
    target_logits: Rows
    draft_logits: Rows
    p: Rows
    q: Rows
    temperature: float = 1.0
    draft_temperature: float = 1.0

    def target_joint(self) -> np.ndarray:
        """The target's law of the first depth + 1 tokens [V, ..., V]."""
        return joint_law(self.p.__getitem__, self.vocab_size, self.depth + 1)

    def greedy(self) -> Tables:
        """The same logits at temperature 0."""
        p = {h: softmax(row, 0) for h, row in self.target_logits.items()}
        return replace(self, p=p, temperature=0.0)


def joint_law(law: Callable[[History], np.ndarray], vocab_size: int, length: int) -> np.ndarray:
    """Law of the first `length` tokens [V, ..., V] from the law after each history."""
    joint = np.ones(())
    for depth in range(length):
        rows = [law(h) for h in itertools.product(range(vocab_size), repeat=depth)]
        joint = joint[..., None] * np.reshape(rows, (*(vocab_size,) * depth, vocab_size))
    return joint


def integer_tables(
    vocab_size: int,
    depth: int,
    seed: int,
    *,
    banned: int | None = None,
    undrafted: int | None = None,
    draft_halving: bool = False,
) -> Tables:
    """Integer logits at temperature log2(e): weights are powers of two, exactly.

    Args:
        vocab_size: V.
        depth: K.
        seed: Of the tables.
        banned: A token with p = 0 everywhere.
        undrafted: A token with q = 0 everywhere.
        draft_halving: Drafts are sampled at half the temperature (c = 2).
    """
    generator = np.random.default_rng(seed)
    target, draft, p, q = {}, {}, {}, {}
    power = 2 if draft_halving else 1
    for h in histories(vocab_size, depth):
        rows = generator.integers(0, 5, size=(2, vocab_size)).astype(np.float64)
        if banned is not None:
            rows[0, banned] = -np.inf
        if undrafted is not None:
            rows[1, undrafted] = -np.inf
        target[h], draft[h] = rows
        p[h] = 2.0 ** rows[0] / (2.0 ** rows[0]).sum()
        q[h] = 2.0 ** (power * rows[1]) / (2.0 ** (power * rows[1])).sum()
    return Tables(vocab_size, depth, target, draft, p, q, BASE_TWO, BASE_TWO / power)


def dirichlet_tables(vocab_size: int, depth: int, seed: int, banned: int | None = None) -> Tables:
    """Laws drawn uniformly from the simplex, with their logarithms as logits."""
    generator = np.random.default_rng(seed)
    p, q = {}, {}
    for h in histories(vocab_size, depth):
        p[h] = generator.dirichlet(np.ones(vocab_size))
        q[h] = generator.dirichlet(np.ones(vocab_size))
        if banned is not None:
            p[h][banned] = 0.0
            p[h] /= p[h].sum()
    target = {h: log(row) for h, row in p.items()}
    draft = {h: log(row) for h, row in q.items()}
    return Tables(vocab_size, depth, target, draft, p, q)
