"""Evidence and verdict: planted faults fail by name within their plan, exact decoders pass."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from bench.simulate import RULES, Pair, Simulated, direct, heated, simulate
from fairdraft.stats import (
    EXIT_CODES,
    IMPOSSIBLE,
    REST,
    TEMPLATES,
    Evidence,
    EvidenceSettings,
    ScoredTokens,
    Verdict,
    VerdictState,
)
from fairdraft.stats.planner import NUM_FAMILIES, NUM_PROCESSES
from tests.stats.streams import plain

PAIR = Pair.random(16, seed=3)
SETTINGS = EvidenceSettings(alpha=1e-6, sampler="gumbel", rule="token")
LENGTH, NUM_DRAFTS = 32, 3
#: fault to (decoder's tables, rule, template that knows it)
PLANTED = {
    "shared noise": (PAIR, RULES["shared noise"], "shared noise"),
    "swapped test": (PAIR, RULES["swapped test"], "swapped test"),
    "temperature 1.05": (heated(PAIR, 1.05), RULES["token rule"], "temperature +5%"),
}


def play(
    num_tokens: int, *, seed: int, pair: Pair = PAIR, rule: str = "token rule", texts: int = 0
) -> Simulated:
    return simulate(
        pair,
        num_texts=math.ceil(num_tokens / LENGTH),
        length=LENGTH,
        num_drafts=NUM_DRAFTS,
        generator=np.random.default_rng(seed),
        rule=RULES[rule],
    )


def judged(tokens: ScoredTokens, settings: EvidenceSettings = SETTINGS) -> Verdict:
    evidence = Evidence(settings)
    evidence.add(tokens)
    return evidence.verdict()


def listed(tokens: ScoredTokens, count: int) -> ScoredTokens:
    """What an endpoint shows: the `count` likeliest ids and a rest cell, no drafts."""
    order = np.argsort(-tokens.target, axis=1)[:, :count]
    kept = np.take_along_axis(tokens.target, order, axis=1)
    rest = np.maximum(1.0 - kept.sum(axis=1, keepdims=True), 0.0)
    hit = order == tokens.column[:, None]
    return replace(
        plain(tokens),
        column=np.where(hit.any(axis=1), hit.argmax(axis=1), count),
        target=np.concatenate([kept, rest], axis=1),
        ids=np.concatenate([order, np.full((len(order), 1), REST)], axis=1),
    )


def planned_tokens(name: str) -> int:
    """Four times what the fault's own template needs on average to bring 1 / alpha.

    The template wins KL nats a token with variance about 2 KL. At n KL = 4 ln(K / alpha), 68.0 for
    24 processes, the threshold 17.0 is 4.4 standard deviations away: a miss of 1e-5.
    """
    pair, rule, template = PLANTED[name]
    tokens = simulate(
        pair,
        num_texts=256,
        length=LENGTH,
        num_drafts=NUM_DRAFTS,
        generator=np.random.default_rng(0),
        rule=rule,
    ).scored(PAIR)
    law = next(t.law for t in TEMPLATES if t.name == template)(tokens, "gumbel")
    assert law is not None
    won = np.nansum(law * np.log(law / tokens.target), axis=1).mean()
    return math.ceil(4.0 * math.log(NUM_PROCESSES / SETTINGS.alpha) / won)


def test_plans_count_what_shares_the_evidence() -> None:
    evidence = Evidence(SETTINGS)
    judged_families = [f for f in evidence.families() if not f.is_diagnostic]
    assert len(judged_families) == NUM_FAMILIES == 8
    assert len(judged_families) + len(evidence.bets) == NUM_PROCESSES == 24


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_fails_within_its_plan_and_is_named(name: str) -> None:
    """The name takes more tokens where another known fault is nearly the same law."""
    pair, rule, template = PLANTED[name]
    planned = planned_tokens(name)
    played = simulate(
        pair,
        num_texts=math.ceil(max(planned, 4000) / LENGTH),
        length=LENGTH,
        num_drafts=NUM_DRAFTS,
        generator=np.random.default_rng(1),
        rule=rule,
    )
    evidence = Evidence(SETTINGS)
    texts = math.ceil(planned / LENGTH)
    evidence.add(played.take(slice(texts)).scored(PAIR))
    verdict = evidence.verdict()
    assert verdict.state is VerdictState.FAIL and verdict.exit_code == 1
    assert verdict.diagnosis and "alpha=1e-06" in verdict.sentence
    evidence.add(played.take(slice(texts, None)).scored(PAIR, texts))
    title = next(t.title for t in TEMPLATES if t.name == template)
    assert evidence.verdict().diagnosis == title


@pytest.mark.parametrize("name", PLANTED)
def test_exact_decoder_survives_the_plan_of_every_fault(name: str) -> None:
    """A false alarm has probability 1e-6 at most."""
    played = play(planned_tokens(name), seed=2)
    assert judged(played.scored(PAIR)).state is VerdictState.INCONCLUSIVE


def test_exact_decoder_passes_and_a_small_fault_is_biased_within_tolerance() -> None:
    """eps .2 passes after about 1,100 tokens; at temperature 1.15 (TV .07) 12,000 are refuted."""
    settings = replace(SETTINGS, eps=0.2)
    verdict = judged(play(2048, seed=3).scored(PAIR), settings)
    assert verdict.state is VerdictState.PASS and verdict.exit_code == 0
    assert "no declared direction differs from the target by more than eps=0.2" in verdict.sentence
    assert "at 99%; n=2048 tokens, families=8" in verdict.sentence
    warm = play(12_000, seed=4, pair=heated(PAIR, 1.15)).scored(PAIR)
    verdict = judged(warm, settings)
    assert verdict.state is VerdictState.BIASED_WITHIN_TOLERANCE and verdict.exit_code == 0
    assert verdict.diagnosis is not None
    assert any("temperature is about 5% too high" in reason for reason in verdict.reasons)
    assert judged(warm, replace(settings, eps=0.05)).state is VerdictState.FAIL


def test_verdict_says_what_is_missing() -> None:
    verdict = judged(play(4096, seed=5).scored(PAIR))
    assert verdict.state is VerdictState.INCONCLUSIVE and verdict.exit_code == 3
    assert verdict.needed_tokens is not None and 200_000 < verdict.needed_tokens < 900_000
    assert f"about {verdict.needed_tokens} tokens" in verdict.sentence
    bare = judged(plain(play(4096, seed=5).scored(PAIR)))
    assert any("not tested" in reason and "q/p octile" in reason for reason in bare.reasons)
    assert bare.needed_tokens is not None and bare.needed_tokens < verdict.needed_tokens
    nothing = Evidence(SETTINGS).verdict()
    assert nothing.state is VerdictState.INCONCLUSIVE and nothing.needed_tokens is not None


def test_planted_fault_is_seen_through_a_short_list() -> None:
    """Eight ids and a rest cell, no draft laws: drafts accepted with probability q / p."""
    tokens = listed(play(4000, seed=6, rule="swapped test").scored(PAIR), 8)
    assert judged(tokens).state is VerdictState.FAIL
    tokens = listed(play(4000, seed=6).scored(PAIR), 8)
    assert judged(tokens).state is VerdictState.INCONCLUSIVE


def test_agreement_sees_a_shared_seed() -> None:
    """Every second text is a copy of the one before; by themselves the texts are exact."""
    played = play(2000, seed=7)
    tokens = played.scored(PAIR)
    half = np.repeat(np.arange(len(played.token)) // 2 * 2, LENGTH) * LENGTH
    copied = tokens.take(half + np.tile(np.arange(LENGTH), len(played.token)))
    copied = replace(copied, text=tokens.text)
    verdict = judged(copied)
    assert verdict.state is VerdictState.FAIL
    assert verdict.diagnosis is not None and "lag 0: the same" in verdict.diagnosis


def filtered(seed: int, num_tokens: int) -> tuple[ScoredTokens, np.ndarray]:
    """An exact decoder of filtered laws, and a column a row that the target excludes."""
    cut = np.where(PAIR.target < 0.02, 0.0, PAIR.target)
    pair = replace(PAIR, target=cut / cut.sum(axis=1, keepdims=True))
    tokens = play(num_tokens, seed=seed, pair=pair).scored(pair)
    return tokens, (tokens.target == 0.0).argmax(axis=1)


def test_excluded_token_fails_at_once() -> None:
    tokens, excluded = filtered(8, 320)
    assert judged(tokens).state is VerdictState.INCONCLUSIVE
    column = tokens.column.copy()
    column[70] = excluded[70]
    verdict = judged(replace(tokens, column=column))
    assert verdict.state is VerdictState.FAIL and verdict.diagnosis
    reason = f"token 6 of text 2 (id {excluded[70]}) has probability 0 under the target"
    assert reason in verdict.reasons and reason in verdict.sentence


def test_tolerance_forgives_a_few_excluded_tokens_and_no_more() -> None:
    tokens, excluded = filtered(9, 3200)
    settings = replace(SETTINGS, eps0=0.01)
    for every, state in ((400, VerdictState.INCONCLUSIVE), (12, VerdictState.FAIL)):
        column = tokens.column.copy()
        column[::every] = excluded[::every]
        verdict = judged(replace(tokens, column=column), settings)
        assert verdict.state is state, every
    assert verdict.diagnosis == "tokens of probability zero come out"


def test_empty_rest_cell_is_no_proof_but_adds_up() -> None:
    """A list's rest may be lost in rounding; four tokens from it in 2,000 may not."""
    tokens = listed(play(2000, seed=10).scored(PAIR), 15)
    tokens = tokens.take(np.flatnonzero(tokens.column < 15))
    target = tokens.target.copy()
    target[:, -1] = 0.0
    tokens = replace(tokens, target=target / target.sum(axis=1, keepdims=True))
    for count, state in ((1, VerdictState.INCONCLUSIVE), (6, VerdictState.FAIL)):
        column = tokens.column.copy()
        column[100 : 100 + 200 * count : 200] = 15
        verdict = judged(replace(tokens, column=column))
        assert verdict.state is state, count


