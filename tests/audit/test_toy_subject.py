"""The toy decoder: what it says about each token is what its rounds did.

Law tests: every cell of (token before, token) of 32,000 tokens, false alarm 1e-9 each.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch

from fairdraft import ops
from fairdraft.audit.subject import InvalidSubject
from fairdraft.audit.subjects.markov import Decoding, MarkovPair, Rows, play, reference_law
from fairdraft.audit.subjects.toy import ToySubject
from fairdraft.ops import verify
from fairdraft.stats import chi_square_log_survival
from fairdraft.stats.tokens import NO_TOKEN, ScoredTokens, Source

P = [0.4, 0.3, 0.2, 0.1]
PAIR = MarkovPair.shuffled(P, P[::-1], seed=1)
WIDE = MarkovPair(*np.random.default_rng(2).normal(0, 2, (2, 40, 40)))

SUBJECTS = {
    "plain": ToySubject(PAIR, Decoding(0)),
    "token": ToySubject(PAIR, Decoding(3)),
    "gumbel": ToySubject(PAIR, Decoding(3, method="gumbel")),
    "block": ToySubject(PAIR, Decoding(3, rule="block")),
    "ragged": ToySubject(PAIR, Decoding(3), is_ragged=True),
    "greedy drafts": ToySubject(PAIR, Decoding(2, is_greedy=True)),
    "cool": ToySubject(PAIR, Decoding(3, temperature=0.5)),
    "top-k 3": ToySubject(PAIR, Decoding(3, top_k=3)),
    "top-p .8, min-p .3": ToySubject(PAIR, Decoding(3, top_p=0.8, min_p=0.3)),
    "samples": ToySubject(PAIR, Decoding(3), num_samples=3),
    "prompts": ToySubject(PAIR, Decoding(3), prompts=((0, 1), (2,), (1, 3, 3))),
    "common noise": ToySubject(PAIR, Decoding(3, rule="common_noise"), is_ragged=True),
}
subjects = pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)


@subjects
def test_tokens_follow_the_target_that_they_are_scored_by(subject: ToySubject) -> None:
    tokens = subject.play(0, 2_000)
    cell = tokens.previous[:, 0] * 4 + tokens.column
    observed = np.bincount(cell, minlength=16)
    expected = np.zeros((4, 4))
    np.add.at(expected, tokens.previous[:, 0], tokens.target)
    expected = expected.ravel()
    possible = expected > 0
    assert not observed[~possible].any()
    statistic = ((observed - expected)[possible] ** 2 / expected[possible]).sum()
    assert chi_square_log_survival(float(statistic), float(possible.sum() - 4)) > np.log(1e-9)


@subjects
def test_every_token_is_told_how_it_came_about(subject: ToySubject) -> None:
    depth = subject.decoding.num_drafts
    tokens = subject.play(5, 60)
    texts = (60, subject.length)
    assert (tokens.text.reshape(texts) == np.arange(5, 65)[:, None]).all()
    assert (tokens.position.reshape(texts) == np.arange(subject.length)).all()
    path = tokens.column.reshape(texts)
    assert (tokens.previous[:, 0].reshape(texts)[:, 1:] == path[:, :-1]).all()
    assert (tokens.previous[:, 1].reshape(texts)[:, 2:] == path[:, :-2]).all()
    source, drafted, slot = tokens.source, tokens.drafted, tokens.slot
    assert ((drafted == tokens.column)[source == Source.ACCEPTED]).all()
    assert ((drafted != tokens.column)[source == Source.REPLACED]).all() or not subject_is_matched(
        subject
    )
    assert (drafted[source == Source.REPLACED] >= 0).all()
    assert (drafted[(source == Source.BONUS) | (source == Source.PLAIN)] == -1).all()
    assert (slot[source == Source.PLAIN] == 0).all()
    assert slot.max() <= depth
    # a round goes on after an accepted draft and ends after anything else
    goes_on = source.reshape(texts)[:, :-1] == Source.ACCEPTED
    steps = slot.reshape(texts)
    assert (np.where(goes_on, steps[:, :-1] + 1, 0) == steps[:, 1:]).all()
    has_law = subject.decoding.rule != "common_noise"
    np.testing.assert_array_equal(tokens.has_draft, (drafted >= 0) & has_law)
    np.testing.assert_allclose(tokens.target.sum(1), 1)
    assert (tokens.probability > 0).all()


def subject_is_matched(subject: ToySubject) -> bool:
    """Whether a draft is rejected only if the target's own token differs from it."""
    return subject.decoding.is_greedy or subject.decoding.rule == "common_noise"


@pytest.mark.parametrize("options", [{}, {"top_k": 3, "temperature": 0.5}, {"is_greedy": True}])
def test_common_noise_keeps_the_text_of_plain_decoding(options: dict) -> None:
    common = Decoding(3, rule="common_noise", **options)
    plain = Decoding(0, **{name: value for name, value in options.items() if name != "is_greedy"})
    found, expected = (
        ToySubject(PAIR, decoding, num_samples=2).decode(0, 60) for decoding in (common, plain)
    )
    assert (found.token == expected.token).all() and (found.source == Source.ACCEPTED).any()


