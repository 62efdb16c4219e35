"""What a hand-written sampler returns becomes scored tokens, or is refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from fairdraft.audit.session import run_audit
from fairdraft.audit.settings import AuditSettings
from fairdraft.audit.subject import InvalidSubject
from fairdraft.stats.tokens import Source
from fairdraft.testing import Round, SamplerSubject
from tests.testing.samplers import P, subject

LAW = np.array([0.4, 0.3, 0.2, 0.1])


def scripted(rounds: list[Any], **options: Any) -> Any:
    """Scores a sampler that returns the given rounds in turn."""
    turns = itertools.cycle(rounds)
    options = {"draft": lambda context: LAW[::-1], "texts_per_batch": 1} | options
    audited = SamplerSubject(
        lambda context, rng: next(turns), lambda context: LAW, options.pop("draft"), **options
    )
    return next(audited.batches()).tokens


def test_rounds_give_slots_sources_and_drafts() -> None:
    tokens = scripted(
        [Round([1, 2, 3], [1, 2]), Round([0], [3, 3]), Round([2], [])],
        num_tokens=6,
        prompts=[[9, 8]],
    )
    assert tokens.column.tolist() == [1, 2, 3, 0, 2, 1]
    assert tokens.slot.tolist() == [0, 1, 2, 0, 0, 0]
    assert tokens.source.tolist() == [
        Source.ACCEPTED,
        Source.ACCEPTED,
        Source.BONUS,
        Source.REPLACED,
        Source.PLAIN,
        # the text was full after an accepted draft
        Source.ACCEPTED,
    ]
    assert tokens.drafted.tolist() == [1, 2, -1, 3, -1, 1]
    assert tokens.has_draft.tolist() == [True, True, False, True, False, True]
    assert tokens.previous.tolist()[:3] == [[8, 9], [1, 8], [2, 1]]


def test_tokens_alone_tell_the_round_where_its_depth_is_known() -> None:
    tokens = scripted([[1, 2], [3]], num_tokens=3, num_drafts=1)
    assert tokens.source.tolist() == [Source.ACCEPTED, Source.BONUS, Source.REPLACED]
    unknown = scripted([[1, 2], [3]], num_tokens=3)
    assert unknown.source.tolist() == [Source.UNKNOWN] * 3 and unknown.has_draft.all()


def test_plain_sampling_has_no_drafts() -> None:
    tokens = scripted([2], draft=None, num_tokens=4)
    assert tokens.draft is None and tokens.column.tolist() == [2] * 4


def test_laws_and_sampler_get_the_context() -> None:
    seen: list[tuple[int, ...]] = []

    def sample(context: tuple[int, ...], rng: Any) -> int:
        seen.append(context)
        return len(context)

    audited = SamplerSubject(
        sample, lambda context: LAW, prompts=[(0,)], num_tokens=3, texts_per_batch=1
    )
    next(audited.batches())
    assert seen == [(0,), (0, 1), (0, 1, 2)]


def test_texts_are_the_same_whatever_the_batches() -> None:
    whole = next(subject(texts_per_batch=8).batches()).tokens
    half = subject(texts_per_batch=4).batches()
    next(half)
    second = next(subject(texts_per_batch=4).batches(cursor=4)).tokens
    np.testing.assert_array_equal(second.column, whole.column[len(second) :])
    np.testing.assert_array_equal(next(half).tokens.column, second.column)


@pytest.mark.parametrize(
    ("rounds", "options", "message"),
    [
        ([7], {}, "token 7 .* outside of the 4 ids"),
        ([[]], {}, "returned 0 tokens"),
        ([[1, 1, 1]], {"num_drafts": 1}, "3 tokens of a round with 1 drafts"),
        ([Round([1, 2], [3])], {}, "all but the last are accepted drafts"),
        ([1], {"draft": lambda context: P}, r"laws have \[4, 5\] probabilities"),
        ([1], {"draft": lambda context: [P]}, "draft's law .* has shape"),
    ],
)
def test_what_cannot_be_scored_is_invalid(
    rounds: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidSubject, match=message):
        scripted(rounds, **options)


@pytest.mark.parametrize("law", [[0.5, 0.5, 0.5], [0.5, float("nan"), 0.5]])
def test_a_law_that_is_none_is_invalid(law: list[float]) -> None:
    report = run_audit(SamplerSubject(lambda c, rng: 0, lambda c: law), AuditSettings())
    assert report.exit_code == 4


def test_misuse_is_refused() -> None:
    faults: list[dict[str, Any]] = [{"num_tokens": 0}, {"num_drafts": 0}, {"prompts": []}]
    for options in faults:
        with pytest.raises(ValueError, match="num_tokens|num_drafts|prompts"):
            subject(**options)
