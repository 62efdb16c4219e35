"""Lossy rules through the engine: allowed by name, labelled in every output, else as any rule."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
from torch import Tensor

from fairdraft import LLM, SamplingParams, ops
from fairdraft.engine import SpeculativeConfig
from fairdraft.noise import Trace
from fairdraft.ops import Synthetic, Threshold, Typical
from tests.engine.toys import P4, Q4, from_probs, ids

LOSSY: dict[str, dict[str, Any]] = {
    "typical": {"posterior_threshold": 0.3, "posterior_alpha": 0.5},
    "threshold": {"accept_threshold_single": 0.2},
    "synthetic": {"synthetic_acceptance_rates": [0.9, 0.6]},
}
PARAMS = SamplingParams(seed=5, max_tokens=12, n=2)
lossy = pytest.mark.parametrize("name", LOSSY)


def config(name: str, **options: Any) -> dict[str, Any]:
    given = {"rejection_sample_method": name, "allow_lossy": True, "num_speculative_tokens": 2}
    return given | LOSSY.get(name, {}) | options


@pytest.fixture(scope="module")
def target() -> Any:
    return from_probs(P4)


@pytest.fixture(scope="module")
def draft() -> Any:
    return from_probs(Q4)


@lossy
def test_every_output_names_the_rule(target: Any, draft: Any, name: str) -> None:
    llm = LLM(target, speculative_config=config(name, model=draft))
    outputs = llm.generate([[0], [1, 2]], PARAMS)
    events = list(llm.stream([[0], [1, 2]], PARAMS))
    assert {output.lossy for output in (*outputs, *events)} == {name}
    assert {output.metrics and output.metrics.lossy for output in outputs} == {name}
    assert all(output.metrics and output.metrics.num_accepted_tokens for output in outputs)
    assert f"rule: {name} (lossy)" in llm.describe() and f"lossy: {name}" in llm.describe()
    # the same key gives the same text, as under any rule
    assert ids(llm.generate([[0], [1, 2]], PARAMS)) == ids(outputs)


def test_exact_rules_name_nothing(target: Any, draft: Any) -> None:
    llm = LLM(target, speculative_config={"model": draft, "allow_lossy": True})
    (output,) = llm.generate([[0]], PARAMS)
    assert output.lossy is None and output.metrics is not None and output.metrics.lossy is None
    assert "lossy" not in llm.describe()


@lossy
def test_greedy_text_is_that_of_plain_decoding(target: Any, draft: Any, name: str) -> None:
    greedy = replace(PARAMS, temperature=0.0, n=1)
    plain = ids(LLM(target).generate([[0], [1]], greedy))
    llm = LLM(target, speculative_config=config(name, model=draft))
    assert (ids(llm.generate([[0], [1]], greedy)) == plain) == (name != "synthetic")


def test_synthetic_rates_are_met_with_drafts_of_any_kind(target: Any) -> None:
    """Rates 1 and 0: one draft in two stands, whatever the target says of it."""
    options = {"synthetic_acceptance_rates": None, "synthetic_acceptance_length": 2.0}
    given = config("synthetic", method="ngram", prompt_lookup_min=1, **options)
    llm = LLM(target, speculative_config=given)
    (output,) = llm.generate([[0, 1, 0, 1, 0, 1, 0]], SamplingParams(seed=1, max_tokens=40))
    metrics = output.metrics
    assert metrics is not None and metrics.num_draft_tokens > 10
    assert metrics.accepted_per_position == [metrics.drafted_per_position[0], 0]


def test_a_grammar_that_excludes_drafts_stays_whole(target: Any, draft: Any) -> None:
    """At a rate of 1 a masked draft would break the mask; it never stands."""
    given = config("synthetic", model=draft, synthetic_acceptance_rates=[1, 1])
    (output,) = LLM(target, speculative_config=given).generate(
        [[0]], replace(PARAMS, allowed_token_ids=[0, 1], max_tokens=30)
    )
    assert output.error is None
    assert {token for sample in output.outputs for token in sample.token_ids} == {0, 1}


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (config("typical"), Typical(0.3, 0.5)),
        ({"rule": "typical", "allow_lossy": True}, Typical(0.09, 0.3)),
        (config("threshold"), Threshold(0.2, 1.0)),
        (config("synthetic"), Synthetic((0.9, 0.6))),
        ({"rule": "token"}, "token"),
        ({"rule": "token", "rejection_sample_method": "standard"}, "token"),
        ({"rule": "common_noise"}, "common_noise"),
    ],
)
def test_rules_of_configurations(options: dict[str, Any], rule: Any) -> None:
    assert SpeculativeConfig.from_dict({"method": "ngram", **options}).rule == rule


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rejection_sample_method": "typical"}, "'typical' is lossy.*Add 'allow_lossy': True"),
        ({"rule": "typical"}, "'typical' is lossy.*Add 'allow_lossy': True"),
        ({"rule": "typical", "allow_lossy": 1}, "allow_lossy=1: must be True or False"),
        ({"rule": "typo"}, "rule='typo' must be one of token, block"),
        ({"rule": "token", "rejection_sample_method": "block"}, "disagree: leave one out"),
        ({"posterior_alpha": 0.3}, "posterior_alpha=0.3 belongs to .*'typical', not to 'standard'"),
        (config("typical", posterior_threshold=2), "posterior_threshold = 2 must be above 0"),
        (config("typical", accept_threshold_acc=0.5), "belongs to .*'threshold'"),
        ({"rule": "threshold", "allow_lossy": True}, "needs accept_threshold_single or"),
        (config("threshold", accept_threshold_single=0), "accept_threshold_single = 0"),
        ({"rule": "synthetic", "allow_lossy": True}, "one of the two"),
        (config("synthetic", synthetic_acceptance_length=2), "one of the two"),
        (config("synthetic", synthetic_acceptance_rates=[0.5]), "must be 2, one a draft"),
        (config("synthetic", synthetic_acceptance_rates=[0.5, 0.6]), "never rise"),
        (config("synthetic", synthetic_acceptance_rates=0.5), "must be a list of numbers"),
    ],
)
def test_configurations_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SpeculativeConfig.from_dict({"method": "ngram", **options})


def test_a_trace_beside_a_lossy_rule_is_refused(target: Any) -> None:
    with pytest.raises(ValueError, match="trace and the lossy rule 'typical'"):
        LLM(target, speculative_config=config("typical", method="ngram"), trace=Trace())


@pytest.mark.skipif(
    not find_spec("triton") or os.environ.get("TRITON_INTERPRET") != "1",
    reason="kernels run on the CPU interpreted alone",
)
@lossy
def test_kernels_give_the_text_of_the_host(
    target: Any, draft: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eagerly, and the label stays; rounds are verified where the logits are."""
    params = replace(PARAMS, max_tokens=5, n=1)
    given = config(name, model=draft)
    expected = LLM(target, speculative_config=given).generate([[0], [1, 2]], params)
    llm = LLM(target, speculative_config=given, impl="triton")
    verdicts, verify = [], ops.verify_chain

    def noted(*args: Any, **options: Any) -> ops.Verdict:
        verdicts.append(verify(*args, **options))
        return verdicts[-1]

    monkeypatch.setattr(ops, "verify_chain", noted)
    got = llm.generate([[0], [1, 2]], params)
    assert ids(got) == ids(expected) and {output.lossy for output in got} == {name}
    assert {verdict.lossy for verdict in verdicts} == {name} and llm.engine.graphs is None
    assert all(isinstance(verdict.num_broken, Tensor) for verdict in verdicts), "the host's ops ran"
