"""Structured outputs: legal at every token, with the law of plain decoding, whatever is drafted."""

from __future__ import annotations

import itertools
import json
import re
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fairdraft import LLM, SamplingParams, StructuredOutputsParams, pocket
from fairdraft.engine.processing import plan as plan_module
from fairdraft.engine.processing.grammar import GrammarState
from fairdraft.ops.verify import Rule
from tests.engine.toys import from_probs, ids, letter_tokenizer, table_model
from tests.law.enumeration import EXACT, Experiment, deterministic, error_of, weights_of
from tests.law.faults import FORBIDDEN_AS_ABSENT, WRONG_BRANCH
from tests.law.judging import Check, assert_law, plan_for, refused
from tests.law.processed import STARTS, Pipeline, raw_tables
from tests.law.tables import BASE_TWO, History, Tables, softmax
from tests.law.test_tree_processing import by_depth
from tests.law.trees import TreeExperiment, tree_weights

pytest.importorskip("llguidance", reason="the extra `grammar` is not installed")

LETTERS = "0123456789abcdef"
EOS = len(LETTERS)
SIZE = EOS + 1


TOKENIZER = letter_tokenizer(LETTERS)


def llm_of(target: Any, draft: Any = None, num_drafts: int = 3, **options: Any) -> LLM:
    config = {"model": draft, "num_speculative_tokens": num_drafts, **options}
    return LLM(target, tokenizer=TOKENIZER, speculative_config=None if draft is None else config)


def structured(**options: Any) -> StructuredOutputsParams:
    return StructuredOutputsParams(**options)


def preferring(*favorites: int, gap: float = 10.0) -> Any:
    """A model that likes some ids by a gap wherever it is."""
    row = np.random.default_rng(sum(favorites)).normal(size=(SIZE, SIZE)).astype(np.float32)
    row[:, list(favorites)] += gap
    return table_model(row, eos_token_id=EOS)


#: what drafts: always an illegal id, always legal ones, all kinds, the end at once
DRAFTS = {"illegal": (12,), "legal": (3, 4), "any": (), "the end": (EOS,), "half": (3, 12)}


@pytest.mark.parametrize("rule", ["standard", "block"])
@pytest.mark.parametrize("on_drafts", [False, True])
@pytest.mark.parametrize("num_drafts", [1, 3, 6])
def test_every_token_is_legal_and_greedy_text_is_plain(
    num_drafts: int, on_drafts: bool, rule: str
) -> None:
    """The target likes an illegal letter by 10 nats; four digits and the end are asked for."""
    target = preferring(12)
    asked = structured(regex="[0-9]{4}")
    greedy = SamplingParams(temperature=0, max_tokens=12, structured_outputs=asked)
    hot = SamplingParams(seed=1, n=4, max_tokens=12, structured_outputs=asked)
    free = SamplingParams(temperature=0, max_tokens=12)
    prompts = [[1], [1], [2]]
    plain = llm_of(target).generate(prompts, [greedy, hot, free])
    for kind in DRAFTS.values():
        llm = llm_of(
            target,
            preferring(*kind),
            num_drafts,
            process_draft_logits=on_drafts,
            rejection_sample_method=rule,
        )
        outputs = llm.generate(prompts, [greedy, hot, free])
        assert [ids(outputs)[i] for i in (0, 2)] == [ids(plain)[i] for i in (0, 2)]
        for output in outputs[:2]:
            for sample in output.outputs:
                assert sample.finish_reason == "stop", output.error
                assert re.fullmatch("[0-9]{4}", sample.text)
                assert sample.token_ids[-1] == EOS and len(sample.token_ids) == 5


