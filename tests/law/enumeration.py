"""Exact enumeration of a verification rule: weights in, law out, no noise.

Every path of drafts is one row of one `verify_chain` call; its decision weights and the chance of
the path give the law of the first K + 1 tokens. Axes: R paths, K drafts, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from fairdraft import ops
from fairdraft.ops import SparseLogits, rules
from fairdraft.ops.dispatch import Impl
from tests.law.tables import History, Tables

Stop = Callable[[Tables, History], int]
Form = Literal["dense", "sparse", "none"]


def whole(tables: Tables, x: History) -> int:
    """Every draft is present."""
    return tables.depth


@dataclass(frozen=True)
class Experiment:
    """One drafter on one target.

    Attributes:
        tables: Their laws.
        stop: How many drafts of a path are present.
        follow: Token that a deterministic drafter proposes after a history; None samples from q.
        is_declared: Whether a deterministic drafter is declared as the point mass that it is.
        forbidden: Draft marked as forbidden wherever it is proposed; what follows it is junk.
        has_placeholder: Absent drafts are marked by -1 in place of a smaller count.
        claimed_draft_temperature: What the verifier is told; None for the truth.
    """

    tables: Tables
    stop: Stop = whole
    follow: Callable[[History], int] | None = None
    is_declared: bool = True
    forbidden: int | None = None
    has_placeholder: bool = False
    claimed_draft_temperature: float | None = None

    @property
    def is_point_mass(self) -> bool:
        return self.follow is not None and self.is_declared

    def paths(self) -> list[tuple[History, float]]:
        """Every path of K drafts and its chance."""
        if self.follow is not None:
            x: History = ()
            for _ in range(self.tables.depth):
                x = (*x, self.follow(x))
            return [(x, 1.0)]
        ids = range(self.tables.vocab_size)
        paths = list(itertools.product(ids, repeat=self.tables.depth))
        chances = [
            float(np.prod([self.tables.q[x[:i]][x[i]] for i in range(len(x))])) for x in paths
        ]
        return [(x, w) for x, w in zip(paths, chances, strict=True) if w > 0]


@dataclass
class Weights:
    """Paths [R, K], their chances and present drafts [R], and the rule's weights."""

    paths: list[History]
    chance: np.ndarray
    count: np.ndarray
    accept: np.ndarray
    next_law: np.ndarray


def emitted_law(weights: Weights, tables: Tables) -> np.ndarray:
    """Law of the first K + 1 tokens [V, ..., V]; past the round the target itself continues."""
    length, vocab_size = tables.depth + 1, tables.vocab_size
    law = np.zeros((vocab_size,) * length)

    def fill(prefix: History, chance: float) -> None:
        if chance == 0 or len(prefix) == length:
            law[prefix] += chance
            return
        for y in range(vocab_size):
            if tables.p[prefix][y] > 0:
                fill((*prefix, y), chance * tables.p[prefix][y])

    for x, chance, count, accept, next_law in zip(
        weights.paths, weights.chance, weights.count, weights.accept, weights.next_law, strict=True
    ):
        alive = float(chance)
        for r in range(int(count) + 1):
            ends = alive if r == count else alive * (1 - accept[r])
            # rows after a certain rejection are not read: they may be junk
            if ends > 0:
                for y in np.flatnonzero(next_law[r]):
                    fill((*x[:r], int(y)), ends * next_law[r, y])
            if r < count:
                alive *= accept[r]
            if alive == 0:
                break
    return law


def weights_by_formulas(experiment: Experiment) -> Weights:
    """Weights from `ops.rules` on float64 laws."""
    tables = experiment.tables
    paths, chances = zip(*experiment.paths(), strict=True)
    shape = (len(paths), tables.depth, tables.vocab_size)
    count = np.array([experiment.stop(tables, x) for x in paths])
    accept = np.full(shape[:2], np.nan)
    next_law = np.full((shape[0], shape[1] + 1, shape[2]), np.nan)
    for row, x in enumerate(paths):
        for r in range(count[row] + 1):
            p = tables.p[x[:r]]
            if r == count[row]:
                next_law[row, r] = p
                break
            q = np.eye(shape[2])[x[r]] if experiment.is_point_mass else tables.q[x[:r]]
            accept[row, r] = rules.accept_probability(float(p[x[r]]), float(q[x[r]]))
            replaced = rules.replacement(p, q)
            next_law[row, r] = replaced / replaced.sum()
            if x[r] == experiment.forbidden:
                break
    return Weights(list(paths), np.array(chances), count, accept, next_law)


