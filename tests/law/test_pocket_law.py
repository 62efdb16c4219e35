"""Law of the engine on the pocket pair, its vocabulary narrowed to six adversarial ids.

The joint law of the first three tokens against exact enumeration through the target: its law at
every prefix, computed in one batch a length. In long runs these logits are recalled in place of
the forward, everything else being the engine; a shorter run forwards. False alarm 1e-9 a test, miss
1e-6 at the stated total variation (TV).
"""

from __future__ import annotations

import numpy as np
import pytest

from fairdraft import SamplingParams
from tests.engine.toys import speculating
from tests.law import faults
from tests.law.batches import BATCH, LENGTH, PLAIN, mixed_checks, plan_joint, run_joint
from tests.law.engines import NarrowLM, RecallLM, adversarial_ids, pocket_pair
from tests.law.faults import Fault
from tests.law.judging import Check, assert_law, count, refused

SIZE = 6


class Pocket:
    """The pocket pair on six ids after one prompt, with its logits by prefix."""

    def __init__(self) -> None:
        self.models = pocket_pair()
        self.prompt = self.models[0].tokenizer("Once upon a time")["input_ids"]
        self.ids = adversarial_ids(*self.models, self.prompt, SIZE)
        self.recalled = [RecallLM(model, self.ids, self.prompt, 4) for model in self.models]

    def law(self, prefix: tuple[int, ...], params: SamplingParams) -> np.ndarray:
        return self.recalled[0].law(prefix, params)

    def narrowed(self) -> list[NarrowLM]:
        """Both models on the six ids, computing."""
        return [NarrowLM(model, self.ids) for model in self.models]

    def indices(self, tokens: np.ndarray) -> np.ndarray:
        """Tokens as indices of the six ids; any other id is an error."""
        found = np.searchsorted(self.ids, tokens)
        assert (np.take(self.ids, found, mode="clip") == tokens).all()
        return found

    def checks(self, num_drafts: int, effect: float, *, is_recalled: bool = True) -> list[Check]:
        """Three tokens of a batch of 64, K drafts a round."""
        target, draft = self.recalled if is_recalled else self.narrowed()
        plan = plan_joint(self.law, SIZE, PLAIN, effect)
        llm = speculating(target, draft, num_drafts, max_num_seqs=BATCH)
        tokens = run_joint(llm, self.prompt, plan, max(num_drafts + 1, LENGTH), seed=200)
        return [Check("tokens 0 to 2", plan, count(self.indices(tokens), (SIZE,) * LENGTH))]


@pytest.fixture(scope="module")
def pair() -> Pocket:
    return Pocket()


@pytest.mark.parametrize("num_drafts", [2, 4])
def test_recalled_logits_are_the_models_own(pair: Pocket, num_drafts: int) -> None:
    """One seed gives the same text with recalled and with computed logits."""
    asked = [SamplingParams(seed=i, max_tokens=5, n=4, ignore_eos=True) for i in range(8)]
    texts = []
    for target, draft in (pair.recalled, pair.narrowed()):
        outputs = speculating(target, draft, num_drafts).generate([pair.prompt] * len(asked), asked)
        texts.append([sample.token_ids for output in outputs for sample in output.outputs])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("num_drafts", [1, 2, 4])
def test_first_three_tokens_follow_the_target(pair: Pocket, num_drafts: int) -> None:
    """Effect: TV .05."""
    assert_law(pair.checks(num_drafts, 0.05))


def test_forwarded_batch_follows_the_target(pair: Pocket) -> None:
    """Real forwards of both models, K = 4. Effect: TV .2."""
    assert_law(pair.checks(4, 0.2, is_recalled=False))


def test_mixed_batch_follows_each_law(pair: Pocket) -> None:
    """Temperatures, filters, greedy, fewer drafts, n > 1, side by side. Effect: TV .2."""
    target, draft = pair.recalled
    llm = speculating(target, draft, 3, max_num_seqs=BATCH)
    assert_law(mixed_checks(llm, pair.prompt, pair.law, SIZE, 0.2, pair.indices))


@pytest.mark.parametrize(
    ("fault", "num_drafts", "effect"),
    [
        pytest.param(faults.SHARED_NOISE, 1, 0.05, id="shared noise, K = 1"),
        pytest.param(faults.SHARED_NOISE, 2, 0.05, id="shared noise, K = 2"),
        pytest.param(faults.SHARED_NOISE, 4, 0.05, id="shared noise, K = 4"),
        pytest.param(faults.CONSTANT_OVER_STEPS, 4, 0.05, id="constant over steps"),
        pytest.param(faults.STOP_THAT_LOOKED, 2, 0.1, id="stop that looked"),
    ],
)
def test_planted_fault_is_refused(
    monkeypatch, pair: Pocket, fault: Fault, num_drafts: int, effect: float
) -> None:
    """The test of the first three tokens, planned for a TV of .05 or .1, with a fault below it."""
    calls = fault.plant(monkeypatch)
    checks = pair.checks(num_drafts, effect)
    assert calls.count > 0
    assert refused(checks)
