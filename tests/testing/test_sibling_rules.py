"""Rules for two siblings in a few lines each: the audit passes the right ones and fails the others.

p and q of the published pair, as in `tests/law/test_tree_enumeration.py`, whose exact laws say how
far each mistake is off. A right rule is refused with chance 1e-6.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fairdraft.audit.faults.tree_faults import k_seq
from fairdraft.testing import NotLossless, SamplerSubject, assert_lossless
from tests.law.test_tree_enumeration import P_PAIR, Q_PAIR

Rule = Callable[[np.random.Generator], int]


def draw(rng: np.random.Generator, weights: np.ndarray) -> int:
    return int(np.searchsorted(weights.cumsum(), rng.random() * weights.sum(), side="right"))


def without(q: np.ndarray, x: int) -> np.ndarray:
    """q without x, renormalized."""
    rest = q.copy()
    rest[x] = 0
    return rest / rest.sum()


def siblings(rng: np.random.Generator) -> list[int]:
    """Two tokens of q, drawn without replacement."""
    first = draw(rng, Q_PAIR)
    return [first, draw(rng, without(Q_PAIR, first))]


def rejected(
    rng: np.random.Generator,
    drawn: list[int],
    *,
    is_independent: bool = False,
    shares_uniform: bool = False,
) -> int:
    """Recursive rejection: keep x with chance r(x) / q(x), else r becomes (r - q)+."""
    r, q, u = P_PAIR, Q_PAIR, rng.random()
    for x in drawn:
        if u * q[x] < r[x]:
            return x
        r = np.maximum(r - q, 0)
        r = r / r.sum()
        q = q if is_independent else without(q, x)
        u = u if shares_uniform else rng.random()
    return draw(rng, r)


def by_k_seq(rng: np.random.Generator, drawn: list[int]) -> int:
    accept, residual, _ = k_seq(P_PAIR, Q_PAIR, 2)
    for x in drawn:
        if rng.random() < accept[x]:
            return x
    return draw(rng, residual)


RIGHT: dict[str, Rule] = {
    "recursive rejection": lambda rng: rejected(rng, siblings(rng)),
    "K-SEQ with replacement": lambda rng: by_k_seq(rng, [draw(rng, Q_PAIR), draw(rng, Q_PAIR)]),
}
WRONG: dict[str, Rule] = {
    "scored independently": lambda rng: rejected(rng, siblings(rng), is_independent=True),
    "re-sorted by probability": lambda rng: rejected(
        rng, sorted(siblings(rng), key=lambda x: -Q_PAIR[x])
    ),
    "re-sorted by id": lambda rng: rejected(rng, sorted(siblings(rng))),
    "sharing one uniform": lambda rng: rejected(rng, siblings(rng), shares_uniform=True),
    "K-SEQ without replacement": lambda rng: by_k_seq(rng, siblings(rng)),
}


def subject(rule: Rule) -> SamplerSubject:
    return SamplerSubject(
        lambda context, rng: rule(rng), lambda context: P_PAIR, texts_per_batch=16, name="siblings"
    )


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_rule_passes(name: str) -> None:
    report = assert_lossless(subject(RIGHT[name]), eps=0.1, max_tokens=20_000)
    assert report.verdict.state == "PASS"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_fails(name: str) -> None:
    """Within 1,000 tokens; the one uniform, whose TV is .0375, within 30,000."""
    limit = 30_000 if name == "sharing one uniform" else 1_000
    with pytest.raises(NotLossless) as failure:
        assert_lossless(subject(WRONG[name]), max_tokens=limit)
    report = failure.value.report
    assert report.verdict.state == "FAIL" and report.num_tokens <= limit
