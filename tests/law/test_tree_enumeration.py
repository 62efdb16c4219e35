"""Exact enumeration of rule `tree`: decision weights in, law out, no noise, to 1e-12.

As `test_enumeration.py`: there is no sampling, so false alarm and miss are 0. Planted faults state
the total variation (TV) that they cause.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from fairdraft.audit.faults.tree_faults import k_seq
from fairdraft.ops import rules, tree
from fairdraft.ops.dispatch import Impl
from fairdraft.ops.tree_inputs import Shape
from tests.law.enumeration import distance
from tests.law.faults import SIBLINGS_BY_K_SEQ, SIBLINGS_SCORED_ALONE
from tests.law.tables import History, Tables, dirichlet_tables, integer_tables, log
from tests.law.trees import (
    Branching,
    Tree,
    TreeExperiment,
    assert_exact_trees,
    tree_weights,
)

pytestmark = pytest.mark.usefixtures("remembered_rows")

IMPLS = pytest.mark.parametrize("impl", ["reference", "cpu"])


def three_then_one(tables: Tables, h: History) -> int:
    return 3 if not h else 1


def chain(tables: Tables, h: History) -> int:
    return 1


def two_below_the_likeliest(tables: Tables, h: History) -> int:
    """Reads an ancestor's token, which is no sibling of what it decides on."""
    return 2 if not h or h[-1] == tables.q[()].argmax() else 0


def more_where_flat(tables: Tables, h: History) -> int:
    """Reads the law that the siblings are drawn from, before any is."""
    return 1 if tables.q[h].max() > 0.5 else 3


LAWFUL: dict[str, Branching] = {
    "two a node": lambda tables, h: 2,
    "three, then one": three_then_one,
    "a chain": chain,
    "more than q has": lambda tables, h: 4 if not h else 1,
    "by an ancestor": two_below_the_likeliest,
    "by the law": more_where_flat,
    "no drafts": lambda tables, h: 0,
}


@IMPLS
@pytest.mark.parametrize(("vocab_size", "depth", "seed"), [(3, 2, 1), (4, 1, 3)])
def test_trees_are_exact_under_every_lawful_shape(
    impl: Impl, vocab_size: int, depth: int, seed: int
) -> None:
    """Two and three siblings, zeros in p and in q, ties, another draft temperature, ragged."""
    tables = [
        integer_tables(vocab_size, depth, seed),
        integer_tables(vocab_size, depth, seed, undrafted=1),
        integer_tables(vocab_size, depth, seed, banned=0),
        integer_tables(vocab_size, depth, seed, draft_halving=True),
    ]
    # the reference is slow, and its numbers are the kernels'
    tables = tables[:2] if impl == "reference" else tables
    experiments = [TreeExperiment(t, branching) for t in tables for branching in LAWFUL.values()]
    assert_exact_trees(experiments, impl)


@IMPLS
def test_everything_mixes_in_one_batch(impl: Impl) -> None:
    """Sampled, greedy, forbidden and point-mass trees, repeated and foreign candidates."""
    tables = integer_tables(3, 2, 1)
    banned = integer_tables(3, 2, 11, banned=0)
    pairs = {(): (2, 0), (2,): (1, 2), (0,): (0,)}
    experiments = [
        TreeExperiment(tables),
        TreeExperiment(tables.greedy()),
        TreeExperiment(banned, forbidden=0),
        TreeExperiment(banned.greedy(), forbidden=0),
        TreeExperiment(tables, follow=lambda h: pairs.get(h, ())),
        TreeExperiment(tables, follow=lambda h: (1, 1, 0)),
        TreeExperiment(tables, follow=lambda h: (8, 2)),
        TreeExperiment(tables, follow=lambda h: (0, 1, 2)),
        TreeExperiment(tables.greedy(), follow=lambda h: (0, 1)),
        TreeExperiment(banned, follow=lambda h: (0, 1), forbidden=0),
    ]
    assert_exact_trees(experiments, impl)


