"""Laws of flat Gumbel sampling through the production path: draft, test, residual and bonus.

Few live ids of 1,500, in three tiles of the race, so that nothing here is a race in disguise. False
alarm 1e-9 a test, miss 1e-6 at the stated effect.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.law import faults
from tests.law.faulty_laws import coupled
from tests.law.judging import Check, assert_law, plan_for, refused
from tests.law.rounds import Setup, first_round
from tests.law.tables import P4, P8, Q4, Q8

VOCAB_SIZE = 1_500
IDS = [0, 511, 512, 700, 1_023, 1_024, 1_400, 1_499]
SEED = 1 << 43


def spread(law: np.ndarray) -> np.ndarray:
    """A law on the live ids."""
    wide = np.zeros(VOCAB_SIZE)
    wide[IDS[:: 8 // len(law)]] = law
    return wide


def counts_of(setup: Setup, num_trials: int, num_tokens: int) -> np.ndarray:
    """How often each id was emitted at each of a round's first places [num_tokens, V]."""
    counts = np.zeros((num_tokens, VOCAB_SIZE), np.int64)
    for begin in range(0, num_trials, 1_000):
        size = min(1_000, num_trials - begin)
        tokens = first_round(setup, SEED + begin, size).token_ids.numpy()
        for i in range(num_tokens):
            counts[i] += np.bincount(tokens[tokens[:, i] >= 0, i], minlength=VOCAB_SIZE)
    return counts


def test_every_position_follows_the_target() -> None:
    """Two drafts a round. Effect: TV .05, then .1 given that the place is reached."""
    p, q = spread(P8), spread(Q8)
    reach = np.minimum(P8, Q8).sum() ** np.arange(3)
    plans = [plan_for(p, effect=effect) for effect in (0.05, 0.1, 0.1)]
    num_trials = max(
        int((plan.num_trials + 6 * plan.num_trials**0.5) / r) + 1
        for r, plan in zip(reach, plans, strict=True)
    )
    counts = counts_of(Setup(p, q, 2, method="gumbel"), num_trials, 3)
    assert_law(Check(f"token {i}", plans[i], counts[i]) for i in range(3))


def test_shared_noise_of_draft_and_residual_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """TV .033, exact law of the flat race whatever the tiles; the published form of the bug."""
    p, q = spread(P4), spread(Q4)
    plan = plan_for(p, faulty=spread(coupled(P4, Q4)))
    run = partial(counts_of, Setup(p, q, 1, method="gumbel"), plan.num_trials, 1)
    assert_law([Check("token 0", plan, run()[0])])
    calls = faults.SHARED_NOISE.plant(monkeypatch)
    faulty = run()[0]
    assert calls.count > 0
    assert refused([Check("token 0", plan, faulty)])
    expected = plan.num_trials * spread(coupled(P4, Q4))
    # six standard deviations: it is this law, not just another one
    assert (np.abs(faulty - expected) <= 6 * np.sqrt(expected)).all()
