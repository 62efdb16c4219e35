"""Engines that draft trees under audit: what is scored, each oracle, and the faults that they find.

Law tests at eps .15, alpha 1e-3, delta .01; planted faults are the catalogue's.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fairdraft import LLM, SamplingParams
from fairdraft.audit.faults import FAULTS
from fairdraft.audit.session import run_audit
from fairdraft.audit.settings import AuditSettings, OraclePolicy
from fairdraft.audit.subjects.engine import EngineSubject
from fairdraft.audit.subjects.engine_exact import compare_engine
from fairdraft.audit.subjects.markov import Decoding
from fairdraft.audit.tracing import check_addresses
from fairdraft.engine import tree_round
from fairdraft.models.blocks import TreeBlock
from fairdraft.stats.tokens import Source
from tests.audit.test_engine_subject import DRAFT, PROMPTS, SETTINGS, TARGET, filtered
from tests.engine.test_greedy_equality import half_wrong
from tests.engine.toys import from_probs, table_model, tiny_llama


def trees(tree: Any = (3, 2), draft: Any = DRAFT, **options: Any) -> LLM:
    impl = options.pop("impl", "auto")
    config = {"speculative_token_tree": tree, **options}
    config |= {} if "method" in options else {"model": table_model(draft)}
    return LLM(table_model(TARGET), speculative_config=config, impl=impl)


def subject(llm: LLM, num_tokens: int = 24, **params: Any) -> EngineSubject:
    asked = SamplingParams(ignore_eos=True, **params)
    return EngineSubject(llm, PROMPTS, asked, num_requests=16, num_tokens=num_tokens)


def test_a_token_is_scored_by_the_candidate_that_was_tested_first() -> None:
    """Laws are the tables' at the token before; accepted tokens may be younger siblings."""
    tokens = next(subject(trees(), temperature=0.8).batches()).tokens
    before = tokens.previous[:, 0]
    np.testing.assert_allclose(tokens.target, filtered(TARGET[before], 0.8, 0), atol=2e-6)
    has_draft = tokens.has_draft
    assert tokens.draft is not None and (has_draft == (tokens.drafted >= 0)).all()
    draft = filtered(DRAFT[before], 0.8, 0)
    np.testing.assert_allclose(tokens.draft[has_draft], draft[has_draft], atol=2e-6)
    is_accepted = tokens.source == Source.ACCEPTED
    is_eldest = tokens.column == tokens.drafted
    assert has_draft[is_accepted].all() and 0.1 < is_eldest[is_accepted].mean() < 1
    assert not is_eldest[tokens.source == Source.REPLACED].any()
    assert not has_draft[tokens.source == Source.BONUS].any()
    assert tokens.slot[tokens.source == Source.BONUS].min() > 0


@pytest.mark.parametrize(
    ("options", "params"),
    [
        ({}, {}),
        ({}, {"temperature": 0.8, "top_k": 9, "presence_penalty": 0.4}),
        ({"draft_sample_method": "greedy"}, {}),
        ({"method": "suffix"}, {}),
    ],
    ids=["sampled", "filters and penalties", "greedy drafts", "suffix"],
)
def test_the_engine_passes(options: dict[str, Any], params: dict[str, Any]) -> None:
    audited = subject(trees(**options), **params)
    assert audited.info.rule == "tree" and "trees of 9 drafts, 2 deep" in audited.info.name
    report = run_audit(audited, SETTINGS)
    assert report.verdict.state == "PASS", report.verdict
    trace, replay, contexts = report.notes
    assert trace.endswith("no collision") and "no mismatch" in replay
    assert contexts.startswith("contexts")


def test_greedy_text_is_compared_with_plain_decoding() -> None:
    report = compare_engine(trees(), PROMPTS, num_tokens=12)
    assert report.verdict.state == "PASS" and "every greedy token" in report.verdict.sentence


def test_a_shared_coin_is_traced() -> None:
    with FAULTS["siblings-share-a-coin"].planted() as planting:
        check = check_addresses(subject(trees()))
    assert planting.count and check.num_collisions and "ACCEPT" in check.collisions[0]


@pytest.mark.parametrize(
    ("name", "impl", "said"),
    [
        ("siblings-resorted", "cpu", "the reference draws"),
        ("siblings-scored-alone", "cpu", "and the reference"),
        ("siblings-scored-alone", "reference", "the formulas of the rule give"),
        ("siblings-share-a-coin", "cpu", "the formulas of the rule give"),
    ],
)
def test_a_wrong_tree_is_replayed(name: str, impl: str, said: str) -> None:
    """A fault of the definition itself is found by the formulas, which share the noise alone."""
    llm = trees([3], -TARGET, impl=impl)
    with FAULTS[name].planted() as planting:
        # the readable walk is slow, and shows its fault at once
        replay = subject(llm, 8 if impl == "reference" else 24).replay_rounds()
    assert planting.count and any(said in mismatch for mismatch in replay.mismatches)


def test_nodes_that_see_their_siblings_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in the mask: every node sees all before it, as a chain's would."""
    target = tiny_llama(0)
    config = {"model": half_wrong(target), "speculative_token_tree": [2, 2]}
    audited = EngineSubject(
        LLM(target, speculative_config=config), [[1, 2, 3]], num_requests=4, num_tokens=12
    )
    assert audited.check_contexts().is_clean

    def flat(start: Any, depths: Any, is_seen: np.ndarray, *, first: int) -> TreeBlock:
        return TreeBlock(start, depths, np.tril(np.ones_like(is_seen)), first)

    monkeypatch.setattr(tree_round, "TreeBlock", flat)
    check = audited.check_contexts()
    assert not check.is_clean and check.largest > 0.01


@pytest.mark.parametrize("name", ["nothing", "siblings-resorted", "siblings-share-a-coin"])
def test_a_fault_below_the_engine_fails_by_law(name: str) -> None:
    """The laws of the catalogue's toy: TV .164 and .107 a token, and nothing planted passes."""
    settings = AuditSettings(eps=0.05, max_tokens=20_000, oracles=OraclePolicy.SKIP)
    config = {"model": from_probs([0.07, 0.06, 0.26, 0.61]), "speculative_token_tree": [2]}
    llm = LLM(from_probs([0.11, 0.27, 0.37, 0.25]), speculative_config=config)
    audited = EngineSubject(llm, [[0], [1]], num_requests=64, num_tokens=32)
    with FAULTS[name].planted() if name in FAULTS else nullcontext() as planting:
        report = run_audit(audited, settings)
    assert report.verdict.state == ("PASS" if planting is None else "FAIL"), report.verdict
    assert planting is None or planting.count


@pytest.mark.parametrize(
    "options", [{"rule": "tree"}, {"rule": "tree", "breadths": (2,)}, {"breadths": (2, 2)}]
)
def test_a_toy_says_its_breadths_under_rule_tree_alone(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="give one a depth under rule 'tree', and none otherwise"):
        Decoding(2, **options)
    with pytest.raises(ValueError, match="without filters"):
        replace(Decoding(2, rule="tree", breadths=(2, 2)), top_k=2)
