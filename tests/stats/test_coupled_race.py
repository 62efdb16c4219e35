"""The laws of shared noise against what the production ops emit with it.

Drafts by the shared sampler, then `verify_chain`, with the one address function patched so that
DRAFT, RESIDUAL and BONUS share an address. Trials are planned with false alarm 1e-9 and miss 1e-6,
against the target's own law (the bug has no effect) and against the flat race where the vocabulary
has several tiles (the wrong sampler's law).
"""

from __future__ import annotations

import numpy as np
import pytest

from fairdraft.stats.coupled import shared_noise_law
from fairdraft.stats.coupled_flat import flat_race_law
from tests.law.faults import SHARED_NOISE
from tests.law.judging import Check, assert_law, plan_for, refused
from tests.law.rounds import Setup, first_round
from tests.law.tables import P4, Q4, opposed

SEED = 3 << 41
#: trials at once, times ids
MAX_CELLS = 1 << 21
#: ids 0, 511 | 512, 599 hold the second and third token the other way round
CROSSED = [0, 2, 1, 3]


def spread(vocab_size: int, ids: list[int], law: np.ndarray) -> np.ndarray:
    """A law on some ids of a vocabulary."""
    wide = np.zeros(vocab_size)
    wide[ids] = law
    return wide


def dirichlet_pair(seed: int, vocab_size: int, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Random target and draft on some ids, none below 2 %."""
    generator = np.random.default_rng(seed)
    laws = 0.02 + (1 - 0.02 * len(ids)) * generator.dirichlet(np.ones(len(ids)), size=2)
    return spread(vocab_size, ids, laws[0]), spread(vocab_size, ids, laws[1])


# seeds whose law is at least .02 from the target and .03 from the flat race
LIVE_600 = [3, 200, 510, 511, 512, 598]
LIVE_1500 = [0, 511, 512, 700, 1023, 1024, 1400]
CASES = {
    "4 ids": (P4, Q4),
    "8 ids": opposed(8, 0.4),
    "16 ids": opposed(16, 0.3),
    "600 ids, crossed": (
        spread(600, [0, 511, 512, 599], P4[CROSSED]),
        spread(600, [0, 511, 512, 599], Q4[CROSSED]),
    ),
    "600 ids, random": dirichlet_pair(15, 600, LIVE_600),
    "1500 ids, first": dirichlet_pair(14, 1500, LIVE_1500),
    "1500 ids, second": dirichlet_pair(44, 1500, LIVE_1500),
    "1500 ids, third": dirichlet_pair(30, 1500, LIVE_1500),
}


def emitted(p: np.ndarray, q: np.ndarray, num_trials: int) -> np.ndarray:
    """Counts of the first token of that many rounds with one draft."""
    counts = np.zeros(len(p), np.int64)
    size = max(MAX_CELLS // len(p), 1)
    for first in range(0, num_trials, size):
        verdict = first_round(Setup(p, q, 1), SEED + first, min(size, num_trials - first))
        counts += np.bincount(verdict.token_ids.numpy()[:, 0], minlength=len(p))
    return counts


@pytest.mark.parametrize("name", CASES)
def test_shared_noise_emits_the_law_of_its_sampler(monkeypatch, name) -> None:
    p, q = CASES[name]
    law = shared_noise_law(p[None], q[None], None, "race")[0]
    flat = flat_race_law(p[None], q[None])[0]
    wrong = {"target": p}
    if len(p) > 512:
        assert abs(law - flat).sum() / 2 > 0.03
        assert abs(law - p).sum() / 2 > 0.02
        wrong["flat"] = flat
    plans = {other: plan_for(law, faulty=wrong[other]) for other in wrong}
    refusals = {other: plan_for(wrong[other], faulty=law) for other in wrong}
    num_trials = max(plan.num_trials for plan in [*plans.values(), *refusals.values()])
    calls = SHARED_NOISE.plant(monkeypatch)
    counts = emitted(p, q, num_trials)
    assert calls.count > 0
    assert_law([Check("coupled", plan, counts) for plan in plans.values()])
    for other, plan in refusals.items():
        assert refused([Check(other, plan, counts)])


def test_swapped_arguments_are_refused(monkeypatch) -> None:
    """The law with p and q exchanged is not what comes out."""
    p, q = CASES["1500 ids, first"]
    swapped = shared_noise_law(q[None], p[None], None, "race")[0]
    law = shared_noise_law(p[None], q[None], None, "race")[0]
    plan = plan_for(swapped, faulty=law)
    calls = SHARED_NOISE.plant(monkeypatch)
    counts = emitted(p, q, plan.num_trials)
    assert calls.count > 0
    assert refused([Check("swapped", plan, counts)])
