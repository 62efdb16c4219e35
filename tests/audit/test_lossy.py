"""Lossy rules and the audit: it refuses them by name, and finds them where nobody said so.

Each is planted below the exact rule of a catalogue setup, whose laws are known: FAIL must come
within the stated tokens: false alarm 1e-6; twice the most that seeds 101 to 105 needed, rounded up,
and 500 at least.
"""

from __future__ import annotations

from typing import Any

import pytest

from fairdraft import LLM
from fairdraft.audit.faults import SETUPS, Case, Fault, Planting, run_case
from fairdraft.audit.subject import LOSSY_NAMES, SubjectInfo, refuse_lossy
from fairdraft.audit.subjects.engine import EngineSubject
from fairdraft.audit.subjects.engine_exact import compare_engine
from fairdraft.audit.subjects.markov import Decoding, MarkovPair
from fairdraft.audit.subjects.toy import ToySubject
from fairdraft.audit.trace_schema import TraceHeader
from fairdraft.ops import LossyRule, Synthetic, Threshold, Typical
from fairdraft.ops.lossy import LOSSY_RULES
from fairdraft.stats.verdict import VerdictState
from tests.engine.toys import P4, Q4, from_probs

PLANTED: dict[str, tuple[LossyRule, int]] = {
    "typical": (Typical(), 500),
    "threshold": (Threshold(accept_threshold_acc=0.5), 31_000),
    "synthetic": (Synthetic((0.6, 0.4, 0.3)), 500),
}


def test_names_are_those_of_the_rules() -> None:
    assert tuple(LOSSY_RULES) == LOSSY_NAMES


def lossy_fault(rule: LossyRule) -> Fault:
    """The exact rule that was asked for, replaced by a lossy one."""

    def make(original: Any, planting: Planting) -> Any:
        return lambda *args, **options: original(*args, **(options | {"rule": rule}))

    name = f"lossy-{rule.name}"
    return Fault(name, f"rule {rule.name} runs", "fairdraft.ops.verify_chain", make, "accept")


@pytest.mark.parametrize("name", PLANTED)
def test_a_lossy_rule_that_is_not_named_fails(name: str) -> None:
    rule, num_tokens = PLANTED[name]
    outcome = run_case(Case(lossy_fault(rule), SETUPS["toy"], num_tokens))
    assert outcome.surprises == ()
    assert outcome.verdict.state is VerdictState.FAIL


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_the_engine_is_refused(temperature: float) -> None:
    config = {"model": from_probs(Q4), "rule": "typical", "allow_lossy": True}
    llm = LLM(from_probs(P4), speculative_config=config)
    with pytest.raises(ValueError, match="'typical' is lossy.*audit the engine under an exact"):
        EngineSubject(llm) if temperature else compare_engine(llm)


@pytest.mark.parametrize("rule", [Typical(), "typical", "threshold", Synthetic((0.5,))])
def test_other_subjects_are_refused(rule: Any) -> None:
    with pytest.raises(ValueError, match="is lossy"):
        refuse_lossy(rule)
    with pytest.raises(ValueError, match="is lossy"):
        SubjectInfo("own", "an engine", rule=rule)
    with pytest.raises(ValueError, match="is lossy"):
        TraceHeader(8, {"temperature": 1.0}, rule=rule)
    with pytest.raises(ValueError, match="is lossy"):
        ToySubject(MarkovPair.from_laws(P4, Q4), Decoding(1, rule=rule))


@pytest.mark.parametrize("rule", [None, "token", "block", "common_noise"])
def test_exact_rules_are_not(rule: Any) -> None:
    refuse_lossy(rule)
