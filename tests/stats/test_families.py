"""Families: the probability of a cell is the target's mass of the tokens that fall into it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from fairdraft.stats import FAMILIES, Cells, Family, ScoredTokens, Source, compact
from fairdraft.stats.octiles import NUM_OCTILES
from fairdraft.stats.view import LastText, View
from tests.stats.streams import plain, random_tokens

BY_NAME = {family.name: family for family in FAMILIES}
JUDGED = [family for family in FAMILIES if not family.is_diagnostic]
LAST = LastText(text=-5, position=0, ids=np.array([3, 1, 4, -1, 5, 9, 2]))


def streams() -> Iterator[tuple[str, ScoredTokens]]:
    yield "dense", random_tokens(seed=1)
    yield "filtered", random_tokens(seed=2, is_filtered=True)
    yield "listed", random_tokens(seed=3, is_listed=True)
    yield "compacted", compact(random_tokens(seed=4, num_columns=40, num_texts=2), 9)
    yield "plain", plain(random_tokens(seed=5))
    point = random_tokens(seed=6)
    assert point.draft is not None
    fixed = np.arange(len(point)) % 3 == 0
    draft = np.where((fixed & (np.arange(len(point)) % 2 == 0))[:, None], np.nan, point.draft)
    yield "point masses", replace(point, point_mass=fixed, draft=draft)


STREAMS = dict(streams())


def outcome(family: Family, tokens: ScoredTokens, row: int) -> tuple[int, np.ndarray] | None:
    """Cell and probabilities of one token, None if it is not eligible."""
    cells = family.cells(View(tokens, LAST))
    if cells is None or row not in cells.rows:
        return None
    at = int(np.flatnonzero(cells.rows == row)[0])
    if cells.reachable is not None:
        assert cells.reachable[at, cells.observed[at]]
        assert not cells.expected[at][~cells.reachable[at]].any()
    return int(cells.observed[at]), cells.expected[at]


@pytest.mark.parametrize("family", JUDGED, ids=lambda family: family.name)
@pytest.mark.parametrize("name", STREAMS)
def test_cells_have_the_mass_of_their_tokens(family: Family, name: str) -> None:
    tokens = STREAMS[name]
    for row in range(0, len(tokens), 2):
        mass = np.zeros(family.num_cells)
        seen = []
        for column in range(tokens.num_columns):
            other = tokens.column.copy()
            other[row] = column
            # what the decoder says of the token's own draft may not matter
            source = tokens.source.copy()
            if source[row] in (Source.ACCEPTED, Source.REPLACED):
                source[row] = Source.ACCEPTED if column % 2 else Source.REPLACED
            seen.append(outcome(family, replace(tokens, column=other, source=source), row))
            if seen[-1] is not None:
                mass[seen[-1][0]] += tokens.target[row, column]
        eligible = [entry for entry in seen if entry is not None]
        # whether a token is eligible, and the probabilities, are known before it is
        assert len(eligible) in (0, len(seen))
        for _, expected in eligible:
            assert np.allclose(expected, mass, atol=1e-12), (name, row)


@pytest.mark.parametrize("name", ["dense", "filtered", "listed", "point masses"])
def test_token_rule_follows_the_diagnostic_cells(name: str) -> None:
    """Enumerates the token rule at each context: drafts, tests, residual."""
    tokens = STREAMS[name]
    acceptance, replacement = BY_NAME["acceptance"], BY_NAME["replacement x q/p"]
    checked = 0
    for row in range(len(tokens)):
        view = View(tokens, LAST)
        if view.draft is None or np.isnan(view.draft[row, 0]):
            continue
        p, q = tokens.target[row], view.draft[row]
        if view.is_point_mass[row]:
            q = np.eye(len(p))[tokens.drafted[row]]
        kept = np.minimum(p, q)
        residual = np.maximum(p - q, 0.0)
        if residual.sum() == 0.0:
            continue
        for source, law in ((Source.ACCEPTED, kept), (Source.REPLACED, residual)):
            column, sources = tokens.column.copy(), tokens.source.copy()
            mass = np.zeros(NUM_OCTILES)
            accepted = 0.0
            listed = 0.0
            for x in np.flatnonzero(law):
                column[row], sources[row] = x, source
                changed = replace(tokens, column=column, source=sources)
                found = outcome(acceptance, changed, row)
                assert found is not None
                if found[0] == 0:
                    accepted += law[x]
                if source == Source.REPLACED:
                    cell = outcome(replacement, changed, row)
                    if cell is not None:
                        mass[cell[0]] += law[x]
                        listed += law[x]
                        last = cell[1]
            if source == Source.ACCEPTED:
                assert found is not None and found[1] == pytest.approx([accepted, 1.0 - accepted])
            elif listed:
                assert last == pytest.approx(mass / listed)
                checked += 1
    assert checked >= 8


def test_octiles_follow_the_definition() -> None:
    tokens = random_tokens(seed=8)
    assert tokens.draft is not None
    found = View(tokens).octiles
    assert found is not None
    for at, row in enumerate(found.rows):
        p, q = tokens.target[row], tokens.draft[row]
        total = 0.0
        for column in sorted(range(len(p)), key=lambda c: q[c] / p[c]):
            assert found.cell[at, column] == min(int(8.0 * (total + 0.5 * p[column])), 7)
            total += p[column]
        assert not np.isnan(q[0])


def test_octiles_of_impossible_columns_are_finite() -> None:
    tokens = STREAMS["filtered"]
    found = View(tokens).octiles
    assert found is not None and np.isfinite(found.expected).all()
    assert np.allclose(found.expected.sum(axis=1), 1.0)


def test_agreement_reads_the_text_before_also_across_batches() -> None:
    tokens = random_tokens(seed=9, num_texts=4, length=5)
    whole = BY_NAME["agreement lag 1"].cells(View(tokens))
    assert whole is not None
    rows = set(whole.rows.tolist())
    for row in range(len(tokens)):
        text, position = divmod(row, 5)
        known = text > 0 and position + 1 < 5
        assert (row in rows) == known
        if known:
            other = tokens.column[row - 5 + 1]
            at = whole.rows.tolist().index(row)
            assert whole.observed[at] == int(other != tokens.column[row])
            assert whole.expected[at, 0] == tokens.target[row, other]
    first = View(tokens.take(np.arange(10)))
    second = View(tokens.take(np.arange(10, 20)), first.last_text())
    parts = [BY_NAME["agreement lag 1"].cells(view) for view in (first, second)]
    assert parts[0] is not None and parts[1] is not None
    joined = np.concatenate([parts[0].rows, parts[1].rows + 10])
    assert np.array_equal(joined, whole.rows)
    expected = np.concatenate([parts[0].expected, parts[1].expected])
    assert np.array_equal(expected, whole.expected)


def test_texts_of_other_lengths_are_compared_where_both_have_tokens() -> None:
    tokens = random_tokens(seed=10, num_texts=2, length=6)
    # the first text loses its end
    tokens = tokens.take(np.r_[0:3, 6:12])
    cells = {lag: BY_NAME[f"agreement lag {lag}"].cells(View(tokens)) for lag in (0, 1, -1)}
    rows = {lag: found.rows.tolist() for lag, found in cells.items() if found is not None}
    assert rows == {0: [3, 4, 5], 1: [3, 4], -1: [4, 5, 6]}


def test_repeat_counts_a_token_twice_before_once() -> None:
    tokens = random_tokens(seed=11)
    tokens = replace(tokens, previous=np.full((len(tokens), 2), 4))
    cells = BY_NAME["repeat"].cells(tokens)
    assert cells is not None and not cells.expected[:, 1].any() and 1 not in cells.observed


def test_without_drafts_draft_families_are_silent() -> None:
    tokens = STREAMS["plain"]
    silent = {family.name for family in FAMILIES if family.cells(View(tokens)) is None}
    assert silent == {
        "q/p octile",
        "slot x q/p",
        "previous replaced x q/p",
        "acceptance",
        "replacement x q/p",
    }


def test_illegal_stratum_is_refused() -> None:
    """Cells by the token's own accepted flag, which is no legal stratum, are refused above."""

    def count(view: View) -> Cells:
        cells = BY_NAME["q/p octile"].cells(view)
        assert cells is not None
        flag = view.tokens.source[cells.rows] == Source.ACCEPTED
        return replace(cells, observed=np.where(flag, cells.observed, 0))

    illegal = replace(BY_NAME["q/p octile"], count=count)
    with pytest.raises(AssertionError):
        test_cells_have_the_mass_of_their_tokens(illegal, "dense")


@pytest.mark.parametrize("name", ["slot x q/p", "previous replaced x q/p"])
def test_tokens_of_unknown_rounds_are_in_no_stratum(name: str) -> None:
    tokens = random_tokens(seed=8)
    unknown = np.full(len(tokens), -1)
    assert (
        BY_NAME[name].cells(replace(tokens, slot=unknown, source=unknown.astype(np.int8))) is None
    )
