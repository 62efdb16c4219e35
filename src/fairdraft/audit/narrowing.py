"""Brings the wide laws of one token down to a few columns.

Axes: V vocabulary, C columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fairdraft.audit.trace_schema import TraceHeader
from fairdraft.stats.tokens import REST, ScoredTokens, compact

__all__ = ["narrow"]


def narrow(
    columns: dict[str, Any], laws: dict[str, np.ndarray], header: TraceHeader, max_columns: int
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Keeps the likeliest ids of one token's laws and lumps the others.

    Which are kept depends on the laws alone, with one exception: a token that the target excludes
    takes the place of a listed one, so that no cell hides it. A right sampler never needs that.

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
    kept = compact(_one_row(token, drafted, wide, header), max_columns)
    assert kept.ids is not None
    ids, column = kept.ids[0].copy(), int(kept.column[0])
    found = {name: getattr(kept, name)[0].copy() for name in wide}
    if ids[column] == REST and wide["target"][token] == 0:
        column = _make_room(ids, found, wide, token)
    has_choice = int((ids == REST).sum()) > 1
    narrowed = {**columns, "ids": ids, "cell": None, "drafted_cell": None}
    if ids[column] == REST and has_choice:
        narrowed["cell"] = column
    if drafted is not None and drafted not in ids and has_choice:
        cell = int(kept.drafted[0])
        narrowed["drafted_cell"] = cell if ids[cell] == REST else len(ids) - 1
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


def _make_room(
    ids: np.ndarray, found: dict[str, np.ndarray], wide: dict[str, np.ndarray], token: int
) -> int:
    """Gives an excluded token the last listed column, whose mass joins the last rest cell."""
    place = int(np.flatnonzero(ids != REST)[-1])
    ids[place] = token
    for name, law in found.items():
        whole = law[place] + law[-1]
        law[place] = wide[name][token]
        law[-1] = max(whole - law[place], 0.0)
    return place
