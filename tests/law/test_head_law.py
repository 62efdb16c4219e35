"""Law of the engine with a head: the joint law of three tokens by exact enumeration.

Target and head are random networks over four ids, of those tried the pairs that disagree most.
False alarm 1e-9 a test, miss 1e-6 at the stated total variation (TV).
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch

from fairdraft import LLM, SamplingParams
from tests.engine.toys import tiny_llama
from tests.law import faults
from tests.law.batches import LENGTH, PLAIN, plan_joint, run_joint
from tests.law.engines import processed
from tests.law.judging import Check, assert_law, count, refused
from tests.speculators.small_heads import save_small, with_head

SIZE, PROMPT = 4, [2, 1, 0]
SEEDS = {None: 17, 4: 18}
KIND = pytest.mark.parametrize("num_modules", SEEDS, ids=["eagle3", "mtp, modules"])


@functools.cache
def target_law(h: tuple[int, ...], params: SamplingParams) -> np.ndarray:
    with torch.inference_mode():
        logits = small_target()(torch.tensor([[*PROMPT, *h]])).logits[0, -1]
    return processed(logits.double().numpy(), params)


@functools.cache
def small_target():
    return tiny_llama(3, vocab_size=SIZE)


def llm_with_head(folder: Path, num_drafts: int, num_modules: int | None) -> LLM:
    save_small(small_target(), folder, seed=SEEDS[num_modules], num_modules=num_modules)
    return with_head(small_target(), folder, num_drafts, max_num_seqs=512)


def checks(llm: LLM, effect: float) -> list[Check]:
    plan = plan_joint(target_law, SIZE, PLAIN, effect)
    tokens = run_joint(llm, PROMPT, plan, LENGTH + 1, seed=100)
    return [Check("tokens 0 to 2", plan, count(tokens, (SIZE,) * LENGTH))]


@KIND
def test_first_three_tokens_follow_the_target(num_modules: int | None, tmp_path: Path) -> None:
    """Effect: TV .1."""
    assert_law(checks(llm_with_head(tmp_path, 2, num_modules), 0.1))


@KIND
def test_planted_fault_is_refused(
    num_modules: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One noise for draft, residual and bonus, by position: the published bug."""
    calls = faults.SHARED_NOISE.plant(monkeypatch)
    found = checks(llm_with_head(tmp_path, 1, num_modules), 0.1)
    assert calls.count > 0
    assert refused(found)
