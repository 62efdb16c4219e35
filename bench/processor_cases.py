"""What requests ask of their rows in the benchmarks of processors, and a round of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from fairdraft import SamplingParams
from fairdraft.engine.processing.plan import ProcessingPlan, compile_plan
from fairdraft.ops.processors import DraftedPaths, Tally

#: what a request asks for, for a vocabulary of at least 4,096
KINDS: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.2},
    "presence, frequency": {"presence_penalty": 0.5, "frequency_penalty": 0.5},
    "logit_bias, 300 ids": {"logit_bias": {3 * i: 1.0 for i in range(300)}},
    "allowed_token_ids, 1,000": {"allowed_token_ids": list(range(0, 4000, 4))},
    "bad_words_ids, 100": {"bad_words_ids": [[i, i + 1, i + 2] for i in range(100)]},
    "no_repeat_ngram_size 3": {"no_repeat_ngram_size": 3},
    "min_tokens": {"min_tokens": 9000, "max_tokens": 9500},
    "custom, by path": {"logits_processors": [lambda ids, scores: scores]},
}
#: a bias of nothing, so that a request is processed and no entry changes
_NOTHING: dict[str, Any] = {"repetition_penalty": 1.0, "logit_bias": {0: 0.0}}


class Shape(NamedTuple):
    """Size of a round: B requests of K drafts after L tokens, over V ids."""

    batch: int
    depth: int
    length: int
    vocab_size: int = 151_936

    @property
    def num_rows(self) -> int:
        """Rows of the round."""
        return self.batch * (self.depth + 1)

    @property
    def logits(self) -> tuple[int, int, int]:
        """Shape of the logits."""
        return self.batch, self.depth + 1, self.vocab_size


class Round(NamedTuple):
    """What the pipeline is given, besides logits."""

    paths: DraftedPaths
    plans: list[ProcessingPlan]
    grammars: list[Any]
    tallies: list[Tally | None]


class Text(NamedTuple):
    """Histories and drafts; half of a history is distinct, as in text."""

    token_ids: np.ndarray
    drafts: np.ndarray

    def paths(self, shape: Shape) -> DraftedPaths:
        """Paths of a round; a quarter of what is decided is the prompt."""
        decided = np.full(shape.batch, shape.length)
        given = np.full(shape.batch, shape.depth)
        return DraftedPaths.of_round(
            self.token_ids, decided // 4, decided, self.drafts, given, vocab_size=shape.vocab_size
        )


def text_of(shape: Shape) -> Text:
    """The same texts for every kind."""
    generator = np.random.default_rng(0)
    sizes = (shape.batch, shape.length), (shape.batch, shape.depth)
    return Text(*(generator.integers(0, shape.length // 2, size) for size in sizes))


def plan_of(kind: str, vocab_size: int) -> ProcessingPlan:
    """One request's processors."""
    target: Any = SimpleNamespace(
        vocab_size=vocab_size, eos_token_ids=frozenset({2}), tokenizer=None, name="bench"
    )
    plan = compile_plan(SamplingParams(**KINDS.get(kind, _NOTHING)), target, "bench")
    assert plan is not None
    return plan


def round_of(kind: str, shape: Shape) -> Round:
    """A round of requests of one kind, histories counted as rounds before would have."""
    plans = [plan_of(kind, shape.vocab_size) for _ in range(shape.batch)]
    paths = text_of(shape).paths(shape)
    tallies: list[Tally | None] = [None] * shape.batch
    for c, plan in enumerate(plans):
        if plan.row_params.is_penalized:
            tally = Tally(shape.vocab_size, reads_prompt=plan.row_params.repetition != 1)
            tally.count(paths.token_ids[c, : shape.length], int(paths.prompt_length[c]))
            tallies[c] = tally
    return Round(paths, plans, [None] * shape.batch, tallies)
