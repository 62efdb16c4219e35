"""The public catalogue of planted faults: each is found in time, and the clean path is not.

Outcomes are exact repeats: a case and a seed decide every token of the toys, and of the engine to
the rounding of its logits. Planned tokens come from pilot runs with other seeds (docs/faults.md);
this is a subset of `fairdraft audit faults`, which runs every row.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairdraft import SamplingParams, noise
from fairdraft.audit.faults import (
    CASES,
    FAULTS,
    SETUPS,
    Case,
    Fault,
    Outcome,
    Planting,
    find_cases,
    run_case,
)
from fairdraft.audit.faults.defined import defined_row
from fairdraft.audit.faults.run import run_catalogue
from fairdraft.stats.verdict import VerdictState
from tests.law.processed import processed_row

QUICK = (
    "constant-position",
    "clamped-positions",
    "off-by-one",
    "seed-ignored",
    "prompt-ignored",
    "seed-plus-position",
    "accept-reads-draft",
    "lenient-test",
    "replaced-from-q",
    "clamped-residual",
    "forbidden-as-absent",
    "common-below-ratio",
    "common-drawn-again",
    "common-one-behind",
    "point-mass-as-softmax",
    "top-p-dropped",
    "min-p-dropped",
    "top-k-plus-one",
    "siblings-scored-alone",
    "siblings-by-k-seq",
    "siblings-resorted",
    "siblings-share-a-coin",
)
ENGINE = (
    *("draft-leak", "raw-q", "bonus-from-draft", "neighbors-q", "argmax-as-sampled"),
    *("penalties-once-a-round", "unbiased-bonus"),
)


def case_of(name: str) -> Case:
    (case,) = find_cases([name])
    return case


def test_the_catalogue_has_what_it_promises() -> None:
    planted = [case for case in CASES if case.fault is not None]
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.name for case in planted} == set(FAULTS) and len(planted) >= 20
    assert sum(case.setup.is_engine for case in planted) >= 10
    kinds = {fault.kind for fault in FAULTS.values()}
    assert kinds == {"address", "q", "accept", "residual", "row", "processor"}
    passing = [case for case in planted if case.expected is VerdictState.PASS]
    assert {case.name for case in passing} == {"redrafted-position", "accept-reads-key"}
    assert all(case.is_traced for case in passing)


def test_every_setup_has_a_clean_row_as_long_as_its_longest_fault() -> None:
    used = {case.setup.name for case in CASES if case.fault is not None}
    clean = {case.setup.name: case.num_tokens for case in CASES if case.fault is None}
    assert used == set(clean) == set(SETUPS)
    assert all(case.num_tokens <= clean[case.setup.name] for case in CASES)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_overrides_one_production_function_and_gives_it_back(fault: Fault) -> None:
    assert fault.function.startswith("fairdraft.") and "audit" not in fault.function
    owner, attribute, _ = fault.replacement(Planting())
    original = getattr(owner, attribute)
    with pytest.raises(RuntimeError), fault.planted() as planting:
        assert getattr(owner, attribute) is not original
        assert planting.count == 0
        raise RuntimeError
    assert getattr(owner, attribute) is original


def test_one_fault_at_a_time() -> None:
    first, second = FAULTS["shared-noise"], FAULTS["draft-leak"]
    with first.planted(), pytest.raises(ValueError, match="'draft-leak' cannot be"):
        second.planted().__enter__()
    with second.planted():
        pass


def test_calls_are_counted() -> None:
    with FAULTS["off-by-one"].planted() as planting:
        for position in range(1, 4):
            noise.address(noise.Stream.DRAFT, key=1, position=position)
    assert planting.count == 3
    noise.address(noise.Stream.DRAFT, key=1, position=1)
    assert planting.count == 3


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_fault_is_found_in_time(name: str) -> None:
    outcome = run_case(case_of(name))
    assert outcome.surprises == ()
    assert outcome.tokens_to_fail is not None
    assert outcome.tokens_to_fail <= outcome.case.num_tokens


@pytest.mark.parametrize("name", ENGINE)
def test_a_fault_below_the_engine_is_found_in_time(name: str) -> None:
    outcome = run_case(case_of(name))
    assert outcome.case.setup.is_engine
    assert outcome.surprises == ()


@pytest.mark.parametrize("setup", ["toy", "toy-block", "pocket"])
def test_the_clean_path_does_not_fail(setup: str) -> None:
    outcome = run_case(replace(case_of(f"clean-{setup}"), num_tokens=1_000))
    assert outcome.surprises == ()
    assert outcome.named is None and outcome.tokens_to_fail is None
    assert outcome.num_collisions == 0


@pytest.mark.parametrize("name", ["redrafted-position", "accept-reads-key"])
def test_a_fault_without_bias_is_named_by_the_trace_alone(name: str) -> None:
    """Twenty thousand tokens: far from a FAIL; the whole run goes on to PASS."""
    outcome = run_case(replace(case_of(name), num_tokens=20_000))
    assert outcome.verdict.state is VerdictState.INCONCLUSIVE
    assert outcome.log10_e < 3
    assert outcome.named_by == "trace"


@pytest.mark.parametrize("name", ["common-one-ahead", "common-named-as-ratio", "common-from-draft"])
def test_other_noise_under_common_noise_is_named_by_the_text_alone(name: str) -> None:
    """By proof the law stays, and nothing serves twice: four thousand tokens, far from a FAIL."""
    outcome = run_case(replace(case_of(name), num_tokens=4_000))
    assert outcome.surprises == () and outcome.log10_e < 3
    assert outcome.num_collisions == 0 and outcome.named_by == "text"
    said = replace(outcome, num_differing=0).surprises
    assert said == ("every text is that of plain decoding",)


def test_a_text_that_changes_where_it_must_not_is_said() -> None:
    outcome = run_case(replace(case_of("clean-toy-common"), num_tokens=1_000))
    assert outcome.surprises == () and outcome.num_differing == 0
    said = replace(outcome, num_differing=3).surprises
    assert said == ("3 texts are not those of plain decoding",)


def test_guesses_from_another_law_change_no_token() -> None:
    """Rule common_noise, a filter on the draft's side alone: other guesses stand, no text moves."""
    case = case_of("guessed-from-two")
    assert case.fault is not None
    batches = case.setup.subject(3).batches(), case.setup.subject(3).batches()
    clean = next(batches[0]).tokens
    with case.fault.planted() as planting:
        found = next(batches[1]).tokens
    assert planting.count > 0
    assert (found.column == clean.column).all() and (found.source != clean.source).any()


