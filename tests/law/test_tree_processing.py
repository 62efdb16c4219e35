"""Exact enumeration of processed rows under rule `tree`: each row along its own path, to 1e-12.

As `test_processor_enumeration.py`, with trees of drafts in place of chains: there is no sampling,
so false alarm and miss are 0. Planted faults state the total variation (TV) that they cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fairdraft import SamplingParams
from tests.law.enumeration import EXACT, K, half_deterministic
from tests.law.faults import (
    PENALIZED_ONCE_A_ROUND,
    SIBLINGS_COUNTED,
    SIBLINGS_IN_TAILS,
    WRONG_BRANCH,
    Fault,
)
from tests.law.processed import (
    CASES,
    FORMS,
    STARTS,
    Pipeline,
    params_of,
    raw_tables,
    with_processed_law,
)
from tests.law.tables import BASE_TWO, History, Tables, softmax
from tests.law.trees import Branching, TreeExperiment, TreeWeights, tree_weights


def by_depth(*breadths: int) -> Branching:
    """Children of a node by its depth."""
    return lambda tables, h: breadths[len(h)] if len(h) < len(breadths) else 0


def ragged(tables: Tables, h: History) -> int:
    """Two siblings; one of them goes on if it is even."""
    return 2 if not h else int(len(h) == 1 and h[0] % 2 == 0)


#: candidates for the first token, and for one after a draft
SHAPES = {"first": by_depth(2, 1), "later": by_depth(1, 2, 1)}


def experiments_of(tables: Tables, q: str, at: str) -> list[TreeExperiment]:
    """Trees of one kind of drafter."""
    if q == "point mass":
        pairs = [lambda h, s=s: ((s + sum(h)) % 4, (s + 2 * len(h) + 1) % 4) for s in range(4)]
        follows = [
            *pairs,
            lambda h: (1, 9, 1, 3)[len(h) :],
            lambda h: (0, 1, 2, 3) if not h else (),
        ]
        return [TreeExperiment(tables, follow=follow) for follow in follows]
    return [
        TreeExperiment(tables, SHAPES[at] if q == "dense" else by_depth(1, 2)),
        TreeExperiment(half_deterministic(tables), by_depth(2, 2)),
        TreeExperiment(tables, ragged),
    ]


@pytest.mark.parametrize(
    ("q", "at"),
    [(q, at) for q in FORMS for at in STARTS if (q, at) != ("sparse", "first")],
)
@pytest.mark.parametrize("case", CASES)
def test_every_parameter_keeps_the_law_of_plain_decoding(case: str, q: str, at: str) -> None:
    start, params = STARTS[at], params_of(case)
    tables = with_processed_law(raw_tables(3), start, params)
    pipeline = Pipeline(start, params)
    experiments = experiments_of(tables, q, at)
    found = tree_weights(experiments, "cpu", form=FORMS[q], process=pipeline)
    for experiment, weights in zip(experiments, found, strict=True):
        np.testing.assert_allclose(weights.end.sum(1), 1, rtol=EXACT)
        assert weights.error(experiment.tables) < EXACT


@pytest.mark.usefixtures("remembered_rows")
def test_the_readable_walk_agrees() -> None:
    start, params = STARTS["later"], params_of("all together")
    tables = with_processed_law(raw_tables(5), start, params)
    experiments = [TreeExperiment(tables, by_depth(2, 1))]
    (weights,) = tree_weights(experiments, "reference", process=Pipeline(start, params))
    assert weights.error(tables) < EXACT


#: nothing may follow id 1
DEAD_END: dict[str, Any] = {"bad_words_ids": [[1, 0], [1, 1], [1, 2], [1, 3]]}


@pytest.mark.parametrize("shape", [by_depth(2, 1), by_depth(2, 2)])
def test_dead_ends_come_as_often_as_in_plain_decoding(shape: Branching) -> None:
    """Several rows of a tree cannot be sampled; the one that the walk reads ends the text."""
    start = STARTS["later"]
    params = SamplingParams(temperature=BASE_TWO, **DEAD_END)
    tables = with_processed_law(raw_tables(3), start, params)
    expected: dict[Any, float] = dict(_plain(tables))
    pipeline = Pipeline(start, params)
    (weights,) = tree_weights([TreeExperiment(tables, shape)], "cpu", process=pipeline)
    assert max(map(len, pipeline.broken.values())) > 1
    law: dict[Any, float] = {}
    for outcome, chance in _walked(weights, pipeline, tables):
        law[outcome] = law.get(outcome, 0.0) + chance
    assert law.keys() == expected.keys()
    assert max(abs(law[outcome] - expected[outcome]) for outcome in law) < EXACT


def _plain(tables: Tables, h: History = (), chance: float = 1.0) -> Iterator[tuple[Any, float]]:
    """Texts of K + 1 tokens, or fewer and then None where none may follow, and their chances."""
    if len(h) == K + 1:
        yield h, chance
    elif not tables.p[h].any():
        yield (*h, None), chance
    else:
        for y in np.flatnonzero(tables.p[h]).tolist():
            yield from _plain(tables, (*h, y), chance * tables.p[h][y])


def _walked(
    weights: TreeWeights, pipeline: Pipeline, tables: Tables
) -> Iterator[tuple[Any, float]]:
    """The same of what the rule emits, cut at rows that cannot be sampled."""
    ended: dict[Any, Any] = {}
    for b, tree in enumerate(weights.trees):
        broken = {tree.history(node) for node in pipeline.broken.get(b, ())}
        for r in np.flatnonzero(weights.end[b]).tolist():
            h, share = tree.history(r), tree.chance * weights.end[b, r]
            cut = next((h[:d] for d in range(len(h) + 1) if h[:d] in broken), None)
            if cut is None:
                ended[h] = ended.get(h, 0.0) + share * weights.next_law[b, r]
            else:
                ended[*cut, None] = ended.get((*cut, None), 0.0) + share
    for h, chances in ended.items():
        if h and h[-1] is None:
            yield h, chances
            continue
        for y in np.flatnonzero(chances).tolist():
            yield from _plain(tables, (*h, y), chances[y])


#: fault, case, and the TV that it causes on siblings at the first position and at a later one
PLANTED: dict[str, tuple[Fault, str, float, float]] = {
    "sibling penalized": (SIBLINGS_COUNTED, "presence_penalty", 0.0397, 0.00185),
    "sibling counted": (SIBLINGS_COUNTED, "frequency_penalty", 0.0268, 0.0177),
    "sibling repeated": (SIBLINGS_COUNTED, "repetition_penalty", 0.00143, 0.00072),
    "penalties once a round": (PENALIZED_ONCE_A_ROUND, "frequency_penalty", 0.059, 0.0698),
    "sibling's bad words": (SIBLINGS_IN_TAILS, "bad_words_ids", 0.0272, 0.00405),
    "sibling's n-grams": (SIBLINGS_IN_TAILS, "no_repeat_ngram_size", 0.0647, 0.0165),
    "the wrong branch": (WRONG_BRANCH, "logits_processors", 0.00861, 0.0132),
}


@pytest.mark.parametrize("at", STARTS)
@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_seen(monkeypatch: pytest.MonkeyPatch, name: str, at: str) -> None:
    fault, case, *effects = PLANTED[name]
    start, params = STARTS[at], params_of(case)
    tables = with_processed_law(raw_tables(3), start, params)
    calls = fault.plant(monkeypatch)
    experiments = [TreeExperiment(tables, SHAPES[at])]
    (weights,) = tree_weights(experiments, "cpu", process=Pipeline(start, params))
    assert calls.count > 0
    effect = effects[list(STARTS).index(at)]
    assert weights.error(tables) == pytest.approx(effect, rel=0.01)


def test_a_draft_that_a_mask_forbids_keeps_its_q() -> None:
    """p is .5, .5 on what is allowed; all pairs of siblings, allowed or not."""
    params = SamplingParams(allowed_token_ids=[0, 1])
    flat = np.zeros(4)
    q = np.array([0.4, 0.1, 0.25, 0.25])
    p = {
        h: softmax(np.array([0, 0, -np.inf, -np.inf]), 1.0) for h in [(), *((x,) for x in range(4))]
    }
    tables = Tables(4, 1, dict.fromkeys(p, flat), {(): np.log(q)}, p, {(): q})
    pipeline = Pipeline(STARTS["first"], params)
    (weights,) = tree_weights([TreeExperiment(tables)], "cpu", process=pipeline)
    np.testing.assert_allclose(weights.law(tables).sum(1), [0.5, 0.5, 0, 0], atol=1e-6)
