"""Batches of requests, and the planned tests of their first three tokens.

Axes: A possible tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fairdraft import LLM, SamplingParams
from fairdraft.stats import LawTest, Partition
from tests.law.engines import first_tokens
from tests.law.judging import Check, count, plan_for
from tests.law.tables import History, joint_law

PLAIN = SamplingParams()
BATCH = 64
LENGTH = 3

#: what requests of one batch ask for
MIXED = {
    "plain": PLAIN,
    "cool": SamplingParams(temperature=0.5),
    "hot, top-k 3": SamplingParams(temperature=1.5, top_k=3),
    "top-p .75": SamplingParams(top_p=0.75),
    "min-p .4": SamplingParams(min_p=0.4),
    "one draft": SamplingParams(num_speculative_tokens=1),
    "no draft": SamplingParams(num_speculative_tokens=0),
    "greedy": SamplingParams(temperature=0.0),
}

#: law over A tokens after a history, under a request's parameters
Law = Callable[[History, SamplingParams], np.ndarray]
#: tokens to indices 0..A-1
Index = Callable[[np.ndarray], np.ndarray]


def plan_joint(law: Law, size: int, params: SamplingParams, effect: float) -> LawTest:
    """A test of the first three tokens; rare cells are packed, or they alone would set n."""
    joint = joint_law(lambda h: law(h, params), size, LENGTH)
    return plan_for(joint, effect=effect, partition=Partition.by_mass(joint, effect / 20))


def run_joint(llm: LLM, prompt: list[int], plan: LawTest, max_tokens: int, seed: int) -> np.ndarray:
    """First tokens of as many samples as planned, by requests of 512 samples."""
    asked = [
        SamplingParams(n=512, seed=seed + i, max_tokens=max_tokens, ignore_eos=True)
        for i in range(-(-plan.num_trials // 512))
    ]
    return first_tokens(llm.generate([prompt] * len(asked), asked), LENGTH)


def mixed_checks(
    llm: LLM, prompt: list[int], law: Law, size: int, effect: float, index: Index = np.asarray
) -> list[Check]:
    """Every kind of request side by side in one batch, each against its own law.

    Requests of 8 samples are queued in turns of the kinds, so that the rows of a batch of 64 differ
    in every round. Greedy samples must all be the one greedy text.
    """
    plans = {
        name: plan_joint(law, size, params, effect)
        for name, params in MIXED.items()
        if params.temperature > 0
    }
    most = max(-(-plan.num_trials // 8) for plan in plans.values())
    names, asked = [], []
    for turn in range(most):
        for kind, (name, params) in enumerate(MIXED.items()):
            if name not in plans and turn > 20:
                continue
            seed = turn * len(MIXED) + kind
            names.append(name)
            asked.append(replace(params, n=8, seed=seed, max_tokens=LENGTH + 2, ignore_eos=True))
    outputs = llm.generate([prompt] * len(asked), asked)
    drawn = {
        name: index(first_tokens([o for o, n in zip(outputs, names, strict=True) if n == name], 3))
        for name in MIXED
    }
    path: History = ()
    for _ in range(LENGTH):
        path = (*path, int(law(path, MIXED["greedy"]).argmax()))
    assert (drawn["greedy"] == path).all()
    return [Check(name, plan, count(drawn[name], (size,) * LENGTH)) for name, plan in plans.items()]
