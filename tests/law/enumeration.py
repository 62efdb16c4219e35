"""Exact enumeration of a verification rule: weights in, law out, no noise.

Every path of drafts is one row of one `verify_chain` call; its decision weights and the chance of
the path give the law of the first K + 1 tokens. Axes: R paths, K drafts, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from fairdraft import ops
from fairdraft.ops import LossyRule, SparseLogits, rules
from fairdraft.ops.dispatch import Impl
from fairdraft.ops.verify import Rule
from tests.law.tables import History, Tables, softmax

#: what sums of float64 may lose
EXACT = 1e-12
#: drafts a path
K = 3

Stop = Callable[[Tables, History], int]
#: changes rows of target logits [R, K + 1, V], given the drafts [R, K] and how many are present [R]
Process = Callable[[torch.Tensor, np.ndarray, np.ndarray], torch.Tensor]
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
    """Paths [R, K], their chances [R], and the rule's weights.

    Attributes:
        end: Chance that a walk ends at each row, given its path [R, K + 1].
        next_law: Law of the token emitted there [R, K + 1, V]; rows that end nothing may be junk.
    """

    paths: list[History]
    chance: np.ndarray
    end: np.ndarray
    next_law: np.ndarray

    def mean_accepted(self) -> float:
        """Drafts that stand, on average."""
        return float(self.chance @ self.end @ np.arange(self.end.shape[1]))


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

    for x, chance, end, next_law in zip(
        weights.paths, weights.chance, weights.end, weights.next_law, strict=True
    ):
        for r in np.flatnonzero(end):
            for y in np.flatnonzero(next_law[r]):
                fill((*x[:r], int(y)), chance * end[r] * next_law[r, y])
    return law


def distance(law: np.ndarray, other: np.ndarray) -> float:
    """Total variation."""
    return 0.5 * float(np.abs(law - other).sum())


def error_of(weights: Weights, tables: Tables) -> float:
    """Total variation from the target's law of what the weights emit."""
    return distance(emitted_law(weights, tables), tables.target_joint())


def assert_exact(experiments: Sequence[Experiment], *, impl: Impl, form: Form, rule: Rule) -> None:
    """Every experiment, as rows of one call, emits the target's law."""
    for experiment, weights in zip(
        experiments, weights_of(experiments, impl=impl, form=form, rule=rule), strict=True
    ):
        np.testing.assert_allclose(weights.end.sum(1), 1, rtol=EXACT)
        assert error_of(weights, experiment.tables) < EXACT, experiment


def deterministic(vocab_size: int, seed: int) -> Callable[[History], int]:
    """A drafter that is a function of the history."""
    generator = np.random.default_rng(seed)
    proposed = generator.integers(0, vocab_size, size=(K, *(vocab_size,) * K))
    return lambda h: int(proposed[(len(h), *h, *(0,) * (K - len(h)))])


def half_deterministic(tables: Tables) -> Tables:
    """The drafter has one candidate after an even number of tokens, and all after an odd."""
    draft = {h: row.copy() for h, row in tables.draft_logits.items()}
    for h, row in draft.items():
        if len(h) % 2 == 0:
            row[np.arange(len(row)) != row.argmax()] = -np.inf
    q = {h: softmax(row, tables.draft_temperature) for h, row in draft.items()}
    return replace(tables, draft_logits=draft, q=q)


def weights_by_formulas(experiment: Experiment, rule: Rule) -> Weights:
    """Weights from `ops.rules` on float64 laws; point masses as one-hot q."""
    tables = experiment.tables
    paths, chances = zip(*experiment.paths(), strict=True)
    shape = (len(paths), tables.depth, tables.vocab_size)
    accept = np.zeros(shape[:2])
    next_law = np.full((shape[0], shape[1] + 1, shape[2]), np.nan)
    fill = _fill_token if rule == "token" else _fill_block
    for row, x in enumerate(paths):
        fill(experiment, x, accept[row], next_law[row])
    ends = rules.ends_by_first_failure if rule == "token" else rules.ends_by_last_pass
    return Weights(list(paths), np.array(chances), ends(accept), next_law)


def _fill_token(experiment: Experiment, x: History, accept, next_law) -> None:
    tables, count = experiment.tables, experiment.stop(experiment.tables, x)
    for r in range(count + 1):
        p = tables.p[x[:r]]
        if r == count:
            next_law[r] = p
            return
        q = np.eye(len(p))[x[r]] if experiment.is_point_mass else tables.q[x[:r]]
        accept[r] = rules.accept_probability(float(p[x[r]]), float(q[x[r]]))
        replaced = rules.replacement(p, q)
        next_law[r] = replaced / replaced.sum()
        if x[r] == experiment.forbidden:
            return


def _fill_block(experiment: Experiment, x: History, accept, next_law) -> None:
    tables, count = experiment.tables, experiment.stop(experiment.tables, x)
    rho = 1.0
    for r in range(count + 1):
        p, mass = tables.p[x[:r]], None
        next_law[r] = p
        if r < count:
            q = np.eye(len(p))[x[r]] if experiment.is_point_mass else tables.q[x[:r]]
            mass = rules.residual_mass(rules.residual(rho * p, q))
            replaced = rules.replacement(rho * p, q)
            next_law[r] = replaced / replaced.sum()
        if r > 0:
            accept[r - 1] = rules.block_accept_probability(*rules.block_odds(rho, mass))
        if r < count:
            rho = rules.path_ratio(rho, float(p[x[r]]), float(q[x[r]]))
            if rho == 0:
                return


def weights_of(
    experiments: Sequence[Experiment],
    *,
    impl: Impl,
    form: Form,
    rule: Rule | LossyRule,
    process: Process | None = None,
) -> list[Weights]:
    """Weights of the production path; all experiments are rows of one `verify_chain` call.

    Rows and drafts that must not be read are filled with NaN and huge ids. With `process` the
    tables' target logits are raw ones, and their p the law of the processed ones.
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
    given = np.zeros(total, np.int64)
    for b, (experiment, x) in enumerate(rows):
        _fill_row(experiment, x, target[b], draft[b], token_ids[b], forbidden[b])
        given[b] = experiment.stop(experiment.tables, x)
        if experiment.has_placeholder and given[b] < depth:
            token_ids[b, given[b] :], given[b] = -1, depth
    rows_of_target = torch.from_numpy(target)
    if process is not None:
        rows_of_target = process(rows_of_target, token_ids, given)
    verdict = ops.verify_chain(
        rows_of_target,
        torch.from_numpy(token_ids),
        torch.from_numpy(given),
        draft_logits=draft_law(draft, form),
        key=np.arange(total, dtype=np.uint64),
        anchor=7,
        temperature=np.array([e.tables.temperature for e, _ in rows]),
        draft_temperature=np.array([_claimed(e) for e, _ in rows]),
        point_mass=torch.tensor([e.is_point_mass for e, _ in rows]),
        forbidden=torch.from_numpy(forbidden),
        rule=rule,
        return_weights=True,
        impl=impl,
    )
    assert verdict.weights is not None
    end = verdict.weights.end_probability.numpy()
    next_law = verdict.weights.next_law.numpy()
    result, begin = [], 0
    for pairs in found:
        at = slice(begin, begin + len(pairs))
        begin += len(pairs)
        paths, chances = zip(*pairs, strict=True)
        result.append(Weights(list(paths), np.array(chances), end[at], next_law[at]))
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


def draft_law(draft: np.ndarray, form: Form) -> torch.Tensor | SparseLogits | None:
    """Draft logits [R, K, V] in the form that the verifier is given."""
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
