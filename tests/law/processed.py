"""Laws under a request's processors: by the definitions, and by the production pipeline.

Axes: R paths, K drafts, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fairdraft import SamplingParams, ops
from fairdraft.engine.processing.grammar import GrammarState
from fairdraft.engine.processing.order import Broken, process
from fairdraft.engine.processing.plan import compile_plan
from fairdraft.ops.processors import DraftedPaths
from fairdraft.ops.token_tree import TokenTree
from fairdraft.ops.verify import Rule
from tests.law.enumeration import Form, K
from tests.law.tables import BASE_TWO, History, Tables, integer_tables, softmax

V = 4
#: spells the ids 0 to 3, for bad words
LETTERS = "abcd"


def spell(text: str, **options: Any) -> dict[str, list[int]]:
    """A tokenizer of one id a letter, which knows no space."""
    return {"input_ids": [LETTERS.index(letter) for letter in text.strip()]}


#: what a plan is compiled for; id 3 is its end of sequence
TARGET: Any = SimpleNamespace(
    vocab_size=V, eos_token_ids=frozenset({3}), tokenizer=spell, name="tables"
)


@dataclass(frozen=True)
class Start:
    """What is decided when a round begins."""

    prompt: History
    output: History


#: a first position, and one later in the text
STARTS = {"first": Start((1, 0, 1), ()), "later": Start((2,), (3, 0, 2))}


def follows_itself(input_ids: Any, scores: Any) -> Any:
    """Custom: the last token is less likely, by its place in the text."""
    scores[0, input_ids[0, -1]] -= 2 + input_ids.shape[1] % 2
    return scores


def lifts_two(input_ids: Any, scores: Any) -> Any:
    """Custom, without history: id 2 is more likely."""
    assert input_ids.shape[1] == 0
    scores[:, 2] += 2
    return scores


lifts_two.depends_on_history = False  # pyright: ignore[reportFunctionMemberAccess]

#: parameters whose processed logits are integers, at the temperature that makes weights exact
CASES: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 2.0},
    "presence_penalty": {"presence_penalty": 2.0},
    "frequency_penalty": {"frequency_penalty": 1.0},
    "logit_bias": {"logit_bias": {1: 3.0, 3: -2.0}},
    "allowed_token_ids": {"allowed_token_ids": [3, 0, 2]},
    "bad_words": {"bad_words": ["ac", "dcb"]},
    "bad_words_ids": {"bad_words_ids": [[1, 2], [2, 0], [3, 3, 1], [0, 1, 0, 3]]},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "min_tokens": {"min_tokens": 5, "max_tokens": 9, "stop_token_ids": [1]},
    "logits_processors": {"logits_processors": [follows_itself, lifts_two]},
    "top_k, after penalties": {"presence_penalty": 2.0, "top_k": 2},
}
CASES["all together"] = {
    "repetition_penalty": 2.0,
    "presence_penalty": -1.0,
    "frequency_penalty": 2.0,
    "logit_bias": {1: 4.0, 2: -2.0},
    "bad_words_ids": [[2, 0], [3, 3, 1]],
    "no_repeat_ngram_size": 3,
    "min_tokens": 2,
    "logits_processors": [lifts_two, follows_itself],
}


#: the drafter's law, and how the verifier is told
FORMS: dict[str, Form] = {"dense": "dense", "sparse": "sparse", "point mass": "none"}
RULES: tuple[Rule, ...] = ("token", "block")


def matrix() -> str:
    """What is enumerated, as the table of `docs/processors.md`."""
    columns = [f"`{rule}`, {q}" for rule in (*RULES, "tree") for q in FORMS]
    lines = [f"| parameter | {' | '.join(columns)} |", "| --- |" + " --- |" * len(columns)]
    chains, trees, grammars = (
        f" [exact](../tests/{name}.py) |" * len(FORMS)
        for name in (
            "law/test_processor_enumeration",
            "law/test_tree_processing",
            "engine/test_structured_outputs",
        )
    )
    lines += [f"| {case} |" + chains * len(RULES) + trees for case in CASES]
    lines.append("| structured_outputs |" + grammars * (len(RULES) + 1))
    return "\n".join(lines) + "\n"


def params_of(case: str) -> SamplingParams:
    return SamplingParams(temperature=BASE_TWO, **CASES[case])


def raw_tables(seed: int) -> Tables:
    """Raw logits -2, 0 and 2, so that a penalty of 2 leaves integers."""
    tables = integer_tables(V, K, seed)
    raw = {h: 2 * (row % 3) - 2 for h, row in tables.target_logits.items()}
    return replace(tables, target_logits=raw)


def processed_row(raw: np.ndarray, prompt: History, output: History, params: SamplingParams) -> Any:
    """A row after every processor, token by token from the definitions; float64 [V]."""
    text = (*prompt, *output)
    row = [_one(v, float(raw[v]), prompt, output, params) for v in range(len(raw))]
    for processor in params.logits_processors or ():
        seen = torch.tensor([text if processor is follows_itself else ()], dtype=torch.int64)
        row = processor(seen, torch.tensor([row], dtype=torch.float64))[0].tolist()
    if params.top_k:
        least = sorted(row)[-params.top_k]
        row = [value if value >= least else -np.inf for value in row]
    return np.array(row)


def _one(v: int, value: float, prompt: History, output: History, params: SamplingParams) -> float:
    text = (*prompt, *output)
    value += (params.logit_bias or {}).get(v, 0.0)
    if v in text:
        factor = params.repetition_penalty
        value = value / factor if value > 0 else value * factor
    value -= params.frequency_penalty * output.count(v)
    value -= params.presence_penalty * (v in output)
    words = [(spell(word)["input_ids"], output) for word in params.bad_words or ()]
    words += [(list(ids), text) for ids in params.bad_words_ids or ()]
    is_out = params.allowed_token_ids is not None and v not in params.allowed_token_ids
    is_out |= any(list((*seen, v)[-len(word) :]) == word for word, seen in words)
    is_out |= len(output) < params.min_tokens and v in {3, *(params.stop_token_ids or ())}
    n = params.no_repeat_ngram_size
    if n and len(text) >= n - 1:
        grams = {text[i : i + n] for i in range(len(text) - n + 1)}
        is_out |= (*text, v)[len(text) + 1 - n :] in grams
    return -np.inf if is_out else value


def with_processed_law(tables: Tables, start: Start, params: SamplingParams) -> Tables:
    """The same raw logits, with p as the law after the processors; 0 everywhere at a dead end."""
    p = {}
    for h, raw in tables.target_logits.items():
        row = processed_row(raw, start.prompt, (*start.output, *h), params)
        p[h] = np.zeros(V) if (row == -np.inf).all() else softmax(row, params.temperature)
    return replace(tables, p=p, temperature=params.temperature)


class Pipeline:
    """The production processors on every path of an enumeration.

    Attributes:
        grammar: One state for all paths: it follows whatever it is asked about.
        broken: Rows that cannot be sampled, of the last call.
    """

    def __init__(self, start: Start, params: SamplingParams) -> None:
        self.start = start
        self.params = params
        self.plan = compile_plan(params, TARGET, "test")
        self.grammar: GrammarState | None = None
        self.broken: Broken = {}

    def __call__(
        self,
        logits: torch.Tensor,
        token_ids: np.ndarray,
        given: np.ndarray,
        tree: TokenTree | None = None,
    ) -> torch.Tensor:
        count = len(logits)
        decided = (*self.start.prompt, *self.start.output)
        paths = DraftedPaths.of_round(
            np.tile(np.array(decided), (count, 1)),
            np.full(count, len(self.start.prompt)),
            np.full(count, len(decided)),
            token_ids,
            given,
            vocab_size=V,
            tree=tree,
        )
        assert self.plan is not None
        self.broken = process(logits, paths, [self.plan] * count, [self.grammar] * count)
        for row, messages in self.broken.items():
            logits[row, paths.tree.below([*messages])] = 0.0
        if not self.params.has_filter:
            return logits
        flat = logits.flatten(0, 1)
        kept = ops.filter_logits(
            flat, temperature=self.params.temperature, top_k=self.params.top_k, impl="cpu"
        )
        return kept.reshape(logits.shape)


if __name__ == "__main__":
    print(matrix(), end="")
