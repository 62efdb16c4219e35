"""Noise of the target cannot reach a rule that compares laws: wrong wiring raises.

Nor does it type-check. Each wrong line below carries an ignore, and pyright reports an ignore that
is not needed, so a line that came to type-check would fail the build.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fairdraft import LLM, SamplingParams, ops
from fairdraft.engine import Engine
from fairdraft.ops.verify import AnyRule, Rule
from fairdraft.speculators import CommonSampler, DraftState, Drawn, Guesses, Proposal
from tests.engine.toys import P4, Q4, from_probs

IDS, COUNTS, LAWS = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1), torch.zeros(1, 1, 4)
TARGET = torch.zeros(1, 2, 4)


def common_sampler() -> CommonSampler:
    one = np.ones(1)
    return CommonSampler(
        key=np.ones(1, np.uint64),
        sample=np.zeros(1, np.int64),
        anchor=np.ones(1, np.int64),
        temperature=one,
        top_k=np.zeros(1, np.int64),
        top_p=one,
        min_p=np.zeros(1),
        filtered=np.zeros(1, np.bool_),
        num_steps=1,
    )


def test_a_guess_has_no_law() -> None:
    guessed = common_sampler().draw(torch.zeros(1, 4), 1, np.arange(1))
    assert not isinstance(guessed, Drawn)
    with pytest.raises(AttributeError, match="logits"):
        _ = guessed.logits  # pyright: ignore[reportAttributeAccessIssue]


def test_guesses_take_no_law() -> None:
    with pytest.raises(TypeError, match="draft_logits"):
        Guesses(IDS, COUNTS, draft_logits=LAWS)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("impl", ["reference", "cpu"])
def test_the_rule_takes_no_law(impl: Any) -> None:
    with pytest.raises(ValueError, match="draft_logits is given, and rule 'common_noise'"):
        ops.verify_chain(  # pyright: ignore[reportCallIssue]
            TARGET,
            IDS,
            [1],
            draft_logits=LAWS,
            key=1,
            anchor=1,
            rule="common_noise",  # pyright: ignore[reportArgumentType]
            impl=impl,
        )


class Drafting:
    """Returns what a function makes of a round."""

    name, num_speculative_tokens = "drafting", 1

    def __init__(self, propose: Any) -> None:
        self.propose = propose

    def commit(self, num_accepted_tokens: np.ndarray) -> None: ...
    def admit_row(self, row: int) -> None: ...
    def move_row(self, source: int, destination: int) -> None: ...
    def drop_row(self, row: int) -> None: ...


def generate(propose: Any, rule: AnyRule) -> list[int]:
    llm = LLM(from_probs(P4))
    speculator = Drafting(propose)
    llm.engine = Engine(llm.target, speculator, max_num_seqs=4, max_model_len=64, rule=rule)
    [output] = llm.generate([[0]], SamplingParams(seed=1, max_tokens=12))
    return output.outputs[0].token_ids


def guesses(state: DraftState) -> Guesses:
    """Drafts of Q4, without their law."""
    law = torch.tensor([Q4]).log()
    drawn = state.sampler.draw(law, 1, np.arange(1))
    return Guesses(drawn.token_ids[:, None], torch.ones(1, dtype=torch.int64))


def proposal_of_any_sampler(state: DraftState) -> Guesses:
    """What a speculator that knows nothing of guesses does."""
    law = torch.tensor([Q4]).log()
    drawn = state.sampler.draw(law, 1, np.arange(1))
    laws = drawn.logits[:, None]  # pyright: ignore[reportAttributeAccessIssue]
    return Proposal(drawn.token_ids[:, None], torch.ones(1, dtype=torch.int64), laws)


def proposal_with_a_law_of_its_own(state: DraftState) -> Guesses:
    found = guesses(state)
    return Proposal(found.token_ids, found.num_draft_tokens, torch.tensor([[Q4]]).log())


@pytest.mark.parametrize("rule", ["token", "block"])
def test_guesses_reach_no_ratio(rule: Rule) -> None:
    with pytest.raises(ValueError, match=f"Guesses under rule '{rule}'"):
        generate(guesses, rule)


def test_a_sampler_with_laws_serves_a_ratio() -> None:
    assert len(generate(proposal_of_any_sampler, "token")) == 12


def test_laws_reach_no_common_noise() -> None:
    with pytest.raises(AttributeError, match="logits"):
        generate(proposal_of_any_sampler, "common_noise")
    with pytest.raises(ValueError, match="draft_logits under rule 'common_noise'"):
        generate(proposal_with_a_law_of_its_own, "common_noise")
    expected = generate(lambda state: Proposal.empty(1), "common_noise")
    assert generate(guesses, "common_noise") == expected
