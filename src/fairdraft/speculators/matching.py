"""Where the end of a text occurred before, and how much of it.

Axes: N tokens searched, P places, D depth.
"""

from __future__ import annotations

import numpy as np

#: a node of the tree that occurs more often is counted by its latest places
MAX_PLACES = 256


def match_lengths(text: np.ndarray, ends: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """Tokens before each place that equal the end of `tail` [P], at most its length D.

    Args:
        text: Searched ids [N], int64.
        ends: Places, as indexes just past a token of `text` [P], each at least 1.
        tail: What is looked for, its last token last [D].
    """
    at = ends[:, None] - 1 - np.arange(len(tail))
    is_equal = (text[np.maximum(at, 0)] == tail[::-1]) & (at >= 0)
    return is_equal.cumprod(1).sum(1)


def latest_places(text: np.ndarray, ends: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """The latest places of the shortest end of `tail` that occurs at most MAX_PLACES times.

    Args:
        text: Searched ids [N].
        ends: Places after the last token of `tail`, ascending.
        tail: What is looked for [D].

    Returns:
        At most MAX_PLACES of them, the latest first.
    """
    for size in range(2, len(tail) + 1):
        if len(ends) <= MAX_PLACES:
            break
        longer = ends[ends >= size]
        longer = longer[text[longer - size] == tail[-size]]
        if not len(longer):
            break
        ends = longer
    return ends[-MAX_PLACES:][::-1]
