"""Law of the engine with a head: the joint law of three tokens by exact enumeration.

Target and head are random networks over four ids, of those tried the pairs that disagree most.
False alarm 1e-9 a test, miss 1e-6 at the stated total variation (TV).
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fairdraft import LLM, SamplingParams
from fairdraft.speculators import Drawn, DsparkSpeculator, SharedSampler
from tests.engine.toys import tiny_llama
from tests.law import faults
from tests.law.batches import LENGTH, PLAIN, plan_joint, run_joint
from tests.law.engines import processed
from tests.law.judging import Check, assert_law, count, refused
from tests.speculators.small_heads import save_small, with_head

SIZE, PROMPT = 4, [2, 1, 0]
#: what `save_small` is told, and the seed
KINDS: dict[str, dict[str, Any]] = {
    "eagle3": {"seed": 17},
    "mtp, modules": {"seed": 18, "num_modules": 4},
    "shared_kv_mtp": {"seed": 21, "memory_layers": (1,)},
    "dflash": {"seed": 10, "scale": 1.0, "num_drafts": 3, "num_layers": 2},
    "dflash2": {"seed": 17, "scale": 0.5, "num_drafts": 2, "selector_top_k": 3},
    "dspark": {"seed": 7, "scale": 1.0, "num_drafts": 3, "anchor_first": True, "markov_rank": 3},
}
KIND = pytest.mark.parametrize("kind", KINDS)


@functools.cache
def target_law(h: tuple[int, ...], params: SamplingParams) -> np.ndarray:
    with torch.inference_mode():
        logits = small_target()(torch.tensor([[*PROMPT, *h]])).logits[0, -1]
    return processed(logits.double().numpy(), params)


@functools.cache
def small_target():
    return tiny_llama(3, vocab_size=SIZE)


def llm_with_head(folder: Path, num_drafts: int, kind: str, **options: Any) -> LLM:
    save_small(small_target(), folder, **KINDS[kind])
    return with_head(small_target(), folder, num_drafts, max_num_seqs=512, **options)


def checks(llm: LLM, effect: float) -> list[Check]:
    plan = plan_joint(target_law, SIZE, PLAIN, effect)
    tokens = run_joint(llm, PROMPT, plan, LENGTH + 1, seed=100)
    return [Check("tokens 0 to 2", plan, count(tokens, (SIZE,) * LENGTH))]


@KIND
def test_first_three_tokens_follow_the_target(kind: str, tmp_path: Path) -> None:
    """Effect: TV .1."""
    assert_law(checks(llm_with_head(tmp_path, 2, kind), 0.1))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("dflash", {"rejection_sample_method": "block"}),
        ("dspark", {"dspark_draft_topk": 3, "confidence_threshold": 0.5}),
    ],
    ids=["dflash, block", "dspark, top 3, stopped by its guess"],
)
def test_blocks_follow_the_target_under_every_option(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """Effect: TV .1, with the whole block drafted."""
    assert_law(checks(llm_with_head(tmp_path, 3, kind, **options), 0.1))


@pytest.mark.parametrize("kind", ["eagle3", "mtp, modules", "dspark"])
def test_planted_fault_is_refused(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One noise for draft, residual and bonus, by position: the published bug."""
    calls = faults.SHARED_NOISE.plant(monkeypatch)
    found = checks(llm_with_head(tmp_path, 1, kind), 0.1)
    assert calls.count > 0
    assert refused(found)


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "shared_kv_mtp"])
def test_one_address_for_all_steps_of_a_round_is_refused(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Drafts of one pass, or of steps that share a position, share their noise: each follows its q,
    but not given the one before.

    With four ids and this target shared noise of draft and residual, the fault above, stays below
    TV .1 for every DFlash head that was tried.
    """
    calls = faults.CONSTANT_OVER_STEPS.plant(monkeypatch)
    found = checks(llm_with_head(tmp_path, 2, kind), 0.1)
    assert calls.count > 0
    assert refused(found)


def test_q_over_the_vocabulary_for_drafts_of_candidates_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = faults.Q_OVER_THE_VOCABULARY.plant(monkeypatch)
    found = checks(llm_with_head(tmp_path, 2, "dflash2"), 0.1)
    assert calls.count > 0
    assert refused(found)


@pytest.mark.parametrize("wrong", ["bias", "cut"])
def test_q_without_bias_or_cut_is_refused(
    wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is drawn is right, what is handed on is the block's own law, or the one before top-k."""
    biased, draw, whole = DsparkSpeculator._biased, SharedSampler.draw, {}

    def noted(self: DsparkSpeculator, base: Tensor, before: Tensor) -> Tensor:
        whole["law"] = self._law(base if wrong == "bias" else base + self._network.bias(before))
        return biased(self, base, before)

    def faulty(self: SharedSampler, *args: Any, **options: Any) -> Drawn:
        return replace(draw(self, *args, **options), logits=whole["law"])

    monkeypatch.setattr(DsparkSpeculator, "_biased", noted)
    monkeypatch.setattr(SharedSampler, "draw", faulty)
    options = {} if wrong == "bias" else {"dspark_draft_topk": 2}
    assert refused(checks(llm_with_head(tmp_path, 2, "dspark", **options), 0.1))
