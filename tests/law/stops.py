"""Rules that say how many drafts of a round are present: lawful ones, and unlawful ones.

Whether draft i is present may depend on the drafts before it and on the law q_i, never on draft i
nor on anything computed from it.
"""

from __future__ import annotations

import numpy as np

from tests.law.tables import History, Tables


def at_most(limit: int):
    """A budget that reads no token."""
    return lambda tables, x: min(limit, tables.depth)


def after_end_token(tables: Tables, x: History) -> int:
    """Nothing is drafted after token 0: looks at earlier tokens only."""
    return next((i + 1 for i in range(tables.depth) if x[i] == 0), tables.depth)


def before_flat_law(tables: Tables, x: History) -> int:
    """Draft i is left out if max q_i < .5: looks at its law, not at itself."""
    return next((i for i in range(tables.depth) if tables.q[x[:i]].max() < 0.5), tables.depth)


def by_earlier_sum(tables: Tables, x: History) -> int:
    """Draft i is left out if the tokens before it add up to an odd number."""
    return next((i for i in range(tables.depth) if sum(x[:i]) % 2), tables.depth)


def drops_unlikely_draft(tables: Tables, x: History) -> int:
    """Unlawful: draft i is dropped if q_i(x_i) < .3, so it looks at the token that it drops."""
    return next((i for i in range(tables.depth) if tables.q[x[:i]][x[i]] < 0.3), tables.depth)


def drops_what_led_astray(tables: Tables, x: History) -> int:
    """Unlawful: draft i is dropped if it led to a flat q_{i+1}."""
    last = tables.depth - 1
    return next((i for i in range(last) if tables.q[x[: i + 1]].max() < 0.5), tables.depth)


def drops_last_of_unlikely_path(tables: Tables, x: History) -> int:
    """Unlawful: the last draft is dropped if the drawn probabilities multiply to less than .02."""
    drawn = np.prod([tables.q[x[:i]][x[i]] for i in range(tables.depth)])
    return tables.depth - 1 if drawn < 0.02 else tables.depth


def forbidden_is_absent(tables: Tables, x: History) -> int:
    """Unlawful: a forbidden draft (token 2) and what follows are left out."""
    return next((i for i in range(tables.depth) if x[i] == 2), tables.depth)


LAWFUL = {
    "whole": lambda tables, x: tables.depth,
    "budget 0": at_most(0),
    "budget 1": at_most(1),
    "budget 2": at_most(2),
    "after end token": after_end_token,
    "confidence of the law": before_flat_law,
    "earlier tokens": by_earlier_sum,
}
