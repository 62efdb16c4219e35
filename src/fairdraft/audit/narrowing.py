"""Brings wide laws down to a few columns, without hiding a token that the target excludes.

Axes: N tokens, V vocabulary, C columns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fairdraft.audit.trace_schema import TraceHeader
from fairdraft.stats.tokens import REST, ScoredTokens, compact

__all__ = ["narrow", "narrow_rows"]


def narrow_rows(dense: ScoredTokens, max_columns: int) -> ScoredTokens:
    """Compacts dense laws, and gives a token of probability 0 a column of its own.

    So the rest cell hides none. It takes the place of the last listed id, which joins the rest. A
    right sampler never needs it, so what is kept still depends on the laws alone.

    Args:
        dense: N tokens over V ids.
        max_columns: C at most.

    Returns:
        The same tokens over C columns; `dense` itself if it is narrow enough.
    """
    kept = compact(dense, max_columns)
    last = kept.num_columns - 1
    bad = np.flatnonzero((kept.column == last) & (dense.probability == 0))
    if kept is dense or not len(bad):
        return kept
    assert kept.ids is not None
    copies: dict[str, Any] = {"column": kept.column.copy(), "drafted": kept.drafted.copy()}
    ids = copies["ids"] = kept.ids.copy()
    # listed ids come first, as many in every row
    place = int((ids[0] != REST).sum()) - 1
    emitted = dense.column[bad]
    ids[bad, place] = emitted
    for name in ("target", "draft", "unfiltered", "raw_draft"):
        law = getattr(kept, name)
        if law is None:
            continue
        law = copies[name] = law.copy()
        whole = law[bad, place] + law[bad, last]
        law[bad, place] = getattr(dense, name)[bad, emitted]
        law[bad, last] = np.maximum(whole - law[bad, place], 0.0)
    drafted = copies["drafted"]
    drafted[bad] = np.where(drafted[bad] == place, last, drafted[bad])
    drafted[bad] = np.where(dense.drafted[bad] == emitted, place, drafted[bad])
    copies["column"][bad] = place
    return replace(kept, **copies)


def narrow(
    columns: dict[str, Any], laws: dict[str, np.ndarray], header: TraceHeader, max_columns: int
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Keeps the likeliest ids of one token's laws and lumps the others; see `narrow_rows`.

    Args:
        columns: "token" and "drafted" (None for none), ids below V.
        laws: Laws [V] by name, all over the same ids.
        header: Says whether they are logprobs, and whether a draft is to be expected.
        max_columns: C at most.

    Returns:
        The same columns with "ids", "cell" and "drafted_cell", and the laws [C].
    """
    token, drafted = columns["token"], columns["drafted"]
    if not 0 <= token < header.vocab_size:
        raise ValueError(f"token {token} is none of the {header.vocab_size} ids")
    is_log = header.values == "logprobs"
    wide = {name: np.exp(law) if is_log else law for name, law in laws.items()}
    kept = narrow_rows(_one_row(token, drafted, wide, header), max_columns)
    assert kept.ids is not None
    ids, column = kept.ids[0], int(kept.column[0])
    found = {name: getattr(kept, name)[0] for name in wide}
    has_choice = int((ids == REST).sum()) > 1
    narrowed = {**columns, "ids": ids, "cell": None, "drafted_cell": None}
    if ids[column] == REST and has_choice:
        narrowed["cell"] = column
    if drafted is not None and drafted not in ids and has_choice:
        narrowed["drafted_cell"] = int(kept.drafted[0])
    if is_log:
        with np.errstate(divide="ignore"):
            found = {name: np.log(law) for name, law in found.items()}
    return narrowed, found


def _one_row(
    token: int, drafted: int | None, laws: dict[str, np.ndarray], header: TraceHeader
) -> ScoredTokens:
    rows = {name: law[None] for name, law in laws.items()}
    if header.speculative:
        # all lines of a trace get the same number of cells, with a draft and without
        rows.setdefault("draft", np.full((1, header.vocab_size), np.nan))
    return ScoredTokens(
        column=np.array([token]),
        target=rows.pop("target"),
        ids=None,
        draft=rows.pop("draft", None),
        text=np.zeros(1, np.int64),
        position=np.zeros(1, np.int64),
        slot=np.zeros(1, np.int64),
        source=np.zeros(1, np.int8),
        drafted=np.array([-1 if drafted is None else drafted]),
        previous=np.full((1, 2), -1),
        **rows,
    )