def test_more_siblings_accept_more_and_a_chain_as_much_as_rule_token() -> None:
    """Drafts that stand on average: by breadth, against sum min(p, q) on a chain of one."""
    tables = dirichlet_tables(4, 1, 5)
    shapes: list[Branching] = [lambda t, h, n=n: n for n in (1, 2, 3, 4)]
    found = tree_weights([TreeExperiment(tables, shape) for shape in shapes], "cpu")
    means = [weights.mean_accepted() for weights in found]
    assert means[0] == pytest.approx(np.minimum(tables.p[()], tables.q[()]).sum(), abs=1e-6)
    assert means == sorted(means) and means[1] > means[0] + 0.04
    # whatever the target's token is, it is among all four
    assert means[3] == pytest.approx(1, abs=1e-6)


#: the published case of SpecInfer-like verifiers: two siblings of one level
P_PAIR, Q_PAIR = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.25, 0.05, 0.1, 0.6])


def pair_tables() -> Tables:
    p = {(): P_PAIR} | {(x,): P_PAIR for x in range(4)}
    q = {(): Q_PAIR}
    target, draft = ({h: log(row) for h, row in rows.items()} for rows in (p, q))
    return Tables(4, 1, target, draft, p, q)


def test_the_published_pair_is_exact_and_accepts_what_it_should() -> None:
    (weights,) = tree_weights([TreeExperiment(pair_tables())], "cpu")
    first = weights.law(pair_tables()).sum(1)
    assert first == pytest.approx(P_PAIR, abs=1e-6)
    assert weights.mean_accepted() == pytest.approx(0.8125, abs=1e-6)


def resorted(tables: Tables, drawn: Tree) -> Tree:
    """Siblings by falling q, in place of the order drawn."""
    return _regrown(drawn, lambda h, group: sorted(group, key=lambda x: -tables.q[h][x]))


def by_id(tables: Tables, drawn: Tree) -> Tree:
    """Siblings by token id."""
    return _regrown(drawn, lambda h, group: sorted(group))


def pruned(tables: Tables, drawn: Tree) -> Tree:
    """Drops what was drawn with less than 1/4, with all below it."""
    return _regrown(drawn, lambda h, group: [x for x in group if tables.q[h][x] >= 0.25])


def _regrown(drawn: Tree, choose: Any) -> Tree:
    parents, token_ids = [], []
    queue: list[tuple[int, int]] = [(0, 0)]
    for old, new in queue:
        children = [c for c in range(1, len(drawn.parents) + 1) if drawn.parents[c - 1] == old]
        by_token = {drawn.token_ids[c - 1]: c for c in children}
        for x in choose(drawn.history(old), list(by_token)):
            parents.append(new)
            token_ids.append(x)
            queue.append((by_token[x], len(token_ids)))
    return Tree(tuple(parents), tuple(token_ids), drawn.chance)


@IMPLS
@pytest.mark.parametrize(
    ("arrange", "effect", "of_pair"),
    [(resorted, 0.1294, 0.1238), (by_id, 0.1250, 0.2826), (pruned, 0.1013, 0.1440)],
    ids=["re-sorted by probability", "re-sorted by id", "pruned by drawn probability"],
)
def test_trees_arranged_by_drawn_values_are_seen(
    impl: Impl, arrange: Any, effect: float, of_pair: float
) -> None:
    """Planted in the drafter: TV on depth 2 and on the published pair."""
    tables = dirichlet_tables(3, 2, 3)
    experiments = [TreeExperiment(tables, arrange=arrange)]
    (weights,) = tree_weights(experiments, impl)
    assert weights.error(tables) == pytest.approx(effect, rel=0.01)
    (weights,) = tree_weights([TreeExperiment(pair_tables(), arrange=arrange)], impl)
    assert weights.error(pair_tables()) == pytest.approx(of_pair, rel=0.01)


def _first_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What replaces all siblings is drawn from max(p - q, 0), with the first one's q alone."""
    found = tree.candidates

    def candidates(*args: Any) -> Any:
        first = None
        for candidate in found(*args):
            first = candidate.rest if first is None else first
            yield candidate._replace(rest=first)

    monkeypatch.setattr(tree, "candidates", candidates)


