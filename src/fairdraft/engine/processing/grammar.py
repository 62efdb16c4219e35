"""Structured outputs: a grammar says which tokens may follow, by the library llguidance.

Axes: B sequences, R rows, V vocabulary.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairdraft.engine.checks import check_integer
from fairdraft.models import CausalLM
from fairdraft.ops.processors import DraftedPaths

_KINDS = ("json", "regex", "choice", "grammar")


@dataclass(frozen=True)
class StructuredOutputsParams:
    """What the output must look like, one of four; vLLM's names.

    Attributes:
        json: A JSON schema, as a dict or as text.
        regex: A regular expression for the whole output.
        choice: Texts, one of which the output must be.
        grammar: A context-free grammar: EBNF as llama.cpp writes it (GBNF), or Lark.
        begin_after_ids: Token ids after which the grammar begins, such as the end of a model's
            reasoning; what comes before them is free. None for the whole output. Not in vLLM.

    Raises:
        ValueError: If not exactly one of the four is given, or it is of the wrong type.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    begin_after_ids: Sequence[int] | None = None

    def __post_init__(self) -> None:
        given = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(
                f"structured_outputs has {', '.join(given) or 'nothing'}: give exactly one of "
                f"{', '.join(_KINDS)}"
            )
        if self.choice is not None:
            is_list = isinstance(self.choice, Sequence) and not isinstance(self.choice, str)
            if not is_list or not self.choice or not all(isinstance(c, str) for c in self.choice):
                raise ValueError(f"choice={self.choice!r}: must be a list of at least one str")
        for kind in ("regex", "grammar"):
            value = getattr(self, kind)
            if value is not None and not isinstance(value, str):
                raise ValueError(f"{kind}={value!r}: must be a str, not {type(value).__name__}")
        if self.json is not None and not isinstance(self.json, str | Mapping):
            raise ValueError(f"json={self.json!r}: must be a JSON schema, a dict or a str")
        if self.begin_after_ids is not None:
            if not len(self.begin_after_ids):
                raise ValueError("begin_after_ids=[]: give token ids, or None to begin at once")
            for token_id in self.begin_after_ids:
                check_integer("a token id of begin_after_ids", token_id)


@dataclass(frozen=True, eq=False)
class Grammar:
    """A compiled grammar of one request.

    Attributes:
        tokenizer: llguidance's form of the target's tokenizer.
        text: The grammar in llguidance's form.
        begin_after: Tokens after which it begins [M]; none if it begins at once.
        end_ids: Tokens that end the text, after which nothing is asked.
    """

    tokenizer: Any
    text: str
    begin_after: np.ndarray
    end_ids: frozenset[int]


def compile_grammar(params: StructuredOutputsParams, target: CausalLM, where: str) -> Grammar:
    """Compiles what a request asks for.

    Args:
        params: Checked parameters.
        target: Whose tokenizer spells the output.
        where: What messages call the request.

    Raises:
        ValueError: If llguidance is missing, refuses the grammar, or cannot read the tokenizer.
    """
    try:
        from llguidance import LLMatcher
    except ImportError:
        raise ValueError(
            f"{where}: structured_outputs needs llguidance; pip install 'fairdraft[grammar]'"
        ) from None
    if not target.eos_token_ids:
        raise ValueError(
            f"{where}: structured_outputs ends with the end of sequence, and {target.name!r} has "
            "none; use a model with an eos_token_id"
        )
    tokenizer = _tokenizer(target, where)
    text = _grammar_text(params, LLMatcher, where)
    failure = LLMatcher.validate_grammar(text, tokenizer)
    if failure and not failure.startswith("WARNING"):
        raise ValueError(f"{where}: structured_outputs is no grammar: {failure.splitlines()[0]}")
    marker = np.array(params.begin_after_ids or (), np.int64)
    return Grammar(tokenizer, text, marker, frozenset(target.eos_token_ids))


def _grammar_text(params: StructuredOutputsParams, matcher: Any, where: str) -> str:
    try:
        if params.json is not None:
            schema = params.json if isinstance(params.json, str) else dict(params.json)
            return matcher.grammar_from_json_schema(schema)
        if params.regex is not None:
            return matcher.grammar_from_regex(params.regex)
        if params.choice is not None:
            choices = " | ".join(json.dumps(choice) for choice in params.choice)
            return matcher.grammar_from_lark(f"start: {choices}")
        from llguidance.gbnf_to_lark import any_to_lark

        assert params.grammar is not None
        return matcher.grammar_from_lark(any_to_lark(params.grammar))
    except Exception as error:
        raise ValueError(f"{where}: structured_outputs is no grammar: {error}") from None


_TOKENIZERS: weakref.WeakKeyDictionary[CausalLM, Any] = weakref.WeakKeyDictionary()


