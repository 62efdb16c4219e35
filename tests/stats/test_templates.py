"""Every template against an enumeration of its bug, and what makes each a fair bet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fairdraft.stats.coupled import shared_noise_law
from fairdraft.stats.templates import TEMPLATES, Template
from fairdraft.stats.tokens import ScoredTokens, compact

BY_NAME = {template.name: template for template in TEMPLATES}
SAMPLERS = ("gumbel", "race", "inverse_cdf", "unknown")
N, C = 200, 7

Row = np.ndarray


def scored(
    p: np.ndarray,
    q: np.ndarray | None,
    *,
    ids: np.ndarray | None = None,
    unfiltered: np.ndarray | None = None,
    raw_draft: np.ndarray | None = None,
    point_mass: np.ndarray | None = None,
) -> ScoredTokens:
    """Tokens whose laws are given; templates must not read the rest."""
    count = len(p)
    zero = np.zeros(count, np.int64)
    return ScoredTokens(
        column=zero,
        target=p,
        ids=ids,
        draft=q,
        text=zero,
        position=np.arange(count),
        slot=zero,
        source=np.zeros(count, np.int8),
        drafted=zero - 1,
        previous=np.zeros((count, 2), np.int64),
        unfiltered=unfiltered,
        raw_draft=raw_draft,
        point_mass=point_mass,
    )


def random_laws(seed: int, count: int = N, width: int = C) -> np.ndarray:
    """Laws of which a fifth of the entries is 0."""
    generator = np.random.default_rng(seed)
    laws = generator.dirichlet(np.ones(width), size=count)
    laws *= (generator.random((count, width)) > 0.2) | (np.arange(width) == seed % width)
    return laws / laws.sum(axis=1, keepdims=True)


def filtered(laws: np.ndarray) -> np.ndarray:
    """The three largest of each law."""
    kept = laws * (laws >= np.sort(laws, axis=1)[:, -3:-2])
    return kept / kept.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def tokens() -> ScoredTokens:
    """Sampled drafts, deterministic ones and none; filters on target and draft."""
    unfiltered, raw = random_laws(1), random_laws(2)
    q = filtered(raw)
    q[::5] = np.nan
    point_mass = np.arange(N) % 3 == 0
    return scored(
        filtered(unfiltered), q, unfiltered=unfiltered, raw_draft=raw, point_mass=point_mass
    )


def residual(p: Row, q: Row) -> Row:
    rest = np.maximum(p - q, 0)
    return rest / rest.sum() if rest.any() else p


def accept(p_x: float, q_x: float) -> float:
    """The rule's chance to keep a draft."""
    return min(1.0, p_x / q_x) if p_x > 0 and q_x > 0 else 0.0


def emitted(drawn: Row, keep: Callable[[int], float], replaced: Callable[[int], Row]) -> Row:
    """Draft by draft: kept, or replaced."""
    out = np.zeros(len(drawn))
    for x in np.flatnonzero(drawn).tolist():
        out[x] += drawn[x] * keep(x)
        out += drawn[x] * (1 - keep(x)) * replaced(x)
    return out


def without(p: Row, x: int) -> Row:
    rest = np.where(np.arange(len(p)) == x, 0, p)
    return rest / rest.sum() if rest.any() else p


def heated(p: Row, factor: float) -> Row:
    logits = np.full(len(p), -np.inf)
    logits[p > 0] = np.log(p[p > 0]) / factor
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def point(law: Row) -> Row:
    return np.eye(len(law))[law.argmax()]


