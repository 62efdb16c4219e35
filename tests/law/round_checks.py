"""Checks of what whole rounds emit, for any rule.

Planned before the data: false alarm 1e-9 a test, miss 1e-6 at the stated effect, a total variation.
"""

from __future__ import annotations

import numpy as np

from fairdraft.stats import Partition
from tests.law.judging import Check, count, plan_for
from tests.law.rounds import Setup, first_round, generate
from tests.law.tables import joint_law

FIRST, LATER, RARE = 0.02, 0.05, 0.1


def effects(p: np.ndarray, q: np.ndarray, num_drafts: int) -> list[tuple[float, float]]:
    """For each position of a round: the chance that it is reached, and the effect to see."""
    reach = np.minimum(p, q).sum() ** np.arange(num_drafts + 1)
    return [(r, FIRST if r == 1 else LATER if r > 0.05 else RARE) for r in reach]


def round_checks(setup: Setup, seed: int) -> list[Check]:
    """The law of every position of a round, given that it is reached."""
    p, q = setup.p[0], setup.q[0]
    plans = [(r, plan_for(p, effect=e)) for r, e in effects(p, q, setup.num_drafts)]
    # six deviations more, so that each position is reached often enough
    num_trials = max(int((t.num_trials + 6 * t.num_trials**0.5) / r) + 1 for r, t in plans)
    tokens = first_round(setup, seed, num_trials).token_ids.numpy()
    return [
        Check(f"token {i}", plan, np.bincount(tokens[tokens[:, i] >= 0, i], minlength=len(p)))
        for i, (_, plan) in enumerate(plans)
    ]


def round_trip_checks(setup: Setup, seed: int, length: int, effect: float) -> list[Check]:
    """Joint law of the first three tokens, and of every adjacent pair, over several rounds."""
    size = setup.vocab_size
    p = np.broadcast_to(setup.p, (size, size))
    joint = joint_law(lambda h: p[h[-1] if h else 0], size, 3)
    start = p[0]
    named = []
    for i in range(length - 1):
        named.append((f"tokens {i}, {i + 1}", slice(i, i + 2), start[:, None] * p))
        start = start @ p
    named.append(("tokens 0 to 2", slice(0, 3), joint))
    plans = [plan_for(law, effect=effect, partition=cells(law)) for _, _, law in named]
    num_trials = max(plan.num_trials for plan in plans)
    tokens = generate(setup, seed, num_trials, length)
    return [
        Check(name, plan, count(tokens[:, at], law.shape))
        for (name, at, law), plan in zip(named, plans, strict=True)
    ]


def cells(law: np.ndarray) -> Partition:
    """Every cell that is common enough, the rarer ones packed; at most some hundreds."""
    return Partition.by_mass(law, 1 / 800)
