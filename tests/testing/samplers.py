"""Hand-written samplers for the tests of the assertion: a right one and some that are not."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairdraft.testing import Round, SamplerSubject

P = np.array([0.05, 0.10, 0.15, 0.30, 0.40])
Q = P[::-1].copy()


def speculate(context: Any, rng: np.random.Generator, replacement: np.ndarray) -> Round:
    """One draft; a rejected one is replaced from the given weights."""
    draft = int(rng.choice(5, p=Q))
    if rng.random() * Q[draft] < P[draft]:
        return Round([draft, int(rng.choice(5, p=P))], [draft])
    return Round([int(rng.choice(5, p=replacement / replacement.sum()))], [draft])


def subject(replacement: np.ndarray | None = None, **options: Any) -> SamplerSubject:
    """A subject with the right residual, or another replacement."""
    weights = np.maximum(P - Q, 0) if replacement is None else replacement
    options = {"texts_per_batch": 16, "name": "by hand"} | options
    return SamplerSubject(
        lambda context, rng: speculate(context, rng, weights),
        lambda context: P,
        options.pop("draft", lambda context: Q),
        **options,
    )