#: what each bug emits, from p, the q that was drawn from and the raw q
BUGS: dict[str, Callable[[Row, Row, Row], Row]] = {
    "replaced from p": lambda p, q, _: emitted(q, lambda x: accept(p[x], q[x]), lambda x: p),
    "replaced from q": lambda p, q, _: emitted(q, lambda x: accept(p[x], q[x]), lambda x: q),
    "replaced by another": lambda p, q, _: emitted(
        q, lambda x: accept(p[x], q[x]), lambda x: without(p, x)
    ),
    "swapped test": lambda p, q, _: emitted(
        q, lambda x: accept(q[x], p[x]), lambda x: residual(p, q)
    ),
    "lenient test": lambda p, q, _: emitted(
        q, lambda x: accept(2 * p[x], q[x]), lambda x: residual(p, q)
    ),
    "raw q": lambda p, q, raw: emitted(
        q, lambda x: accept(p[x], raw[x]), lambda x: residual(p, raw)
    ),
    "raw drafts": lambda p, q, raw: emitted(
        raw, lambda x: accept(p[x], q[x]), lambda x: residual(p, q)
    ),
    "draft leak": lambda p, q, _: emitted(q, lambda x: 0.1, lambda x: p),
    "no test": lambda p, q, _: emitted(q, lambda x: 1.0, lambda x: p),
    "point mass as softmax": lambda p, q, _: emitted(
        point(q), lambda x: accept(p[x], q[x]), lambda x: residual(p, q)
    ),
    "temperature +5%": lambda p, q, _: heated(p, 1.05),
    "temperature -5%": lambda p, q, _: heated(p, 0.95),
}
#: bugs that a deterministic draft can have, its law being a point mass
ALSO_POINT_MASS = {"replaced from p", "replaced from q", "draft leak", "no test"}
READS_NO_DRAFT = {"temperature +5%", "temperature -5%"}


def test_every_template_is_checked_somewhere() -> None:
    elsewhere = {"shared noise", "shared test", "filters dropped"}
    assert set(BUGS) | elsewhere == set(BY_NAME)
    assert len(BY_NAME) == len(TEMPLATES)
    for template in TEMPLATES:
        assert template.title == template.title.strip(" .")
        assert not template.title[0].isupper()


@pytest.mark.parametrize("name", BUGS)
def test_law_is_what_the_bug_emits(tokens, name) -> None:
    law = BY_NAME[name].law(tokens, "race")
    assert law is not None and law.dtype == np.float64 and law.shape == (N, C)
    assert tokens.draft is not None and tokens.raw_draft is not None
    num_bets = 0
    for i, (p, q, raw) in enumerate(
        zip(tokens.target, tokens.draft, tokens.raw_draft, strict=True)
    ):
        is_sampled, is_known = i % 3 != 0, i % 5 != 0
        bets = name in READS_NO_DRAFT or (
            is_known and (is_sampled or name in ALSO_POINT_MASS | {"point mass as softmax"})
        )
        if not bets or (name.startswith("raw") and abs(q - raw).max() < 1e-6):
            assert np.isnan(law[i]).all()
            continue
        num_bets += 1
        drawn = q if is_sampled or name not in ALSO_POINT_MASS else point(q)
        np.testing.assert_allclose(law[i], BUGS[name](p, drawn, raw), rtol=0, atol=1e-12)
    assert num_bets > N / 3


@pytest.mark.parametrize("name", sorted(set(BUGS) - READS_NO_DRAFT))
def test_exchanging_p_and_q_is_noticed(name) -> None:
    """The law of (q, p) is not that of (p, q), so a template that mixed them up fails above."""
    p, q, raw = random_laws(3), random_laws(4), random_laws(5)
    law = BY_NAME[name].law(scored(p, q, raw_draft=raw), "race")
    assert law is not None
    mixed = np.array([BUGS[name](b, a, c) for a, b, c in zip(p, q, raw, strict=True)])
    assert np.median(np.abs(law - mixed).sum(axis=1) / 2) > 0.02


def test_dropped_filters_give_the_unfiltered_law(tokens) -> None:
    template = BY_NAME["filters dropped"]
    law = template.law(tokens, "race")
    assert law is not None
    changed = np.abs(tokens.target - tokens.unfiltered).max(axis=1) > 1e-6
    assert changed.any() and not changed.all()
    assert tokens.unfiltered is not None
    np.testing.assert_allclose(law[changed], tokens.unfiltered[changed], rtol=0, atol=1e-15)
    assert np.isnan(law[~changed]).all()
    # what the filters excluded is emitted, and that is said
    assert (law[changed][tokens.target[changed] == 0] > 0).any()
    assert template.law(replace(tokens, unfiltered=tokens.target), "race") is None
    assert template.law(replace(tokens, unfiltered=None), "race") is None


