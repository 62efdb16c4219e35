"""The row book: laws kept exactly, texts put in order, and no token hidden in the rest cell."""

from __future__ import annotations

import numpy as np
import torch

from fairdraft.audit.subjects.rows import Decided, RowBook, plain_decided
from fairdraft.stats.tokens import NO_TOKEN, REST, Source

VOCAB_SIZE = 600


def logits(count: int, seed: int) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    return torch.from_numpy(generator.normal(0, 3, (count, VOCAB_SIZE)).astype(np.float32))


def law(rows: torch.Tensor) -> np.ndarray:
    return torch.softmax(rows.double(), dim=-1).numpy()


def drafted(token_id: np.ndarray, drafts: np.ndarray) -> Decided:
    count = len(token_id)
    return Decided(
        text=np.zeros(count, np.int64),
        position=np.arange(count),
        token_id=token_id,
        slot=np.zeros(count, np.int64),
        source=np.full(count, Source.REPLACED, np.int8),
        drafted_id=drafts,
        is_point_mass=np.zeros(count, bool),
    )


def test_laws_are_kept_exactly_and_the_rest_is_one_cell() -> None:
    target, draft = logits(40, 0), logits(40, 1)
    token_id = np.arange(40) * 7
    drafts = (np.arange(40) * 11) % VOCAB_SIZE
    book = RowBook(max_columns=64)
    book.note(drafted(token_id, drafts), target, draft)
    tokens = book.tokens(5, [[3]], [40])
    assert tokens is not None and tokens.ids is not None and tokens.num_columns == 64
    assert (tokens.text == 5).all()
    assert np.allclose(tokens.target.sum(1), 1, atol=1e-12)
    rows = np.arange(40)
    for name, whole in (("target", law(target)), ("draft", law(draft))):
        is_own = tokens.ids != REST
        expected = whole[rows[:, None], tokens.ids]
        found = getattr(tokens, name)
        assert np.allclose(found[is_own], expected[is_own], rtol=1e-5, atol=1e-9)
    is_listed = tokens.token_id != REST
    assert is_listed.any() and (~is_listed).any()
    assert (tokens.token_id[is_listed] == token_id[is_listed]).all()
    found = tokens.ids[rows, tokens.drafted]
    assert np.isin(found[found != drafts], REST).all() and (found == drafts).any()


def test_an_impossible_token_stands_alone() -> None:
    target = logits(3, 2)
    target[1, 9] = -torch.inf
    # so unlikely under target and draft that it is not kept for its law
    draft = logits(3, 3)
    draft[:, 9] = -50.0
    token_id = np.array([0, 9, 2])
    book = RowBook(max_columns=64)
    book.note(drafted(token_id, token_id), target, draft)
    tokens = book.tokens(0, [[3]], [3])
    assert tokens is not None
    assert tokens.token_id[1] == 9 and tokens.probability[1] == 0
    assert tokens.drafted[1] == tokens.column[1]
    assert np.allclose(tokens.target.sum(1), 1)
    assert tokens.draft is not None and np.allclose(tokens.draft.sum(1), 1)


def test_texts_are_sorted_cut_and_know_what_came_before() -> None:
    book = RowBook()
    rows = logits(2, 4)[:, :10]
    for position in range(3):
        ids = np.array([position, 5 + position])
        at = np.full(2, position)
        book.note(plain_decided(np.array([1, 0]), at, ids), rows)
    tokens = book.tokens(10, [[7, 8], [9]], [3, 2])
    assert tokens is not None
    assert tokens.text.tolist() == [10, 10, 10, 11, 11]
    assert tokens.position.tolist() == [0, 1, 2, 0, 1]
    assert tokens.token_id.tolist() == [5, 6, 7, 0, 1]
    assert tokens.previous.tolist() == [[8, 7], [5, 8], [6, 5], [9, NO_TOKEN], [0, 9]]
    assert book.tokens(12, [[7]], [1]) is None


def test_wide_laws_are_taken_in_slabs(monkeypatch) -> None:
    from fairdraft.audit.subjects import rows as module

    whole, part = RowBook(64), RowBook(64)
    token_id = np.arange(40)
    for book in (whole, part):
        book.note(drafted(token_id, token_id), logits(40, 0), logits(40, 1))
        monkeypatch.setattr(module, "DENSE_NUMBERS", 7 * VOCAB_SIZE)
    one, other = whole.tokens(0, [[3]], [40]), part.tokens(0, [[3]], [40])
    assert one is not None and other is not None
    assert np.array_equal(one.target, other.target)
    assert np.array_equal(one.column, other.column)
