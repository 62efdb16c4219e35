"""Rare tokens: one likely token and 131,072 that share a mass of 1.2e-3, at all four draws.

A flat sampler of 24-bit numbers reaches 1 % of that tail (p = 9e-9 each, below its grid of 6e-8),
as in the published reports. Exact two-sided binomial test of the tail's mass: false alarm 1e-9,
miss 1e-6 against that sampler.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fairdraft import noise, ops
from fairdraft.noise import Stream
from tests.law.judging import is_refused, num_trials_between
from tests.law.rounds import PROMPT, keys_from

NUM_RARE = 1 << 17
GAP = -18.5
RARE = float(np.exp(GAP) / (1 + NUM_RARE * np.exp(GAP)))
MASS = NUM_RARE * RARE
#: grid over chance of a token: what 24 bits leave of it is x e^-x / (1 - e^-x)
GRID = 2.0**-24 / RARE
REACHED = GRID * np.exp(-GRID) / (1 - np.exp(-GRID))
BLOCK = 16
HEAD, OTHER = 0, 700


def tail_row() -> torch.Tensor:
    """Logits 0 at the head, the gap elsewhere."""
    logits = torch.full((NUM_RARE + 1,), GAP)
    logits[HEAD] = 0.0
    return logits


def certain_row() -> torch.Tensor:
    """All of the mass on one rare token."""
    logits = torch.full((NUM_RARE + 1,), -torch.inf)
    logits[OTHER] = 0.0
    return logits


def sampled(stream: Stream, keys: np.ndarray) -> torch.Tensor:
    rows = tail_row().expand(len(keys), -1)
    at = noise.address(stream, key=keys, position=PROMPT, anchor=PROMPT, node=1)
    return ops.sample(rows, at, impl="cpu").token_ids


def verified(first: torch.Tensor, second: torch.Tensor, keys: np.ndarray, at: int) -> torch.Tensor:
    """Token `at` of rounds whose one draft is certain to be the other token."""
    drafts = torch.full((len(keys), 1), OTHER)
    verdict = ops.verify_chain(
        torch.stack([first, second]).expand(len(keys), -1, -1),
        drafts,
        torch.ones(len(keys), dtype=torch.int64),
        draft_logits=certain_row().expand(len(keys), 1, -1),
        key=keys,
        anchor=PROMPT,
        impl="cpu",
    )
    assert (verdict.num_accepted_tokens == at).all()
    return verdict.token_ids[:, at]


DRAWS = {
    "target": lambda keys: sampled(Stream.TARGET, keys),
    "draft": lambda keys: sampled(Stream.DRAFT, keys),
    "residual": lambda keys: verified(tail_row(), certain_row(), keys, 0),
    "bonus": lambda keys: verified(certain_row(), tail_row(), keys, 1),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_the_tail_keeps_its_mass(draw) -> None:
    """Hits anywhere in the tail, among the draws that false alarm and miss ask for."""
    assert REACHED < 0.011
    num_trials = num_trials_between(MASS, REACHED * MASS)
    hits = 0
    for begin in range(0, num_trials, BLOCK):
        keys = keys_from((1 << 42) + begin, min(BLOCK, num_trials - begin))
        hits += int((draw(keys) != HEAD).sum())
    assert not is_refused(hits, num_trials, MASS), f"{hits} of {num_trials}, mass {MASS:.2e}"