def test_resumed_evidence_is_the_same_bit_for_bit() -> None:
    played = play(3000, seed=11)
    batches = [played.take(slice(i, i + 7)).scored(PAIR, i) for i in range(0, len(played.token), 7)]
    whole = Evidence(SETTINGS)
    resumed = Evidence(SETTINGS)
    for batch in batches:
        whole.add(batch)
        saved = json.dumps(resumed.state(), allow_nan=False)
        resumed = Evidence(SETTINGS)
        resumed.restore(json.loads(saved))
        resumed.add(batch)
    assert resumed.state() == whole.state() and resumed.summary() == whole.summary()
    assert len(json.dumps(whole.state())) < 40_000
    with pytest.raises(ValueError, match="error rates hold for settings made before the data"):
        Evidence(replace(SETTINGS, eps=0.02)).restore(whole.state())
    with pytest.raises(ValueError, match="another version"):
        Evidence(SETTINGS).restore({**whole.state(), "bets": {}})


def test_texts_come_whole_and_in_order() -> None:
    tokens = play(128, seed=12).scored(PAIR)
    evidence = Evidence(SETTINGS)
    evidence.add(tokens)
    with pytest.raises(ValueError, match="text 0 comes after text 3"):
        evidence.add(tokens)
    with pytest.raises(ValueError, match="text numbers fall"):
        evidence.add(replace(tokens, text=tokens.text[::-1] + 9))
    evidence.add(tokens.take(np.zeros(0, np.int64)))
    assert evidence.num_tokens == 128 and evidence.num_texts == 4


