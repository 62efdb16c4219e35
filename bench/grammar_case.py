"""A round under a grammar in the benchmarks of processors: a JSON schema, within a string.

Tokens are letters and numbers in hexadecimal, as many as the vocabulary has, so that the mask of a
row is as wide as that of a large model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from processor_cases import Shape
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from fairdraft import SamplingParams, StructuredOutputsParams
from fairdraft.engine.processing.grammar import GrammarState
from fairdraft.engine.processing.plan import ProcessingPlan, compile_plan
from fairdraft.ops.processors import DraftedPaths

__all__ = ["GrammarRound"]

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


def tokenizer_of(vocab_size: int) -> PreTrainedTokenizerFast:
    """A tokenizer of that many ids, the end of sequence last."""
    vocab = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    number = 0
    while len(vocab) < vocab_size - 1:
        vocab.setdefault(f"{number:x}", len(vocab))
        number += 1
    inner = Tokenizer(models.BPE(vocab, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    inner.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>")


class GrammarRound:
    """Requests within a string of a JSON object, their texts matched as rounds before would have.

    Attributes:
        plans: What each asks for.
        grammars: Where each is.
    """

    def __init__(self, shape: Shape) -> None:
        """Takes the size of the round."""
        letters = tokenizer_of(shape.vocab_size)
        params = SamplingParams(structured_outputs=StructuredOutputsParams(json=SCHEMA))
        target: Any = _Target(letters, shape.vocab_size)
        plan = compile_plan(params, target, "bench")
        assert plan is not None and plan.grammar is not None
        self.shape = shape
        ids = letters.get_vocab()
        begin = [0, *(ids[letter] for letter in '{"a":"')]
        inside = [ids[letter] for letter in "ab" * shape.length]
        text = np.array((begin + inside)[: shape.length])
        self._text = np.tile(text, (shape.batch, 1))
        self._drafts = np.tile(inside[: shape.depth], (shape.batch, 1))
        self.plans: list[ProcessingPlan] = [plan] * shape.batch
        self.grammars = [GrammarState(plan.grammar) for _ in range(shape.batch)]

    def paths(self) -> DraftedPaths:
        """Paths of the round; the prompt is one token."""
        one, decided, given = (
            np.full(self.shape.batch, n) for n in (1, self.shape.length, self.shape.depth)
        )
        return DraftedPaths.of_round(
            self._text, one, decided, self._drafts, given, vocab_size=self.shape.vocab_size
        )


class _Target:
    """What a grammar is compiled for; weak references need a class of its own."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self.tokenizer, self.vocab_size = tokenizer, vocab_size
        self.eos_token_ids, self.name = frozenset({vocab_size - 1}), "bench"