def test_definitions_are_those_of_the_processor_tests() -> None:
    params = SamplingParams(
        frequency_penalty=0.5,
        presence_penalty=-1.0,
        logit_bias={1: 3.0, 3: -2.0},
        allowed_token_ids=[3, 0, 2],
    )
    raw = np.array([1.0, -2.0, 0.5, 4.0])
    for output in ([], [3], [3, 0, 3]):
        expected = processed_row(raw, (1,), tuple(output), params)
        assert defined_row(raw, output, params).tolist() == expected.tolist()


def test_a_seed_decides_the_outcome() -> None:
    case = case_of("off-by-one")
    first, again, other = (run_case(case, seed) for seed in (7, 7, 8))
    assert replace(first, seconds=0) == replace(again, seconds=0)
    assert first.log10_e != other.log10_e


@pytest.fixture(scope="module")
def found() -> Outcome:
    return run_case(case_of("off-by-one"))


@pytest.mark.parametrize(
    ("change", "clause"),
    [
        ({"expected": VerdictState.PASS}, "FAIL where PASS is expected"),
        ({"expected": None}, "FAIL where nothing is planted"),
        ({"num_tokens": 10}, "not 10"),
        ({"names": ("shared noise",)}, "in place of 'shared noise'"),
        ({"is_traced": False}, "the trace names something"),
    ],
)
def test_what_is_not_as_expected_is_said(found: Outcome, change: dict, clause: str) -> None:
    (said,) = replace(found, case=replace(found.case, **change)).surprises
    assert clause in said


def test_a_silent_trace_and_a_fault_that_never_ran_are_said(found: Outcome) -> None:
    assert replace(found, num_collisions=0).surprises == ("the trace is silent",)
    assert replace(found, num_calls=0).surprises == ("fairdraft.noise.address never ran",)


def test_a_run_keeps_the_order_and_counts_what_is_left() -> None:
    cases = [case_of(name) for name in ("seed-ignored", "constant-position")]
    steps = []
    run = run_catalogue(cases, on_progress=steps.append)
    assert [outcome.case for outcome in run.outcomes] == cases
    assert run.exit_code == 0 and run.surprises == []
    assert [step.num_done for step in steps] == [1, 2]
    assert steps[-1].share == pytest.approx(1) and steps[-1].seconds_left == pytest.approx(0)


def test_what_other_processes_would_not_see_is_refused() -> None:
    case = case_of("seed-ignored")
    with pytest.raises(ValueError, match="pass jobs=1"):
        run_catalogue([replace(case, num_tokens=10)], jobs=2)
    with pytest.raises(ValueError, match="the same name"):
        run_catalogue([case, case])


@pytest.mark.slow
def test_processes_change_nothing() -> None:
    cases = [case_of(name) for name in ("seed-ignored", "constant-position")]
    alone, together = (run_catalogue(cases, jobs=jobs) for jobs in (1, 2))
    for one, other in zip(alone.outcomes, together.outcomes, strict=True):
        assert replace(one, seconds=0) == replace(other, seconds=0)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="no fault is named 'typo'; choose from"):
        find_cases(["typo"])


def test_no_process_is_refused() -> None:
    with pytest.raises(ValueError, match="jobs = 0"):
        run_catalogue(CASES[:1], jobs=0)