def weights_of(experiments: Sequence[Experiment], *, impl: Impl, form: Form) -> list[Weights]:
    """Weights of the production path; all experiments are rows of one `verify_chain` call.

    Rows and drafts that must not be read are filled with NaN and huge ids.
    """
    depth = experiments[0].tables.depth
    vocab_size = experiments[0].tables.vocab_size
    found = [experiment.paths() for experiment in experiments]
    rows = [(e, x) for e, pairs in zip(experiments, found, strict=True) for x, _ in pairs]
    total = len(rows)
    target = np.full((total, depth + 1, vocab_size), np.nan, np.float32)
    draft = np.full((total, depth, vocab_size), np.nan, np.float32)
    token_ids = np.full((total, depth), 1 << 40)
    forbidden = np.zeros((total, depth), bool)
    count, given = np.zeros(total, np.int64), np.zeros(total, np.int64)
    for b, (experiment, x) in enumerate(rows):
        _fill_row(experiment, x, target[b], draft[b], token_ids[b], forbidden[b])
        count[b] = given[b] = experiment.stop(experiment.tables, x)
        if experiment.has_placeholder and count[b] < depth:
            token_ids[b, count[b] :], given[b] = -1, depth
    verdict = ops.verify_chain(
        torch.from_numpy(target),
        torch.from_numpy(token_ids),
        torch.from_numpy(given),
        draft_logits=_draft_law(draft, form),
        key=np.arange(total, dtype=np.uint64),
        anchor=7,
        temperature=np.array([e.tables.temperature for e, _ in rows]),
        draft_temperature=np.array([_claimed(e) for e, _ in rows]),
        point_mass=torch.tensor([e.is_point_mass for e, _ in rows]),
        forbidden=torch.from_numpy(forbidden),
        return_weights=True,
        impl=impl,
    )
    assert verdict.weights is not None
    accept = verdict.weights.accept_probability.numpy()
    next_law = verdict.weights.next_law.numpy()
    result, begin = [], 0
    for pairs in found:
        at = slice(begin, begin + len(pairs))
        begin += len(pairs)
        paths, chances = zip(*pairs, strict=True)
        result.append(Weights(list(paths), np.array(chances), count[at], accept[at], next_law[at]))
    return result


def _claimed(experiment: Experiment) -> float:
    claimed = experiment.claimed_draft_temperature
    return experiment.tables.draft_temperature if claimed is None else claimed


def _fill_row(experiment: Experiment, x: History, target, draft, token_ids, forbidden) -> None:
    tables = experiment.tables
    count = experiment.stop(tables, x)
    for r in range(count + 1):
        target[r] = tables.target_logits[x[:r]]
        if r == count:
            return
        token_ids[r] = x[r]
        if not experiment.is_point_mass:
            draft[r] = tables.draft_logits[x[:r]]
        if x[r] == experiment.forbidden or x[r] >= tables.vocab_size:
            forbidden[r] = x[r] == experiment.forbidden
            return


def _draft_law(draft: np.ndarray, form: Form) -> torch.Tensor | SparseLogits | None:
    if form == "none":
        return None
    if form == "dense":
        return torch.from_numpy(draft)
    # candidates in another order than the ids, one of them padding
    vocab_size = draft.shape[-1]
    order = np.roll(np.arange(vocab_size), 1)[::-1]
    ids = np.broadcast_to(np.append(order, -1), (*draft.shape[:2], vocab_size + 1)).copy()
    logits = np.concatenate([draft[..., order], np.full_like(draft[..., :1], 9.0)], axis=-1)
    is_left_out = np.isneginf(logits)
    ids[is_left_out], logits[is_left_out] = -1, 7.0
    return SparseLogits(torch.from_numpy(ids), torch.from_numpy(logits))