@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize("num_drafts", [0, 1, 5])
def test_the_grammar_begins_after_its_marker_wherever_it_falls(place: int, num_drafts: int) -> None:
    """Free text 'c' up to the marker 'ff', then two digits; the drafter goes on with 'c'."""
    table = np.zeros((SIZE, SIZE), np.float32)
    table[:, 12] = 5.0

    def after(input_ids: Any, scores: Any) -> Any:
        """The target says the marker at its place."""
        if input_ids.shape[1] - 1 in (place, place + 1):
            scores[0, 15] = 50.0
        return scores

    target = table_model(table, eos_token_id=EOS)
    llm = llm_of(target, target if num_drafts else None, num_drafts)
    params = SamplingParams(
        temperature=0,
        max_tokens=16,
        logits_processors=[after],
        structured_outputs=structured(regex="[0-9]{2}", begin_after_ids=[15, 15]),
    )
    [output] = llm.generate([[0]], params)
    assert output.outputs[0].text == "c" * place + "ff00"
    assert output.outputs[0].finish_reason == "stop"


#: all that the regex below matches, over the letters a, b and c; id 3 ends the text
TEXTS = [(x, y) for x in (0, 1) for y in (1, 2)]
TEXTS += [(*text, 2) for text in TEXTS]


class Narrow:
    """A target of three letters for the enumeration."""

    vocab_size = 4
    eos_token_ids = frozenset({3})
    tokenizer = letter_tokenizer("abc")
    name = "tables"


@pytest.fixture
def regex_law(monkeypatch: pytest.MonkeyPatch) -> tuple[Tables, Pipeline]:
    """Laws under `[ab][bc]c?`, and the production pipeline."""
    monkeypatch.setattr("tests.law.processed.TARGET", Narrow())
    params = SamplingParams(temperature=BASE_TWO, structured_outputs=structured(regex="[ab][bc]c?"))
    start = replace(STARTS["first"], output=())
    tables = raw_tables(3)

    def law(h: History) -> np.ndarray:
        row = tables.target_logits[h].copy()
        if 3 not in h:
            following = {text[len(h)] for text in TEXTS if text[: len(h)] == h < text}
            following |= {3} if h in TEXTS else set()
            row[[v for v in range(4) if v not in following]] = -np.inf
        return np.zeros(4) if (row == -np.inf).all() else softmax(row, BASE_TWO)

    tables = replace(tables, p={h: law(h) for h in tables.p}, temperature=BASE_TWO)
    pipeline = Pipeline(start, params)
    assert pipeline.plan is not None and pipeline.plan.grammar is not None
    pipeline.grammar = GrammarState(pipeline.plan.grammar)
    return tables, pipeline


@pytest.mark.parametrize("q", ["dense", "sparse", "none"])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_law_is_that_of_plain_decoding(
    regex_law: tuple[Tables, Pipeline], rule: Rule, q: Any
) -> None:
    """Exact enumeration to 1e-12; drafts are illegal at every place, and go on past the end."""
    tables, pipeline = regex_law
    experiments = [Experiment(tables)]
    if q == "none":
        paths = itertools.product(range(4), repeat=3)
        experiments = [Experiment(tables, follow=lambda h, x=x: x[len(h)]) for x in paths]
        experiments.append(Experiment(tables, follow=deterministic(4, 5)))
    found = weights_of(experiments, impl="cpu", form=q, rule=rule, process=pipeline)
    assert not pipeline.broken
    for weights in found:
        assert error_of(weights, tables) < EXACT