def test_a_raw_q_that_is_the_processed_one_is_no_bet(tokens) -> None:
    assert tokens.draft is not None
    in_float32 = tokens.draft.astype(np.float32)
    for name in ("raw q", "raw drafts"):
        assert BY_NAME[name].law(replace(tokens, raw_draft=None), "race") is None
        assert BY_NAME[name].law(replace(tokens, raw_draft=tokens.draft), "race") is None
        assert BY_NAME[name].law(replace(tokens, raw_draft=in_float32), "race") is None


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_shared_noise_bets_on_sampled_drafts_by_the_law_of_the_sampler(tokens, sampler) -> None:
    wide = replace(tokens, ids=np.tile(np.arange(C) * 200, (N, 1)))
    law = BY_NAME["shared noise"].law(wide, sampler)
    assert law is not None and wide.draft is not None and wide.ids is not None
    bets = ~np.isnan(wide.draft[:, 0]) & (np.arange(N) % 3 != 0)
    assert np.isnan(law[~bets]).all()
    p, q, ids = wide.target[bets], wide.draft[bets], wide.ids[bets]
    np.testing.assert_allclose(law[bets], shared_noise_law(p, q, ids, sampler), rtol=0, atol=1e-15)
    exchanged = shared_noise_law(q, p, ids, sampler)
    assert np.median(np.abs(law[bets] - exchanged).sum(axis=1) / 2) > 0.02


def test_the_shared_test_is_a_bug_of_inverse_cdfs(tokens) -> None:
    assert BY_NAME["shared test"].law(tokens, "inverse_cdf") is not None
    for sampler in ("gumbel", "race", "unknown"):
        assert BY_NAME["shared test"].law(tokens, sampler) is None


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_every_bet_is_fair(tokens, template: Template, sampler) -> None:
    """Rows are whole laws, and the ratio's mean under the target is at most 1."""
    law = template.law(tokens, sampler)
    if law is None:
        return
    bets = ~np.isnan(law).any(axis=1)
    np.testing.assert_array_equal(bets, ~np.isnan(law).all(axis=1))
    assert (law[bets] >= 0).all()
    np.testing.assert_allclose(law[bets].sum(axis=1), 1, rtol=0, atol=1e-9)
    p = tokens.target[bets]
    ratio = np.divide(law[bets], p, out=np.zeros_like(p), where=p > 0)
    assert ((ratio * p).sum(axis=1) <= 1 + 1e-9).all()


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_a_bet_reads_laws_of_its_own_row_and_nothing_else(tokens, template, sampler) -> None:
    """To the bit: neither what came out, nor the other rows of the batch."""
    generator = np.random.default_rng(6)
    other = replace(
        tokens,
        column=generator.integers(0, C, N),
        drafted=generator.integers(-1, C, N),
        source=generator.integers(0, 4, N).astype(np.int8),
        slot=generator.integers(-1, 4, N),
        position=generator.integers(0, 99, N),
        text=np.arange(N),
        previous=generator.integers(0, 99, (N, 2)),
    )
    wide = np.arange(C) * generator.choice([1, 100, 700], size=(N, 1))
    tokens, other = replace(tokens, ids=wide), replace(other, ids=wide)
    order = generator.permutation(N)[:90]
    laws = [template.law(subject, sampler) for subject in (tokens, other, other.take(order))]
    if laws[0] is None:
        assert laws[1] is None and laws[2] is None
        return
    assert laws[1] is not None and laws[2] is not None
    np.testing.assert_array_equal(laws[1], laws[0])
    np.testing.assert_array_equal(laws[2], laws[0][order])


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_extreme_rows_are_laws_too(template, sampler) -> None:
    """Equal laws, disjoint ones, single tokens, and chances near the smallest number."""
    half = np.array([0.5, 0.5, 0.0, 0.0])
    low = np.array([1.0, 1e-300, 1e-16, 0.0])
    rows = [half, half[::-1], np.eye(4)[0], np.eye(4)[3], low, low[::-1], np.full(4, 0.25)]
    p, q = (np.array(x) for x in zip(*[(a, b) for a in rows for b in rows], strict=True))
    ids = np.tile([0, 500, 600, -1], (len(p), 1))
    point_mass = np.arange(len(p)) % 2 == 0
    subject = scored(p, q, ids=ids, unfiltered=q, raw_draft=p, point_mass=point_mass)
    law = template.law(subject, sampler)
    if law is None:
        return
    bets = ~np.isnan(law[:, 0])
    assert (law[bets] >= 0).all()
    np.testing.assert_allclose(law[bets].sum(axis=1), 1, rtol=0, atol=1e-9)
    if template.name not in READS_NO_DRAFT | {"filters dropped", "raw q", "raw drafts"}:
        is_right = (p == q).all(axis=1) & bets & ~point_mass
        if template.name not in ("shared test", "point mass as softmax"):
            np.testing.assert_allclose(law[is_right], p[is_right], rtol=0, atol=1e-15)