def test_summary_adds_up() -> None:
    played = play(8000, seed=13)
    tokens = played.scored(PAIR)
    evidence = Evidence(SETTINGS)
    evidence.add(tokens)
    summary = evidence.summary()
    assert summary.num_tokens == len(tokens) and summary.num_texts == len(played.token)
    for family in summary.families:
        assert sum(family.observed) == family.num_tokens
        assert sum(family.expected) == pytest.approx(family.num_tokens)
        assert family.tv is not None and family.lower is not None and family.upper is not None
        assert family.lower <= family.tv <= family.upper
    assert summary.heat is not None
    slots = {entry.slot: entry for entry in summary.slots}
    assert set(slots) == {0, 1, 2}
    for slot, entry in slots.items():
        tested = tokens.slot == slot
        assert entry.tested == tested.sum()
        assert entry.accepted == (tested & (tokens.source == 1)).sum()
        spread = math.sqrt(entry.tested) / 2.0
        assert abs(entry.accepted - entry.expected) < 6.0 * spread
    assert sum(map(sum, summary.heat.observed)) == summary.families[3].num_tokens
    assert sum(entry.num_tokens for entry in summary.positions) == summary.families[0].num_tokens
    assert [(entry.first, entry.last) for entry in summary.positions[:4]] == [
        (0, 0),
        (1, 1),
        (2, 3),
        (4, 7),
    ]
    assert [entry.lag for entry in summary.agreement] == [-1, 0, 1]
    assert summary.curve[-1] == (summary.num_tokens, summary.log10_e)
    assert [entry.name for entry in summary.templates][-1] == IMPOSSIBLE


def test_curve_stays_short() -> None:
    evidence = Evidence(SETTINGS)
    played = play(64 * LENGTH, seed=14)
    for text in range(64):
        evidence.add(played.take(slice(text, text + 1)).scored(PAIR, text))
    limit = 20
    evidence.curve = [(i, 0.0) for i in range(400)]
    evidence.add(play(64, seed=15).scored(PAIR, 64))
    assert len(evidence.curve) <= 201 + limit
    assert evidence.curve[-1] == (evidence.num_tokens, evidence.log10_e)


def test_rule_decides_which_diagnostics_run() -> None:
    tokens = simulate(
        PAIR,
        num_texts=4,
        length=LENGTH,
        num_drafts=NUM_DRAFTS,
        generator=np.random.default_rng(16),
        rule=direct,
    ).scored(PAIR)
    for rule in ("block", None):
        evidence = Evidence(replace(SETTINGS, rule=rule))
        evidence.add(tokens)
        silent = [f for f in evidence.summary().families if f.is_diagnostic]
        assert len(silent) == 2 and not any(f.num_tokens for f in silent)
        assert silent[0].tv is None and silent[0].upper is None


@pytest.mark.parametrize(
    "wish", [{"eps": 0.0}, {"alpha": 1.0}, {"delta": 2.0}, {"eps0": -0.1}, {"eps0": 0.5}]
)
def test_impossible_settings_are_refused(wish: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(wish))):
        EvidenceSettings(**wish)


def test_every_state_has_an_exit_code() -> None:
    assert set(EXIT_CODES) == set(VerdictState)
    assert [EXIT_CODES[state] for state in VerdictState] == [0, 1, 0, 3, 4]