def _tokenizer(target: CausalLM, where: str) -> Any:
    # a second for a large vocabulary, so once a model
    if target not in _TOKENIZERS:
        from llguidance.hf import from_tokenizer

        try:
            _TOKENIZERS[target] = from_tokenizer(
                target.tokenizer, n_vocab=target.vocab_size, eos_token=sorted(target.eos_token_ids)
            )
        except Exception as error:
            raise ValueError(
                f"{where}: structured_outputs cannot read the tokenizer of {target.name!r}: {error}"
            ) from None
    return _TOKENIZERS[target]


class GrammarState:
    """One sequence's place in its grammar: a cache of what was matched last, and no more.

    Each call names the whole output; what differs from the call before is taken back and matched
    anew, so a rejected draft leaves no trace.
    """

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._restart()

    def _restart(self) -> None:
        from llguidance import LLMatcher

        self._matcher = LLMatcher(self._grammar.tokenizer, self._grammar.text, log_level=0)
        self._matched = np.zeros(0, np.int64)

    def mask(self, output: np.ndarray) -> np.ndarray | None:
        """Says what may follow an output.

        Args:
            output: Output tokens and drafts before a row [N], int64.

        Returns:
            Bits, the lowest first, of the tokens that may follow [V / 8 rounded up], uint8; None
            where everything may, because the grammar has not begun.

        Raises:
            DeadPath: If the output itself is none of the grammar's, or at its end.
            RuntimeError: If the library gives up on the grammar.
        """
        begin = _end_of(output, self._grammar.begin_after)
        if begin is None:
            return None
        text = output[begin:]
        if len(text) and int(text[-1]) in self._grammar.end_ids:
            raise DeadPath
        common = min(len(text), len(self._matched))
        is_other = text[:common] != self._matched[:common]
        if is_other.any():
            common = int(is_other.argmax())
        matcher = self._matcher
        if common < len(self._matched):
            matcher.rollback(len(self._matched) - common)
        wanted = text[common:].tolist()
        matched = matcher.try_consume_tokens(wanted) if wanted else 0
        self._matched = text[: common + matched].copy()
        if matched < len(wanted) and not matcher.is_error():
            raise DeadPath
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if not matcher.is_error():
            return bits
        # its mask lets the end through; it stays in error, though the path may yet be rejected
        reason = matcher.get_error().partition("\n")[0]
        self._restart()
        if reason.startswith("NoExtension"):
            return np.zeros_like(bits)
        raise RuntimeError(reason)


class DeadPath(Exception):
    """The path to a row holds a token that the grammar forbids or that ends the text."""


def apply_grammar(
    logits: Tensor, paths: DraftedPaths, sequence: int, state: GrammarState
) -> dict[int, str]:
    """Masks one sequence's rows by its grammar, in place.

    Rows below a draft that the grammar forbids cannot be reached and stay as they are; the draft
    itself has probability 0 at its row, so it is rejected there and keeps its q.

    Args:
        logits: Floating point [B, R, V].
        paths: Of the round.
        sequence: Which of the paths.
        state: Of that sequence.

    Returns:
        Rows at which the library gave up, and why.
    """
    matched = match_grammar(paths, sequence, state)
    if matched.rows:
        packed = torch.from_numpy(np.stack(matched.masks)).to(logits.device)
        places = torch.arange(8, dtype=torch.uint8, device=logits.device)
        is_allowed = ((packed[:, :, None] >> places) & 1).bool().flatten(1)
        index = int(paths.index[sequence]), torch.tensor(matched.rows, device=logits.device)
        kept = logits[index].masked_fill(~is_allowed[:, : logits.shape[-1]], -torch.inf)
        logits[index] = kept
    return matched.broken


class Matched(NamedTuple):
    """What a grammar says of one sequence's rows.

    Attributes:
        rows: Rows that it masks.
        masks: Bits of each, as of `GrammarState.mask`.
        broken: Rows at which the library gave up, and why.
    """

    rows: list[int]
    masks: list[np.ndarray]
    broken: dict[int, str]


def match_grammar(paths: DraftedPaths, sequence: int, state: GrammarState) -> Matched:
    """Asks one sequence's grammar about its rows; see `apply_grammar`."""
    rows, masks = [], []
    broken: dict[int, str] = {}
    is_left = paths.is_read[sequence].copy()
    begin = int(paths.prompt_length[sequence])
    for row in range(paths.width):
        if not is_left[row]:
            continue
        try:
            bits = state.mask(paths.before(sequence, row)[begin:])
        except (DeadPath, RuntimeError) as error:
            if isinstance(error, RuntimeError):
                broken[row] = f"structured_outputs: {error}"
            is_left &= ~paths.tree.below([row])
            continue
        if bits is not None:
            rows.append(row)
            masks.append(bits)
    return Matched(rows, masks, broken)


def _end_of(output: np.ndarray, marker: np.ndarray) -> int | None:
    """Where the first copy of the marker ends; 0 for no marker, None for no copy."""
    if not len(marker):
        return 0
    if len(output) < len(marker):
        return None
    windows = np.lib.stride_tricks.sliding_window_view(output, len(marker))
    places = np.flatnonzero((windows == marker).all(axis=1))
    return int(places[0]) + len(marker) if len(places) else None
