"""Scored tokens for tests: narrow random laws, with and without drafts, lists and rest cells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairdraft.stats.tokens import REST, ScoredTokens, Source


def random_tokens(
    *,
    seed: int,
    num_texts: int = 3,
    length: int = 7,
    num_columns: int = 12,
    is_filtered: bool = False,
    is_listed: bool = False,
    text: int = 0,
) -> ScoredTokens:
    """Tokens drawn from random laws, in rounds of random length; no decoder's law but a legal one.

    Args:
        seed: Of everything.
        num_texts: Texts.
        length: Tokens a text.
        num_columns: C.
        is_filtered: A third of the columns gets probability 0 under target or draft.
        is_listed: Columns list ids out of 30, in any order, and a rest cell comes last.
        text: Number of the first text.
    """
    generator = np.random.default_rng(seed)
    num_tokens = num_texts * length
    shape = (num_tokens, num_columns)
    laws = generator.dirichlet(np.full(num_columns, 0.6), size=(2, num_tokens))
    if is_filtered:
        laws *= generator.random((2, *shape)) < 0.67
        laws[..., 0] += 1e-3
        laws /= laws.sum(axis=2, keepdims=True)
    target, draft = laws
    column = np.array([generator.choice(num_columns, p=law) for law in target])
    ids = None
    if is_listed:
        ids = np.stack([generator.permutation(30)[:num_columns] for _ in range(num_tokens)])
        ids[:, -1] = REST
    token_id = column if ids is None else ids[np.arange(num_tokens), column]
    before = np.roll(token_id, 1)
    before[::length] = generator.integers(num_columns, size=num_texts)
    second = np.roll(before, 1)
    second[::length] = -1
    slot = generator.integers(4, size=num_tokens)
    draft[slot == 3] = np.nan
    tested = np.where(generator.random(num_tokens) < 0.7, Source.ACCEPTED, Source.REPLACED)
    return ScoredTokens(
        column=column,
        target=target,
        ids=ids,
        draft=draft,
        text=np.repeat(np.arange(text, text + num_texts), length),
        position=np.tile(np.arange(length), num_texts),
        slot=slot,
        source=np.where(slot == 3, Source.BONUS, tested).astype(np.int8),
        drafted=np.where(slot == 3, -1, column),
        previous=np.stack([before, second], axis=1),
    )


def with_columns(tokens: ScoredTokens, column: np.ndarray) -> ScoredTokens:
    """The same contexts with other tokens."""
    return replace(tokens, column=column)


def plain(tokens: ScoredTokens) -> ScoredTokens:
    """The same without anything about drafts."""
    return replace(
        tokens,
        draft=None,
        drafted=np.full(len(tokens), -1),
        slot=np.full(len(tokens), -1),
        source=np.full(len(tokens), Source.UNKNOWN, np.int8),
    )
