"""What enters the statistics: laws that sum to 1, compacted, and zeros found before that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairdraft.stats import REST, ScoredTokens, compact
from fairdraft.stats.intake import MAX_COLUMNS, take_in
from tests.stats.streams import random_tokens


def wide(seed: int = 0, num_columns: int = 600, num_texts: int = 20) -> ScoredTokens:
    return random_tokens(seed=seed, num_texts=num_texts, num_columns=num_columns, is_filtered=True)


def changed(tokens: ScoredTokens, name: str, row: int, column: int, value: float) -> ScoredTokens:
    law = getattr(tokens, name).copy()
    law[row, column] = value
    return replace(tokens, **{name: law})


def test_laws_come_out_as_float64_that_sum_to_one() -> None:
    tokens = wide()
    assert tokens.draft is not None
    single = replace(
        tokens,
        target=(tokens.target * 1.00005).astype(np.float32),
        draft=tokens.draft.astype(np.float32),
    )
    found = take_in(single).tokens
    assert found.target.dtype == np.float64 and found.num_columns == MAX_COLUMNS
    assert np.allclose(found.target.sum(axis=1), 1.0, atol=1e-12)
    assert found.draft is not None
    known = ~np.isnan(tokens.draft[:, 0])
    assert np.allclose(found.draft[known].sum(axis=1), 1.0, atol=1e-12)
    assert np.isnan(found.draft[~known]).all()


def test_compaction_in_slabs_is_compaction() -> None:
    tokens = wide()
    whole, found = compact(tokens, MAX_COLUMNS), take_in(tokens).tokens
    assert whole.ids is not None and found.ids is not None
    assert np.array_equal(whole.ids, found.ids) and np.array_equal(whole.column, found.column)
    assert np.allclose(whole.target, found.target, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("target", 1.0, r"token 2 of text 1: target sums to [12]\.\d+"),
        ("target", np.nan, "token 2 of text 1: target sums to nan"),
        ("target", -1e-6, "token 2 of text 1: target has the negative probability -1e-06"),
        ("draft", 1.0, "token 2 of text 1: draft sums to"),
        ("draft", np.nan, "token 2 of text 1: draft sums to nan"),
    ],
)
def test_laws_that_are_none_are_refused_by_row(name: str, value: float, message: str) -> None:
    tokens = random_tokens(seed=3)
    assert tokens.draft is not None
    draft = np.where(np.isnan(tokens.draft), 1.0 / tokens.num_columns, tokens.draft)
    tokens = replace(tokens, draft=draft)
    with pytest.raises(ValueError, match=message):
        take_in(changed(tokens, name, 9, 4, value))


def test_missing_column_is_refused() -> None:
    tokens = random_tokens(seed=3)
    for column in (-1, tokens.num_columns):
        bad = tokens.column.copy()
        bad[9] = column
        with pytest.raises(ValueError, match=f"token 2 of text 1: column {column} is none of"):
            take_in(replace(tokens, column=bad))


def test_zeros_are_found_before_compaction_hides_them() -> None:
    tokens = wide()
    row = 11
    column = int(np.flatnonzero(tokens.target[row] == 0.0)[-1])
    other = tokens.column.copy()
    other[row] = column
    assert tokens.draft is not None
    # neither law knows it, so it goes to the rest cell, which has some mass
    tokens = replace(changed(tokens, "draft", row, column, 0.0), column=other)
    draft = tokens.draft
    assert draft is not None
    draft /= draft.sum(axis=1, keepdims=True)
    found = take_in(tokens)
    assert np.flatnonzero(found.is_impossible).tolist() == [row] and found.is_listed[row]
    assert found.tokens.ids is not None
    assert found.tokens.ids[row, found.tokens.column[row]] == REST
    assert found.tokens.probability[row] > 0.0
    assert take_in(compact(tokens, MAX_COLUMNS)).is_impossible.sum() == 0