def _not_normalized(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of p is tested against q without being made a law."""
    monkeypatch.setattr(rules, "residual_mass", lambda weights: 1.0)


def _shared_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    """Siblings are tested with one number: the second stands only where its chance is larger."""

    def ends(shape: Shape, accept: np.ndarray) -> np.ndarray:
        count, num_rows = len(accept), accept.shape[1] + 1
        found = np.zeros((count, num_rows))
        for b in range(count):
            reached = np.zeros(num_rows)
            reached[0] = 1.0
            for r in range(num_rows):
                top = 0.0
                for c in shape.children(b, r):
                    reached[c] = reached[r] * max(accept[b, c - 1] - top, 0.0)
                    top = max(top, accept[b, c - 1])
                found[b, r] = reached[r] * (1.0 - top)
        return found

    # the package's attribute of this name is the function
    monkeypatch.setattr(import_module("fairdraft.ops.verify_tree"), "tree_ends", ends)


@pytest.mark.parametrize(
    ("plant", "effect", "of_pair"),
    [
        (SIBLINGS_SCORED_ALONE.plant, 0.3021, 0.1875),
        (SIBLINGS_BY_K_SEQ.plant, 0.3229, 0.2180),
        (_first_only, 0.0378, 0.0938),
        (_not_normalized, 0.0225, 0.1250),
        (_shared_uniform, 0.0265, 0.0375),
    ],
    ids=["independent siblings", "K-SEQ", "residual of the first", "not normalized", "one uniform"],
)
def test_planted_fault_is_seen(
    monkeypatch: pytest.MonkeyPatch, plant: Any, effect: float, of_pair: float
) -> None:
    """Planted below the reference: TV on depth 2 and on the published pair."""
    plant(monkeypatch)
    tables = dirichlet_tables(3, 2, 3)
    (weights,) = tree_weights([TreeExperiment(tables)], "reference")
    assert weights.error(tables) == pytest.approx(effect, rel=0.01)
    (weights,) = tree_weights([TreeExperiment(pair_tables())], "reference")
    assert weights.error(pair_tables()) == pytest.approx(of_pair, rel=0.01)


def sampled_point_masses(tables: Tables) -> TreeExperiment:
    """The two best tokens of q, verified as if they had been drawn."""
    best = {h: np.argsort(-row, kind="stable")[:2] for h, row in tables.q.items()}
    ids = tuple(best[()].tolist())
    return TreeExperiment(tables, arrange=lambda t, drawn: replace(drawn, token_ids=ids))


def test_deterministic_siblings_scored_as_sampled_are_seen() -> None:
    """Planted: a top-k tree whose q is given as a law; right as point masses."""
    tables = pair_tables()
    (weights,) = tree_weights([sampled_point_masses(tables)], "cpu")
    assert weights.error(tables) > 0.19
    assert_exact_trees([TreeExperiment(integer_tables(4, 1, 3), follow=lambda h: (3, 0))], "cpu")


def test_k_seq_is_exact_on_independent_draws_alone() -> None:
    """SpecTr's rule needs draws with replacement; on trees without, it is seen: TV .218."""
    accept, residual, _ = k_seq(P_PAIR, Q_PAIR, 2)

    def law(is_replaced: bool) -> np.ndarray:
        found = np.zeros(4)
        for x in range(4):
            for y in range(4):
                second = Q_PAIR[y] if is_replaced else Q_PAIR[y] / (1 - Q_PAIR[x]) * (x != y)
                chance = Q_PAIR[x] * second
                found[x] += chance * accept[x]
                found[y] += chance * (1 - accept[x]) * accept[y]
                found += chance * (1 - accept[x]) * (1 - accept[y]) * residual
        return found

    assert distance(law(True), P_PAIR) < 1e-12
    assert distance(law(False), P_PAIR) == pytest.approx(0.218, abs=0.001)
