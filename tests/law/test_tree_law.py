"""Laws of the whole engine with trees of drafts, on table models and a head.

The joint law of the first three tokens against exact enumeration through the target, and siblings
against sampling without replacement. False alarm 1e-9 a test, miss 1e-6 at the stated total
variation (TV). A planted fault goes through the same test and must be refused.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairdraft import LLM
from tests.engine.toys import from_probs
from tests.law.batches import LENGTH, PLAIN, Law, mixed_checks, plan_joint, run_joint
from tests.law.faults import SIBLINGS_RESORTED, SIBLINGS_SHARE_A_COIN, Fault
from tests.law.judging import Check, assert_law, count, plan_for, refused
from tests.law.tables import P4, Q4
from tests.law.test_engine_law import TABLES, toy_law
from tests.law.test_head_law import KINDS, PROMPT, SIZE, small_target, target_law
from tests.speculators.small_heads import save_small


def toy(tree: Any, p: Any = TABLES[0], q: Any = TABLES[1], batch: int = 512) -> LLM:
    config = {"model": from_probs(q), "speculative_token_tree": tree}
    return LLM(from_probs(p), speculative_config=config, max_num_seqs=batch)


def checks(llm: LLM, law: Law, effect: float) -> list[Check]:
    """Three tokens."""
    plan = plan_joint(law, 4, PLAIN, effect)
    tokens = run_joint(llm, [2, 1, 0], plan, 1 + LENGTH, seed=100)
    return [Check("tokens 0 to 2", plan, count(tokens, (4,) * LENGTH))]


def test_first_three_tokens_follow_the_target() -> None:
    """Two rounds or more; three siblings, then two. Effect: TV .05."""
    assert_law(checks(toy([3, 2]), toy_law, 0.05))


#: laws on which a draft is often rejected and its sibling tested
P_TESTED, Q_TESTED = np.array([0.28, 0.08, 0.16, 0.48]), np.array([0.17, 0.05, 0.05, 0.73])


def pair_checks() -> list[Check]:
    """Two siblings a round, so that every token may be the second one. Effect: TV .12."""
    llm = toy([2], np.tile(P_TESTED, (4, 1)), np.tile(Q_TESTED, (4, 1)))
    return checks(llm, lambda h, params: P_TESTED, 0.12)


def test_mixed_batch_follows_each_law() -> None:
    """Temperatures, filters that leave fewer tokens than siblings, greedy rows. Effect: TV .25."""
    assert_law(mixed_checks(toy([2, 2], batch=256), [2, 1, 0], toy_law, 4, effect=0.25))


def test_candidates_of_suffixes_keep_the_law() -> None:
    """Point masses, several a node. Effect: TV .25."""
    plan = plan_joint(toy_law, 4, PLAIN, 0.25)
    config = {"method": "suffix", "speculative_token_tree": [2, 2]}
    llm = LLM(from_probs(TABLES[0]), speculative_config=config, max_num_seqs=512)
    tokens = run_joint(llm, [0, 1, 2, 3, 1, 0, 2, 0, 3, 0], plan, 1 + LENGTH, seed=100)
    assert_law([Check("tokens 0 to 2", plan, count(tokens, (4,) * LENGTH))])


def test_a_head_s_trees_keep_the_law(tmp_path: Path) -> None:
    """Target and head are random networks over four ids. Effect: TV .15."""
    folder = save_small(small_target(), tmp_path, **KINDS["eagle3"])
    config = {"model": folder, "speculative_token_tree": [2, 2]}
    llm = LLM(small_target(), speculative_config=config, max_num_seqs=512)
    plan = plan_joint(target_law, SIZE, PLAIN, 0.15)
    tokens = run_joint(llm, PROMPT, plan, 1 + LENGTH, seed=100)
    assert_law([Check("tokens 0 to 2", plan, count(tokens, (SIZE,) * LENGTH))])


@pytest.mark.parametrize("fault", [None, SIBLINGS_SHARE_A_COIN, SIBLINGS_RESORTED])
def test_siblings_keep_the_law_and_planted_faults_do_not(
    monkeypatch: pytest.MonkeyPatch, fault: Fault | None
) -> None:
    """Planted below the engine: TV .121 and .149 a token, more on three."""
    if fault is None:
        assert_law(pair_checks())
        return
    calls = fault.plant(monkeypatch)
    assert refused(pair_checks()) and calls.count


def sibling_checks() -> list[Check]:
    """Triples of siblings, as the engine proposes them."""
    q, law = Q4, np.zeros((4, 4, 4))
    for x, y, z in itertools.permutations(range(4), 3):
        law[x, y, z] = q[x] * q[y] / (1 - q[x]) * q[z] / (1 - q[x] - q[y])
    plan = plan_for(law, effect=0.07)
    seen: list[np.ndarray] = []
    llm = toy([3], np.tile(P4, (4, 1)), np.tile(Q4, (4, 1)))
    propose = llm.speculator.propose  # pyright: ignore[reportOptionalMemberAccess]

    def record(state: Any) -> Any:
        proposal = propose(state)
        seen.append(proposal.token_ids.numpy().copy())
        return proposal

    llm.speculator.propose = record  # pyright: ignore[reportOptionalMemberAccess]
    run_joint(llm, [0], plan, LENGTH - 1, seed=3)
    groups = np.concatenate([ids[(ids >= 0).all(1)] for ids in seen if ids.shape[1] == 3])
    return [Check("three siblings", plan, count(groups[: plan.num_trials], (4, 4, 4)))]


def test_siblings_are_drawn_without_replacement_in_order() -> None:
    """Effect: TV .07; a token that comes twice is refused by itself."""
    assert_law(sibling_checks())
