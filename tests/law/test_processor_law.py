"""Laws of the whole engine under processors, over several rounds, on table models.

The joint law of the first three tokens against the definitions. False alarm 1e-9 a test, miss 1e-6
at a total variation (TV) of .2; a planted fault goes through the same test and must be refused.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairdraft import SamplingParams
from fairdraft.stats import Partition
from tests.engine.toys import from_probs, speculating
from tests.law.batches import BATCH, LENGTH
from tests.law.engines import first_tokens
from tests.law.faults import PENALIZED_ONCE_A_ROUND
from tests.law.judging import Check, assert_law, count, plan_for, refused
from tests.law.processed import processed_row
from tests.law.tables import P4, Q4, History, joint_law, log, markov, softmax

TABLES = markov(4, 1, P4, Q4)
PROMPT = (2, 1, 0)
EFFECT = 0.2
PARAMS = SamplingParams(
    n=512,
    max_tokens=LENGTH + 1,
    temperature=0.8,
    presence_penalty=1.0,
    frequency_penalty=1.0,
    repetition_penalty=1.5,
    logit_bias={1: 1.0, 3: -0.5},
    bad_words_ids=[[0, 2], [1, 1, 3]],
)


def law(h: History) -> np.ndarray:
    raw = log(TABLES[0])[(*PROMPT, *h)[-1]]
    return softmax(processed_row(raw, PROMPT, h, PARAMS), PARAMS.temperature)


def checks(on_drafts: bool, method: str) -> list[Check]:
    """First three tokens of as many samples as planned, in rounds of up to four tokens."""
    joint = joint_law(law, 4, LENGTH)
    # rare cells are packed, or they alone would set the number of trials
    plan = plan_for(joint, effect=EFFECT, partition=Partition.by_mass(joint, EFFECT / 20))
    llm = speculating(
        from_probs(TABLES[0]),
        from_probs(TABLES[1]),
        3,
        max_num_seqs=BATCH,
        rejection_sample_method=method,
        process_draft_logits=on_drafts,
    )
    asked = [replace(PARAMS, seed=seed) for seed in range(-(-plan.num_trials // PARAMS.n))]
    tokens = first_tokens(llm.generate([list(PROMPT)] * len(asked), asked), LENGTH)
    return [Check("tokens 0 to 2", plan, count(tokens, (4,) * LENGTH))]


@pytest.mark.parametrize(("on_drafts", "method"), [(False, "standard"), (True, "block")])
def test_first_three_tokens_follow_the_processed_target(on_drafts: bool, method: str) -> None:
    assert_law(checks(on_drafts, method))


def test_penalties_that_advance_once_a_round_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = PENALIZED_ONCE_A_ROUND.plant(monkeypatch)
    found = checks(False, "standard")
    assert calls.count > 0 and refused(found)