def test_a_draft_that_the_grammar_forbids_is_replaced_from_the_residual(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """First token through the engine, p .5, .5 on what is allowed and q .4, .1, .25, .25.

    Planted: the draft is dropped and its row sampled from p, so that .65 comes where .5 is right;
    the test is planned against that law.
    """
    right, faulty = np.array([0.5, 0.5, 0, 0]), np.array([0.65, 0.35, 0, 0])
    plan = plan_for(right, faulty=faulty)
    target, draft = (
        from_probs([*probs, 0], eos_token_id=4)
        for probs in ([0.3, 0.3, 0.2, 0.2], [0.4, 0.1, 0.25, 0.25])
    )
    config = {"model": draft, "num_speculative_tokens": 2, "check_vocabulary": False}
    letters = letter_tokenizer("abcd")
    llm = LLM(target, tokenizer=letters, speculative_config=config, max_num_seqs=256)
    params = SamplingParams(
        seed=1, n=plan.num_trials, max_tokens=2, structured_outputs=structured(regex="[ab]{2}")
    )

    def drawn() -> np.ndarray:
        [output] = llm.generate([[0]], params)
        assert output.error is None
        return np.bincount([s.token_ids[0] for s in output.outputs], minlength=4)

    assert_law([Check("token 0", plan, drawn())])
    planting = FORBIDDEN_AS_ABSENT.plant(monkeypatch)
    counts = drawn()
    assert planting.count > 0 and refused([Check("token 0", plan, counts)])
    assert counts[0] / counts.sum() == pytest.approx(0.65, abs=0.06)


@pytest.mark.parametrize(
    ("q", "planted"),
    [("dense", None), ("sparse", None), ("none", None), ("dense", 0.0195), ("none", 0.744)],
)
def test_each_branch_of_a_tree_follows_the_grammar_by_itself(
    monkeypatch: pytest.MonkeyPatch,
    regex_law: tuple[Tables, Pipeline],
    q: Any,
    planted: float | None,
) -> None:
    """As above under rule `tree`; planted: rows follow their eldest siblings, and the most TV."""
    tables, pipeline = regex_law
    if planted:
        WRONG_BRANCH.plant(monkeypatch)
    experiments = [TreeExperiment(tables, by_depth(*shape)) for shape in [(2, 1), (1, 2)]]
    if q == "none":
        orders = itertools.permutations(range(4), 2)
        experiments = [TreeExperiment(tables, follow=lambda h, x=x: x) for x in orders]
    found = tree_weights(experiments, "cpu", form=q, process=pipeline)
    assert not pipeline.broken
    errors = [weights.error(tables) for weights in found]
    assert max(errors) == pytest.approx(planted or 0.0, rel=0.01, abs=EXACT)


def test_a_grammar_that_forbids_everything_ends_its_request() -> None:
    model = preferring(3)
    asked = structured(regex="7[xyz]")
    params = SamplingParams(seed=1, max_tokens=8, structured_outputs=asked)
    neighbor = SamplingParams(seed=1, max_tokens=8, ignore_eos=True)
    for llm in (llm_of(model), llm_of(model, preferring(7), 3)):
        failed, fine = llm.generate([[0], [0]], [params, neighbor])
        assert failed.outputs[0].token_ids == [7] and failed.outputs[0].finish_reason == "error"
        assert failed.error == ("no token is left after 1 output tokens; loosen structured_outputs")
        assert fine.error is None and len(fine.outputs[0].token_ids) == 8


def test_choices_keep_their_odds_and_a_preempted_request_its_place() -> None:
    probs = np.full(SIZE, 1e-3)
    probs[[10, 11, EOS]] = 0.5, 0.25, 0.2
    target = from_probs(probs / probs.sum(), eos_token_id=EOS)
    asked = structured(choice=["ab", "ba", "abba"])
    llm = llm_of(target, preferring(12, 10), 2)
    params = SamplingParams(seed=7, n=400, max_tokens=8, structured_outputs=asked)
    [output] = llm.generate([[0]], params)
    texts = [sample.text for sample in output.outputs]
    # a comes first with 2/3; after ab the end comes with .2 / .45; 400 draws, five deviations
    assert set(texts) == {"ab", "ba", "abba"}
    assert abs(sum(text[0] == "a" for text in texts) - 400 * 2 / 3) < 5 * 9.5
    assert abs(texts.count("ab") - 400 * 2 / 3 * 0.2 / 0.45) < 5 * 9.2
    single = replace(params, n=1)
    [whole] = llm.generate([[0]], single)
    tokens = []
    for event in llm.stream([[0]], single):
        tokens += [i for sample in event.outputs for i in sample.token_ids]
        if not event.finished:
            llm.engine.preempt(event.request_id)
    assert tokens == whole.outputs[0].token_ids


def test_a_context_free_grammar_and_a_schema_on_the_pocket_pair() -> None:
    llm = LLM(str(pocket.path("target")), speculative_config={"model": str(pocket.path("draft"))})
    nested = structured(grammar='root ::= "(" root? ")"')
    schema = {
        "type": "object",
        "properties": {
            "name": {"enum": ["Ann", "Bob"]},
            "age": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
        "x-guidance": {"whitespace_flexible": False},
    }
    params = [
        SamplingParams(seed=1, n=3, max_tokens=40, structured_outputs=nested),
        SamplingParams(seed=1, n=3, max_tokens=60, structured_outputs=structured(json=schema)),
    ]
    brackets, objects = llm.generate(["Once upon a time", "The answer: "], params)
    for sample in brackets.outputs:
        depth = len(sample.text) // 2
        assert sample.finish_reason == "stop" and sample.text == "(" * depth + ")" * depth
    for sample in objects.outputs:
        assert sample.finish_reason == "stop", objects.error
        value = json.loads(sample.text)
        assert value["name"] in ("Ann", "Bob") and isinstance(value["age"], int)


def test_a_dead_path_that_is_rejected_ends_nothing() -> None:
    """Drafts go where the grammar has no way on; the target goes where it has."""
    asked = structured(regex="7[xyz]|35")
    params = SamplingParams(temperature=0, max_tokens=8, structured_outputs=asked)
    for rule in ("standard", "block"):
        llm = llm_of(preferring(3), preferring(7), 3, rejection_sample_method=rule)
        [output] = llm.generate([[0]], params)
        assert output.error is None and output.outputs[0].text == "35"
    hot = SamplingParams(seed=1, n=64, max_tokens=8, structured_outputs=asked)
    even = from_probs(np.full(SIZE, 1 / SIZE), eos_token_id=EOS)
    for rule in ("standard", "block"):
        [output] = llm_of(even, even, 3, rejection_sample_method=rule).generate([[0]], hot)
        texts = {(s.text, s.finish_reason) for s in output.outputs}
        assert texts == {("35", "stop"), ("7", "error")}
        # 1/2 each; five deviations of 64 draws
        assert abs(sum(s.text == "35" for s in output.outputs) - 32) < 20


# --- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "structured_outputs has nothing: give exactly one of json, regex"),
        ({"regex": "a", "choice": ["a"]}, "structured_outputs has regex, choice"),
        ({"choice": []}, r"choice=\[\]: must be a list of at least one str"),
        ({"choice": "ab"}, "choice='ab'"),
        ({"regex": 5}, "regex=5: must be a str, not int"),
        ({"json": 5}, "json=5: must be a JSON schema"),
        ({"regex": "a", "begin_after_ids": []}, r"begin_after_ids=\[\]: give token ids"),
    ],
)
def test_bad_structured_outputs_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StructuredOutputsParams(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": "["}, "structured_outputs is no grammar: .*regex"),
        ({"grammar": "start: ("}, "structured_outputs is no grammar"),
        ({"json": "{"}, "structured_outputs is no grammar"),
        ({"regex": "a", "begin_after_ids": [99]}, "begin_after_ids holds 99; .* ids 0 to 16"),
    ],
)
def test_grammars_that_do_not_compile_are_refused(options: dict[str, Any], message: str) -> None:
    llm = llm_of(preferring(3))
    with pytest.raises(ValueError, match=message):
        llm.generate([[0]], SamplingParams(structured_outputs=structured(**options)))


def test_what_cannot_carry_a_grammar_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = structured(regex="a")
    with pytest.raises(ValueError, match="ignore_eos=True contradicts structured_outputs"):
        SamplingParams(ignore_eos=True, structured_outputs=asked)
    with pytest.raises(ValueError, match=r"structured_outputs='a': must be Structured"):
        SamplingParams(structured_outputs="a")  # pyright: ignore[reportArgumentType]
    params = SamplingParams(structured_outputs=asked)
    endless = LLM(table_model(np.zeros(4)), tokenizer=letter_tokenizer("abcd", None))
    with pytest.raises(ValueError, match="ends with the end of sequence, and 'TableLM' has none"):
        endless.generate([[0]], params)
    with pytest.raises(ValueError, match="cannot read the tokenizer of 'TableLM'"):
        LLM(preferring(3)).generate([[0]], params)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ValueError, match=r"pip install 'fairdraft\[grammar\]'"):
        llm_of(preferring(3)).generate([[0]], params)
    assert plan_module.compile_plan(SamplingParams(), Narrow(), "x") is None  # pyright: ignore