def test_no_draft_no_bet() -> None:
    p = random_laws(1)
    for template in TEMPLATES:
        law = template.law(scored(p, None), "race")
        assert (law is not None) == (template.name in READS_NO_DRAFT)
    empty = scored(p[:0], p[:0], unfiltered=p[:0], raw_draft=p[:0])
    for template in TEMPLATES:
        assert template.law(empty, "inverse_cdf") is None


def test_the_best_token_is_the_lowest_id_and_never_the_rest_cell() -> None:
    p = np.full((2, 4), 0.25)
    q = np.array([[0.1, 0.4, 0.4, 0.1], [0.1, 0.2, 0.2, 0.5]])
    ids = np.array([[9, 7, 3, -1], [9, 7, 3, -1]])
    subject = scored(p, q, ids=ids, point_mass=np.ones(2, np.bool_))
    law = BY_NAME["no test"].law(subject, "race")
    assert law is not None
    np.testing.assert_array_equal(law[0], [0, 0, 1, 0])
    assert np.isnan(law[1]).all()


def test_float32_laws_are_laws_in_float64(tokens) -> None:
    narrow = replace(
        tokens,
        **{
            name: getattr(tokens, name).astype(np.float32)
            for name in ("target", "draft", "unfiltered", "raw_draft")
        },
    )
    for template in TEMPLATES:
        law, exact = template.law(narrow, "race"), template.law(tokens, "race")
        if law is None or exact is None:
            assert law is exact
            continue
        assert law.dtype == np.float64
        np.testing.assert_allclose(np.nansum(law, axis=1), np.nansum(exact, axis=1), atol=1e-9)
        np.testing.assert_allclose(law, exact, rtol=0, atol=1e-5)


def test_rest_cells_cost_little_power() -> None:
    """Their growth a token, of the whole law's, with 1.3 % of the target in the cells."""
    generator = np.random.default_rng(7)
    rank = np.arange(1, 3001)
    logits = -2.0 * np.log(rank) + generator.normal(0, 1.5, (40, 3000))
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    q = p * np.exp(generator.normal(0, 1, p.shape))
    p, q = (x / x.sum(axis=1, keepdims=True) for x in (p, q))
    wide = scored(p, q)
    narrow = compact(wide, 65)
    assert narrow.ids is not None and narrow.target[:, -2:].sum(axis=1).mean() > 0.012
    # the race also depends on which tiles the rest lies in
    for sampler, least in (("gumbel", 0.95), ("race", 0.85)):
        true = BY_NAME["shared noise"].law(wide, sampler)
        bet = BY_NAME["shared noise"].law(narrow, sampler)
        assert true is not None and bet is not None
        kept = np.where(narrow.ids < 0, 0, narrow.ids)
        seen = np.where(narrow.ids < 0, 0, np.take_along_axis(true, kept, axis=1))
        hidden = true.copy()
        np.put_along_axis(hidden, kept[:, :-2], 0.0, axis=1)
        seen[:, -2] = np.where(p > q, hidden, 0).sum(axis=1)
        seen[:, -1] = np.where(p > q, 0, hidden).sum(axis=1)
        growth = (seen * np.log(bet / narrow.target)).sum(axis=1).mean()
        best = (true * np.log(true / p)).sum(axis=1).mean()
        assert growth > least * best