def test_a_text_is_the_same_in_every_batch() -> None:
    subject = ToySubject(PAIR, Decoding(3), is_ragged=True, num_samples=2, texts_per_batch=7)
    first, second = islice(subject.batches(), 2)
    assert (first.cursor, second.cursor) == (7, 14)
    resumed = next(iter(subject.batches(first.cursor))).tokens
    whole = subject.play(0, 14)
    for name in ("column", "text", "slot", "source", "drafted"):
        np.testing.assert_array_equal(getattr(resumed, name), getattr(second.tokens, name))
        parts = [getattr(batch.tokens, name) for batch in (first, second)]
        np.testing.assert_array_equal(np.concatenate(parts), getattr(whole, name))


def agreement(tokens: ScoredTokens, length: int) -> float:
    """Share of positions at which a text equals the one before it."""
    path = tokens.column.reshape(-1, length)
    return float((path[1::2] == path[::2]).mean())


def test_samples_share_a_key_and_nothing_else() -> None:
    """Agreement of independent texts is below .4 here; a shared sample field would give 1."""
    subject = ToySubject(PAIR, Decoding(3), num_samples=2)
    assert 0.2 < agreement(subject.play(0, 2_000), 16) < 0.4


def test_one_seed_on_two_prompts_shares_nothing() -> None:
    subject = ToySubject(PAIR, Decoding(3), prompts=((1, 0), (2, 0)))
    assert 0.2 < agreement(subject.play(0, 2_000), 16) < 0.4


def test_the_prompt_counts_as_what_was_before() -> None:
    subject = ToySubject(PAIR, Decoding(1), prompts=((3,), (1, 2)))
    first = subject.play(0, 4).previous.reshape(4, 16, 2)[:, 0]
    np.testing.assert_array_equal(first, [[3, NO_TOKEN], [2, 1]] * 2)


def test_temperature_0_has_one_text() -> None:
    subject = ToySubject(PAIR, Decoding(3, temperature=0.0))
    tokens = subject.play(0, 50)
    assert (tokens.column.reshape(50, 16) == tokens.column[:16]).all()
    assert (tokens.probability == 1).all()
    assert tokens.point_mass is not None
    assert (tokens.point_mass == (tokens.drafted >= 0)).all()


def test_tables_without_context_stay_one_row() -> None:
    subject = ToySubject(MarkovPair.from_laws(P, P[::-1]), Decoding(2))
    tokens = subject.play(0, 20)
    np.testing.assert_allclose(tokens.target, np.broadcast_to(P, (320, 4)), rtol=1e-6)


def test_laws_before_temperature_and_filters_are_kept() -> None:
    tokens = ToySubject(PAIR, Decoding(3, temperature=0.5, top_k=2)).play(0, 20)
    assert tokens.unfiltered is not None
    assert tokens.raw_draft is not None
    assert ((tokens.target > 0).sum(1) == 2).all()
    assert ((tokens.unfiltered > 0).sum(1) == 4).all()
    np.testing.assert_allclose(np.sort(tokens.raw_draft, axis=1)[0], np.sort(P), rtol=1e-6)
    plain = ToySubject(PAIR, Decoding(3)).play(0, 20)
    assert plain.unfiltered is None
    assert plain.raw_draft is None


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    "filters", [(0, 1.0, 0.0), (5, 1.0, 0.0), (0, 0.7, 0.0), (0, 1.0, 0.1), (9, 0.8, 0.05)]
)
def test_the_reference_law_is_the_law_of_the_ops(temperature: float, filters) -> None:
    logits = WIDE.target_logits
    top_k, top_p, min_p = filters
    kept = ops.filter_logits(
        torch.from_numpy(logits), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )
    law = torch.softmax(kept.double() / temperature, -1).numpy()
    np.testing.assert_allclose(
        reference_law(logits, temperature, top_k, top_p, min_p), law, atol=1e-6
    )


def test_forbidden_drafts_are_marked_and_never_emitted() -> None:
    """Half of the drafts are of a token that the target excludes."""
    pair = MarkovPair.from_laws([0.6, 0.4, 0.0], [0.2, 0.3, 0.5])
    rows = Rows(
        key=np.arange(200, dtype=np.uint64),
        sample=np.zeros(200, np.int64),
        anchor=np.full(200, 5),
        last=np.zeros(200, np.int64),
        num_drafts=np.ones(200, np.int64),
    )
    played = play(pair, Decoding(1, forbids=True), rows)
    is_excluded = played.draft_ids[:, 0] == 2
    assert 60 < is_excluded.sum() < 140
    assert not played.num_accepted[is_excluded].any()
    assert (played.token_ids < 2).all()


def test_a_row_that_cannot_be_sampled_makes_the_subject_invalid(monkeypatch) -> None:
    original = verify._chain_inputs

    def broken(*args):
        inputs = original(*args)
        return inputs._replace(target=np.full_like(inputs.target, np.nan))

    monkeypatch.setattr(verify, "_chain_inputs", broken)
    with pytest.raises(InvalidSubject, match="NaN"):
        ToySubject(PAIR, Decoding(1)).play(0, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length = 0"),
        ({"num_samples": 0}, "num_samples = 0"),
        ({"prompts": ()}, "prompts"),
        ({"prompts": ((),)}, "prompts"),
        ({"has_plain_keys": True, "seed": -1}, "seed = -1"),
        ({"has_plain_keys": True, "prompts": ((1,), (2,))}, "2 prompts"),
    ],
)
def test_bad_parameters_are_refused(options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ToySubject(PAIR, Decoding(1), **options)


def test_bad_tables_are_refused() -> None:
    with pytest.raises(ValueError, match="draft_logits"):
        MarkovPair(np.zeros((4, 4)), np.zeros((3, 4)))
