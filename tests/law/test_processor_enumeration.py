"""Exact enumeration of processed rows: drafts in, law out, against plain decoding, to 1e-12.

Raw logits depend on the whole history. The production pipeline processes every row of every path,
the production rules give their weights, and the law of the first K + 1 tokens must be that of the
definitions, applied token by token. There is no sampling: false alarm and miss are 0. Planted
faults state the total variation (TV) that they cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairdraft import SamplingParams, ops
from fairdraft.ops.verify import Rule
from tests.law import processed, stops
from tests.law.enumeration import (
    EXACT,
    Experiment,
    K,
    Weights,
    deterministic,
    emitted_law,
    error_of,
    half_deterministic,
    weights_of,
)
from tests.law.faults import (
    BAD_WORDS_ONCE_A_ROUND,
    EARLY_ENDS_ONCE_A_ROUND,
    FORBIDDEN_AS_ABSENT,
    NGRAMS_ONCE_A_ROUND,
    PENALIZED_ONCE_A_ROUND,
    PROMPT_AS_OUTPUT,
    Fault,
)
from tests.law.processed import (
    CASES,
    FORMS,
    STARTS,
    Pipeline,
    matrix,
    params_of,
    raw_tables,
    with_processed_law,
)
from tests.law.tables import BASE_TWO, History, Tables, log, softmax

RULES = pytest.mark.parametrize("rule", processed.RULES)


def experiments_of(tables: Tables, q: str) -> list[Experiment]:
    """Whole and ragged proposals of one kind of drafter."""
    if q == "point mass":
        follows = [deterministic(tables.vocab_size, seed) for seed in range(4)]
        return [Experiment(tables, follow=follow) for follow in follows] + [
            Experiment(tables, stops.drops_unlikely_draft, follow=follows[0])
        ]
    return [
        Experiment(tables),
        Experiment(tables, stops.before_flat_law, has_placeholder=True),
        Experiment(half_deterministic(tables), stops.after_end_token),
    ]


@RULES
@pytest.mark.parametrize(
    ("q", "at"),
    [(q, at) for q in FORMS for at in STARTS if (q, at) != ("sparse", "first")],
)
@pytest.mark.parametrize("case", CASES)
def test_every_parameter_keeps_the_law_of_plain_decoding(
    case: str, q: str, at: str, rule: Rule
) -> None:
    start, params = STARTS[at], params_of(case)
    tables = with_processed_law(raw_tables(3), start, params)
    experiments = experiments_of(tables, q)
    pipeline = Pipeline(start, params)
    found = weights_of(experiments, impl="cpu", form=FORMS[q], rule=rule, process=pipeline)
    # the parameter matters here: without it the law is another one
    raw = {h: softmax(row, params.temperature) for h, row in tables.target_logits.items()}
    assert max(np.abs(raw[h] - tables.p[h]).max() for h in raw) > 0.1
    for experiment, weights in zip(experiments, found, strict=True):
        assert error_of(weights, experiment.tables) < EXACT


@RULES
@pytest.mark.usefixtures("remembered_rows")
def test_the_readable_walk_agrees(rule: Rule) -> None:
    start, params = STARTS["later"], params_of("all together")
    tables = with_processed_law(raw_tables(5), start, params)
    pipeline = Pipeline(start, params)
    experiments = experiments_of(tables, "dense")[:1]
    for weights, experiment in zip(
        weights_of(experiments, impl="reference", form="dense", rule=rule, process=pipeline),
        experiments,
        strict=True,
    ):
        assert error_of(weights, experiment.tables) < EXACT


@pytest.mark.parametrize("case", CASES)
def test_a_plain_round_has_the_same_law(case: str) -> None:
    """K = 0: the pipeline agrees with the definitions before any draft is there."""
    for start in STARTS.values():
        params = params_of(case)
        tables = with_processed_law(raw_tables(3), start, params)
        row = torch.tensor(np.array([[tables.target_logits[()]]]), dtype=torch.float32)
        empty = np.zeros((1, 0), np.int64)
        row = Pipeline(start, params)(row, empty, np.zeros(1, np.int64))
        law = softmax(row[0, 0].numpy(), params.temperature)
        np.testing.assert_allclose(law, tables.p[()], rtol=0, atol=EXACT)


#: nothing may follow id 1
DEAD_END: dict[str, Any] = {"bad_words_ids": [[1, 0], [1, 1], [1, 2], [1, 3]]}


@RULES
@pytest.mark.parametrize("q", FORMS)
def test_dead_ends_come_as_often_as_in_plain_decoding(q: str, rule: Rule) -> None:
    """Whether and where a request ends for want of a token does not depend on what was drafted."""
    start = STARTS["later"]
    params = SamplingParams(temperature=BASE_TWO, **DEAD_END)
    tables = with_processed_law(raw_tables(3), start, params)
    expected = dict(_plain(tables))
    assert 0.1 < sum(chance for text, chance in expected.items() if text[-1] is None) < 0.9
    pipeline = Pipeline(start, params)
    num_broken = 0
    for experiment in experiments_of(tables, q):
        (weights,) = weights_of(
            [experiment], impl="cpu", form=FORMS[q], rule=rule, process=pipeline
        )
        num_broken += len(pipeline.broken)
        law: dict[tuple[int | None, ...], float] = {}
        for outcome, chance in _walked(weights, pipeline, tables):
            law[outcome] = law.get(outcome, 0.0) + chance
        assert law.keys() == expected.keys()
        assert max(abs(law[outcome] - expected[outcome]) for outcome in law) < EXACT
    assert num_broken


def _plain(
    tables: Tables, prefix: History = (), chance: float = 1.0
) -> Iterator[tuple[tuple[int | None, ...], float]]:
    """Texts of K + 1 tokens, or fewer and then None where none may follow, and their chances."""
    if len(prefix) == K + 1:
        yield prefix, chance
    elif not tables.p[prefix].any():
        yield (*prefix, None), chance
    else:
        for y in np.flatnonzero(tables.p[prefix]).tolist():
            yield from _plain(tables, (*prefix, y), chance * tables.p[prefix][y])


def _walked(weights: Weights, pipeline: Pipeline, tables: Tables) -> Iterator[tuple[Any, float]]:
    """The same of what the rule emits, cut at rows that cannot be sampled."""
    for b, (x, chance) in enumerate(zip(weights.paths, weights.chance, strict=True)):
        place = min(pipeline.broken.get(b, [K + 1]))
        for r in np.flatnonzero(weights.end[b]).tolist():
            share = chance * weights.end[b, r]
            if r >= place:
                yield (*x[:place], None), share
                continue
            for y in np.flatnonzero(weights.next_law[b, r]).tolist():
                yield from _plain(tables, (*x[:r], y), share * weights.next_law[b, r, y])


#: fault, case, start, and the TV that it causes under rule `token` and under rule `block`
PLANTED: dict[str, tuple[Fault, str, str, float, float]] = {
    "repetition once a round": (
        PENALIZED_ONCE_A_ROUND,
        "repetition_penalty",
        "later",
        0.0409,
        0.0424,
    ),
    "presence once a round": (PENALIZED_ONCE_A_ROUND, "presence_penalty", "first", 0.0823, 0.0963),
    "frequency once a round": (
        PENALIZED_ONCE_A_ROUND,
        "frequency_penalty",
        "later",
        0.0616,
        0.0724,
    ),
    "prompt as output": (PROMPT_AS_OUTPUT, "presence_penalty", "first", 0.321, 0.328),
    "prompt counted": (PROMPT_AS_OUTPUT, "frequency_penalty", "later", 0.0706, 0.0782),
    "ends held back once a round": (EARLY_ENDS_ONCE_A_ROUND, "min_tokens", "later", 0.0138, 0.0203),
    "bad words once a round": (BAD_WORDS_ONCE_A_ROUND, "bad_words_ids", "later", 0.1397, 0.1933),
    "n-grams once a round": (NGRAMS_ONCE_A_ROUND, "no_repeat_ngram_size", "later", 0.1234, 0.176),
}


@RULES
@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_seen(monkeypatch: pytest.MonkeyPatch, name: str, rule: Rule) -> None:
    fault, case, at, by_token, by_block = PLANTED[name]
    start, params = STARTS[at], params_of(case)
    tables = with_processed_law(raw_tables(3), start, params)
    calls = fault.plant(monkeypatch)
    pipeline = Pipeline(start, params)
    (weights,) = weights_of(
        [Experiment(tables)], impl="cpu", form="dense", rule=rule, process=pipeline
    )
    assert calls.count > 0
    effect = by_token if rule == "token" else by_block
    assert error_of(weights, tables) == pytest.approx(effect, rel=0.01)


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_draft_that_a_mask_forbids_is_replaced_from_the_residual(
    monkeypatch: pytest.MonkeyPatch, is_planted: bool
) -> None:
    """p is .5, .5 on what is allowed and q .4, .1, .25, .25; sampled from p instead: .65, .35."""
    if is_planted:
        FORBIDDEN_AS_ABSENT.plant(monkeypatch)
    q = np.array([0.4, 0.1, 0.25, 0.25])
    drafts = torch.arange(4)[:, None]
    target = torch.zeros(4, 2, 4)
    pipeline = Pipeline(STARTS["first"], SamplingParams(allowed_token_ids=[0, 1]))
    verdict = ops.verify_chain(
        pipeline(target, drafts.numpy(), np.ones(4, np.int64)),
        drafts,
        1,
        draft_logits=torch.from_numpy(log(q)).expand(4, 1, 4),
        key=np.arange(4, dtype=np.uint64),
        anchor=3,
        return_weights=True,
        impl="cpu",
    )
    assert verdict.weights is not None
    end, next_law = verdict.weights.end_probability.numpy(), verdict.weights.next_law.numpy()
    law = (q * (1 - end[:, 0]))[:] + (q * end[:, 0]) @ np.nan_to_num(next_law[:, 0])
    np.testing.assert_allclose(
        law, [0.65, 0.35, 0, 0] if is_planted else [0.5, 0.5, 0, 0], atol=1e-6
    )


def test_the_page_lists_what_is_enumerated() -> None:
    """Run `python -m tests.law.processed` and paste what it prints, if this fails."""
    page = (Path(__file__).parents[2] / "docs" / "processors.md").read_text()
    assert page.partition("<!-- matrix -->\n")[2].partition("<!-- end -->")[0] == matrix()


def test_emitted_law_is_a_law() -> None:
    """The check itself: what the enumeration adds up to is 1."""
    params = params_of("all together")
    tables = with_processed_law(raw_tables(3), STARTS["later"], params)
    pipeline = Pipeline(STARTS["later"], params)
    (weights,) = weights_of(
        [Experiment(tables)], impl="cpu", form="dense", rule="token", process=pipeline
    )
    assert emitted_law(weights, tables).sum() == pytest.approx(1, abs=EXACT)
