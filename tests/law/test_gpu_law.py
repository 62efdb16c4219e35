"""Law of the engine on the pocket pair on a CUDA device, rounds replayed from graphs.

As `test_pocket_law.py`, with real forwards of both models, and the exact law enumerated on the
CPU. False alarm 1e-9 a test, miss 1e-6 at the stated total variation (TV).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fairdraft import LLM
from fairdraft.engine import device_race
from fairdraft.engine.round_graph import RoundGraph
from fairdraft.models import load_model
from fairdraft.noise import Stream
from fairdraft.ops import DeviceAddress
from tests.engine.toys import speculating
from tests.law.batches import BATCH, LENGTH, PLAIN, mixed_checks, plan_joint, run_joint
from tests.law.engines import NarrowLM
from tests.law.judging import Check, assert_law, count, refused
from tests.law.test_pocket_law import SIZE, Pocket

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


class NarrowOnDevice(NarrowLM):
    """A narrow model on a device, in graphs too."""

    def __init__(self, base: Any, allowed: Any) -> None:
        super().__init__(base, allowed)
        self.allowed = self.allowed.to(base.device)
        self.is_out = torch.ones(base.padded_vocab_size, dtype=torch.bool, device=base.device)
        self.is_out[self.allowed] = False

    def call(self, *args: Any, **kwargs: Any) -> Any:
        logits, states = super().call(*args, **kwargs)
        return logits.masked_fill(self.is_out, -torch.inf), states


@pytest.fixture(scope="module")
def pair() -> Pocket:
    return Pocket()


@pytest.fixture
def num_rounds(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many rounds came from graphs."""
    counts = [0]
    run = RoundGraph.run

    def counted(self: RoundGraph, fields: Any) -> Any:
        counts[0] += 1
        return run(self, fields)

    monkeypatch.setattr(RoundGraph, "run", counted)
    return lambda: counts[0]


def new_llm(pair: Pocket, num_drafts: int) -> Any:
    models = [load_model(name, device="cuda") for name in ("pocket", "pocket-draft")]
    target, draft = (NarrowOnDevice(model, pair.ids) for model in models)
    return speculating(target, draft, num_drafts, max_num_seqs=BATCH)


def checks(pair: Pocket, num_drafts: int, effect: float) -> list[Check]:
    plan = plan_joint(pair.law, SIZE, PLAIN, effect)
    llm = new_llm(pair, num_drafts)
    tokens = run_joint(llm, pair.prompt, plan, max(num_drafts + 1, LENGTH), seed=200)
    return [Check("tokens 0 to 2", plan, count(pair.indices(tokens), (SIZE,) * LENGTH))]


@pytest.mark.parametrize("num_drafts", [1, 2, 4])
def test_first_three_tokens_follow_the_target(
    pair: Pocket, num_drafts: int, num_rounds: Callable[[], int]
) -> None:
    """Effect: TV .05."""
    assert_law(checks(pair, num_drafts, 0.05))
    assert num_rounds() > 100


@pytest.mark.parametrize("model", ["pocket-mtp", "pocket-dspark", "pocket-dflash"])
def test_first_three_tokens_follow_the_target_with_a_head(
    pair: Pocket, model: str, num_rounds: Callable[[], int]
) -> None:
    """The head drafts among the same ids. Effect: TV .05."""
    target = NarrowOnDevice(load_model("pocket", device="cuda"), pair.ids)
    config = {"model": model, "num_speculative_tokens": 2}
    llm = LLM(target, speculative_config=config, max_num_seqs=BATCH, device="cuda")
    head: Any = llm.speculator
    law = head._law
    head._law = lambda logits: law(logits).masked_fill(target.is_out, -torch.inf)
    plan = plan_joint(pair.law, SIZE, PLAIN, 0.05)
    tokens = run_joint(llm, pair.prompt, plan, LENGTH, seed=200)
    found = count(pair.indices(tokens), (SIZE,) * LENGTH)
    assert_law([Check("tokens 0 to 2", plan, found)])
    assert num_rounds() > 100


def test_mixed_batch_follows_each_law(pair: Pocket, num_rounds: Callable[[], int]) -> None:
    """Temperatures, filters, greedy, fewer drafts, n > 1, side by side. Effect: TV .2."""
    llm = new_llm(pair, 3)
    assert_law(mixed_checks(llm, pair.prompt, pair.law, SIZE, 0.2, pair.indices))


def test_noise_shared_with_the_residual_is_refused(
    monkeypatch: pytest.MonkeyPatch, pair: Pocket, num_rounds: Callable[[], int]
) -> None:
    """A draft drawn at the address of its own replacement."""

    def shared(stream: Any, *, node: int, **fields: Any) -> DeviceAddress:
        assert stream == Stream.DRAFT
        return DeviceAddress(Stream.RESIDUAL, node=node - 1, **fields)

    monkeypatch.setattr(device_race, "DeviceAddress", shared)
    assert refused(checks(pair, 2, 0.05))
    assert num_rounds() > 100
