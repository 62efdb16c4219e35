"""What comes before the statistics: laws are checked, compacted and made to sum to 1.

Axes: N tokens, C columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from fairdraft.stats.tokens import ScoredTokens, compact

__all__ = ["MAX_COLUMNS", "SUM_TOLERANCE", "Intake", "take_in"]

#: columns that statistics work on, the rest cell included
MAX_COLUMNS = 256
#: how far a law's sum may be from 1 before it is refused
SUM_TOLERANCE = 1e-4
# rows whose dense laws are compacted at a time: the copies stay small
_SLAB = 64
_LAWS = ("target", "draft", "unfiltered", "raw_draft")


@dataclass(frozen=True)
class Intake:
    """Tokens ready for statistics.

    Attributes:
        tokens: At most `MAX_COLUMNS` columns, float64 laws that sum to 1.
        is_impossible: bool [N], whether the target gave the token probability 0, exactly.
        is_listed: bool [N], whether the token's id had a column of its own before compaction.
    """

    tokens: ScoredTokens
    is_impossible: np.ndarray
    is_listed: np.ndarray


def take_in(tokens: ScoredTokens) -> Intake:
    """Checks and compacts tokens.

    Raises:
        ValueError: If a law has a NaN, a negative probability, or a sum further than 1e-4 from 1,
            or a token's column does not exist; the message names the row.
    """
    _check_columns(tokens)
    impossible = tokens.probability == 0.0
    listed = tokens.token_id >= 0
    slabs = []
    size = _SLAB if tokens.num_columns > MAX_COLUMNS else max(1, len(tokens))
    for first in range(0, len(tokens), size):
        slab = _slab(tokens, first, size)
        # before compaction, which could hide a negative probability in a sum
        _check_signs(slab)
        slabs.append(_normalized(compact(slab, MAX_COLUMNS)))
    return Intake(_joined(slabs) if slabs else tokens, impossible, listed)


def _check_columns(tokens: ScoredTokens) -> None:
    wrong = (tokens.column < 0) | (tokens.column >= tokens.num_columns)
    if wrong.any():
        at = int(wrong.argmax())
        raise ValueError(
            f"{_row(tokens, at)}: column {int(tokens.column[at])} is none of the "
            f"{tokens.num_columns} of its law; give each token's column, or the rest cell's"
        )


def _check_signs(tokens: ScoredTokens) -> None:
    for name in _LAWS:
        law = getattr(tokens, name)
        if law is None:
            continue
        # fmin passes over NaN, which the sums will find
        least = np.fmin.reduce(law, axis=1)
        if (least < 0.0).any():
            at = int((least < 0.0).argmax())
            raise ValueError(
                f"{_row(tokens, at)}: {name} has the negative probability {least[at]:.3g}; "
                "give probabilities, not their logs"
            )


def _normalized(tokens: ScoredTokens) -> ScoredTokens:
    """Laws as float64 that sum to 1; rows of NaN stay so, except the target's."""
    laws = {}
    for name in _LAWS:
        law = getattr(tokens, name)
        if law is None:
            continue
        law = law.astype(np.float64)
        total = law.sum(axis=1)
        wrong = ~(np.abs(total - 1.0) <= SUM_TOLERANCE)
        if name != "target" and wrong.any():
            wrong &= ~np.isnan(law).all(axis=1)
        if wrong.any():
            at = int(wrong.argmax())
            raise ValueError(
                f"{_row(tokens, at)}: {name} sums to {total[at]:.6g}, further than "
                f"{SUM_TOLERANCE:g} from 1; give a law over all columns, with a rest cell for "
                "what is not listed"
            )
        laws[name] = law / total[:, None]
    return replace(tokens, **laws)


def _row(tokens: ScoredTokens, at: int) -> str:
    return f"token {int(tokens.position[at])} of text {int(tokens.text[at])}"


def _slab(tokens: ScoredTokens, first: int, size: int) -> ScoredTokens:
    """Some rows, as views."""
    if len(tokens) <= size:
        return tokens
    rows = slice(first, first + size)
    return _map(tokens, lambda value: value[rows])


def _map(tokens: ScoredTokens, change: Callable[[np.ndarray], np.ndarray]) -> ScoredTokens:
    values = ((field.name, getattr(tokens, field.name)) for field in fields(tokens))
    return replace(tokens, **{k: change(v) for k, v in values if v is not None})


def _joined(slabs: list[ScoredTokens]) -> ScoredTokens:
    if len(slabs) == 1:
        return slabs[0]
    names = [field.name for field in fields(slabs[0])]
    # all slabs are as wide, so they have the same fields
    kept = [name for name in names if getattr(slabs[0], name) is not None]
    parts = {name: np.concatenate([getattr(slab, name) for slab in slabs]) for name in kept}
    return replace(slabs[0], **parts)
