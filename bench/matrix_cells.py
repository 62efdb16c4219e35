"""Cells of the equivalence matrix: a parameter, a rule and a kind of q, through the engine.

Toys of four ids, whose next law is a row of a table; two drafts a round. The law of the first
three tokens comes from the definitions of `tests.law.processed`, token by token; a text that ends
early is filled up with id 0. Axes: V vocabulary.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from conditions import ROOT
from matrix_drafts import FORMS, RULES, TREE, TREE_FORMS, config_of

# the tests' definitions are those of the matrix; they are imported from the checkout
sys.path.insert(0, str(ROOT))

from matrix_faults import PLANTED, PLANTED_COMMON, Planted  # noqa: E402
from matrix_tree_faults import PLANTED_TREE  # noqa: E402

from fairdraft import LLM, SamplingParams, StructuredOutputsParams  # noqa: E402
from fairdraft.stats import LawTest, total_variation  # noqa: E402
from tests.engine.toys import from_probs, letter_tokenizer  # noqa: E402
from tests.law.batches import LENGTH, plan_joint  # noqa: E402
from tests.law.judging import count  # noqa: E402
from tests.law.processed import CASES, V, processed_row  # noqa: E402
from tests.law.tables import (  # noqa: E402
    BASE_TWO,
    P4,
    Q4,
    History,
    joint_law,
    log,
    markov,
    softmax,
)

#: two drafts, so that the third token is now a replacement, now the bonus, now of a later round
K = 2
#: the end of sequence, and what the target and the draft model say after each id
END, (TARGET, DRAFT) = 3, markov(V, 1, P4, Q4)
PROMPT = (2, 1, 0)
#: the same ids and the same last one, where two continuations were seen
SEEN_BEFORE = (0, 1, 0, 2, 0)
GRAMMAR = "structured_outputs"
#: the grammar of `GRAMMAR` and all texts that it matches, over ids 0 to 2
REGEX = "[ab][bc]c?"
TEXTS = {(x, y, *z) for x in (0, 1) for y in (1, 2) for z in ((), (2,))}
#: samples of a request, and rows of a batch
SAMPLES, BATCH = 512, 256
#: seeds of a cell
SEEDS = 1_000_000

#: the rule whose texts are those of plain decoding, and the q of an engine that drafts nothing
COMMON, PLAIN = "common_noise", "none"

#: what drafts under a fault: q in full, so that masks forbid drafts, but a bonus has to be reached
UNDER_FAULT = {"logit_bias": "dense, processed"}

#: a pair of ids that was seen is what suffixes draft and n-grams of two forbid
NEVER_STAND = {("no_repeat_ngram_size", "suffix")}

#: as in the enumeration, but that texts really end, and bad words come up more often
PARAMETERS: dict[str, dict[str, Any]] = {
    case: {"ignore_eos": True, **options} for case, options in CASES.items()
}
PARAMETERS["bad_words"]["bad_words"] = ["ac", "ba", "dcb"]
PARAMETERS["min_tokens"] = {"min_tokens": 2, "stop_token_ids": [1]}
PARAMETERS[GRAMMAR] = {}


@dataclass(frozen=True)
class Cell:
    """One law test.

    Attributes:
        parameter: Of PARAMETERS.
        rule: Of RULES.
        q: Of FORMS.
        fault: Name of what is planted, so that the cell must fail; None for nothing.
    """

    parameter: str
    rule: str
    q: str
    fault: str | None = None

    @property
    def is_planted(self) -> bool:
        """Whether a fault is in place."""
        return self.fault is not None

    def __str__(self) -> str:
        kind = f"planted {self.fault}" if self.is_planted else f"{self.q} q"
        return f"{self.parameter}, rule {self.rule}, {kind}"


@dataclass(frozen=True)
class Result:
    """What came of a cell.

    Attributes:
        num_trials: Texts, as many as planned.
        moved: Total variation (TV) between the law and that without the parameter.
        tv, floor: Observed TV over the tested groups, and what a right sampler shows.
        log10_p: Of the test; None if a text came that cannot.
        stood: Share of drafts that stood.
        same_text: Whether the first request's texts are those of plain decoding, under rule
            `common_noise`; else None.
        fault: Name of what was planted; None for nothing.
        breaks_law: Whether it must change the law; else the text alone. None for nothing.
        as_expected: Whether test and text are as they must be, and what was planted ran.
        error: Message of a request that failed, or None.
    """

    parameter: str
    rule: str
    q: str
    num_trials: int
    moved: float
    tv: float
    floor: float
    log10_p: float | None
    stood: float
    same_text: bool | None
    fault: str | None
    breaks_law: bool | None
    as_expected: bool
    error: str | None


def left_out() -> dict[str, str]:
    """Parameters that this installation cannot run, and why."""
    if importlib.util.find_spec("llguidance") is None:
        return {GRAMMAR: "llguidance is not installed"}
    return {}


def cells(parameters: Iterable[str]) -> list[Cell]:
    """Every chain rule and q of the parameters, then their faults; the same of trees.

    A cell's number names its seeds, so new ones come last.
    """
    names = list(parameters)
    chains = [rule for rule in RULES if rule != TREE]
    found = [Cell(name, rule, q) for name in names for rule in chains for q in FORMS]
    for name in names:
        q, fault = UNDER_FAULT.get(name, "dense"), PLANTED[name].name
        found += [Cell(name, rule, q, fault) for rule in ("token", "block")]
    for name in names:
        q = UNDER_FAULT.get(name, "dense")
        planted = PLANTED_COMMON.get(name, ())
        found += [Cell(name, COMMON, q, each.fault.name) for each in planted]
    found += [
        Cell(name, TREE, q) for name in names for q in TREE_FORMS if (name, q) not in NEVER_STAND
    ]
    for name in names:
        found += [Cell(name, TREE, "dense", each.fault.name) for each in PLANTED_TREE[name]]
    return found


def planted_in(cell: Cell) -> Planted | None:
    """What a cell plants."""
    if cell.fault is None:
        return None
    by_rule = {COMMON: PLANTED_COMMON, TREE: PLANTED_TREE}
    if cell.rule not in by_rule:
        return Planted(PLANTED[cell.parameter])
    (found,) = (p for p in by_rule[cell.rule][cell.parameter] if p.fault.name == cell.fault)
    return found


def prompt_of(cell: Cell) -> History:
    """What the texts of a cell follow."""
    return SEEN_BEFORE if cell.q == "suffix" else PROMPT


def params_of(parameter: str) -> SamplingParams:
    """Parameters of the requests of a cell."""
    options = dict(PARAMETERS[parameter])
    if parameter == GRAMMAR:
        options["structured_outputs"] = StructuredOutputsParams(regex=REGEX)
    return SamplingParams(
        **{"temperature": BASE_TWO, "max_tokens": LENGTH + K, "n": SAMPLES} | options
    )


def law(h: History, params: SamplingParams, prompt: History) -> np.ndarray:
    """The definition: law over V ids after output tokens; id 0 after the end of the text."""
    ends = {*(() if params.ignore_eos else (END,)), *(params.stop_token_ids or ())}
    if ends & set(h):
        return np.eye(V)[0]
    raw = log(TARGET)[(*prompt, *h)[-1]].astype(np.float64)
    if params.structured_outputs is not None:
        following = {text[len(h)] for text in TEXTS if text[: len(h)] == h != text}
        following |= {END} if h in TEXTS else set()
        raw[[v for v in range(V) if v not in following]] = -np.inf
    row = processed_row(raw, prompt, h, params)
    # where nothing is left no text comes to, or the joint law is none and its plan is refused
    return np.zeros(V) if (row == -np.inf).all() else softmax(row, params.temperature)


def effect_of(cell: Cell, effect: float) -> float:
    """The TV that a cell's test sees: `effect`, or what its fault says."""
    planted = planted_in(cell)
    return effect if planted is None else planted.effect


def plan_of(cell: Cell, effect: float) -> tuple[LawTest, float]:
    """The test of the first three tokens, and how far the parameter moves their law."""
    return _plan(cell.parameter, prompt_of(cell), effect)


@cache
def _plan(parameter: str, prompt: History, effect: float) -> tuple[LawTest, float]:
    params = params_of(parameter)
    plain = SamplingParams(temperature=params.temperature, ignore_eos=True)
    asked, free = (joint_law(lambda h, p=p: law(h, p, prompt), V, LENGTH) for p in (params, plain))
    plan = plan_joint(lambda h, p: law(h, p, prompt), V, params, effect)
    return plan, total_variation(asked, free)


def run_cell(cell: Cell, number: int, effect: float, seed: int) -> dict[str, Any]:
    """Draws as many texts as planned and judges them.

    Args:
        cell: Which.
        number: Of the cell, so that no two draw the same.
        effect: TV that the test sees.
        seed: Of the run.
    """
    prompt, planted = prompt_of(cell), planted_in(cell)
    plan, moved = plan_of(cell, effect)
    llm = _engine(cell, planted)
    params = params_of(cell.parameter)
    first = (seed * SEEDS + number) * SEEDS
    asked = [replace(params, seed=first + i) for i in range(-(-plan.num_trials // SAMPLES))]
    expected = None
    if cell.rule == COMMON:
        expected = _whole(_engine(replace(cell, q=PLAIN)).generate([list(prompt)], asked[:1]))
    with nullcontext() if planted is None else planted.fault.planted() as planting:
        outputs = llm.generate([list(prompt)] * len(asked), asked)
    verdict = plan.judge(count(_texts(outputs), (V,) * LENGTH))
    same_text = None if expected is None else _whole(outputs[:1]) == expected
    error = next((output.error for output in outputs if output.error is not None), None)
    if planted is None or planting is None:
        is_due = verdict.passed and same_text is not False
    else:
        is_due = planting.count > 0 and not same_text and verdict.passed != planted.breaks_law
    metrics = [output.metrics for output in outputs if output.metrics is not None]
    drafts = sum(each.num_draft_tokens for each in metrics)
    stood = sum(each.num_accepted_tokens for each in metrics)
    return asdict(
        Result(
            cell.parameter,
            cell.rule,
            cell.q,
            verdict.num_trials,
            round(moved, 4),
            round(verdict.distance.observed, 5),
            round(verdict.distance.floor, 5),
            None if verdict.impossible else round(float(verdict.log_p_value / np.log(10.0)), 3),
            round(stood / drafts, 4),
            same_text,
            cell.fault,
            None if planted is None else planted.breaks_law,
            bool(is_due and error is None),
            error,
        )
    )


def _engine(cell: Cell, planted: Planted | None = None) -> LLM:
    # the draft's best token is the target's worst, so point masses are the target's own best
    table = TARGET if cell.q == "point mass" else DRAFT
    if planted is not None and planted.q is not None:
        table = np.tile(planted.q, (V, 1))
    target, draft = (from_probs(laws, eos_token_id=END) for laws in (TARGET, table))
    spelled = ("abc", "</s>") if cell.parameter == GRAMMAR else ("abcd", None)
    letters = letter_tokenizer(*spelled)
    config = None
    if cell.q != PLAIN:
        config = config_of(cell.q, cell.rule, draft, table, K)
    options = {"impl": "auto" if planted is None else planted.impl, "max_num_seqs": BATCH}
    return LLM(target, tokenizer=letters, speculative_config=config, **options)


def _whole(outputs: list[Any]) -> list[list[int]]:
    return [sample.token_ids for output in outputs for sample in output.outputs]


def _texts(outputs: list[Any]) -> np.ndarray:
    """First three tokens of every sample [N, 3], filled up with id 0."""
    texts = [sample.token_ids[:LENGTH] for output in outputs for sample in output.outputs]
    return np.array([[*text, *[0] * (LENGTH - len(text))] for text in texts])
