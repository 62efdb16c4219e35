"""Speculators that a caller brings: a function of the text, or an object that gives logits.

`PointSpeculator` makes point masses of a function of decided tokens: (a) to (c) hold whatever it
returns. `LogitsSpeculator` lets the shared sampler draw from given logits: what is sampled is what
is handed on (a), and the number of drafts follows from limits and laws before they are drawn (b).
Axes: K drafts, L tokens, V vocabulary of the target.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fairdraft.speculators.chain import DraftChain
from fairdraft.speculators.points import Rowless, propose_points
from fairdraft.speculators.proposal import DraftState, Guesses, Proposal


class DraftFunction(Protocol):
    """Continues a text. What it returns must follow from its arguments alone."""

    def __call__(self, token_ids: np.ndarray, max_tokens: int, /) -> Sequence[int]:
        """Proposes at most `max_tokens` ids after the decided `token_ids` [L]; none is fine."""
        ...


@runtime_checkable
class DraftLogits(Protocol):
    """Gives the law of the next draft. What it returns must follow from its argument alone."""

    def logits(self, token_ids: np.ndarray, /) -> Tensor | np.ndarray:
        """Logits [V] of the token after decided tokens and earlier drafts [L]; -inf for never."""
        ...


class WrongDrafts(ValueError):
    """What a custom speculator returned cannot be used; its request fails, and no other."""


class _Custom(Rowless):
    """What messages call it, and what it may propose."""

    def __init__(self, num_speculative_tokens: int, vocab_size: int, what: str) -> None:
        self.name = "custom"
        self.num_speculative_tokens = num_speculative_tokens
        self.vocab_size = vocab_size
        self.what = f"custom speculator {what}"


class PointSpeculator(_Custom):
    """Proposes what a function says, as point masses.

    A request whose function raises or returns what cannot be used fails alone, with the value in
    its message. To go on without its drafts would be exact, but would hide the mistake.
    """

    def __init__(
        self, function: DraftFunction, num_speculative_tokens: int, vocab_size: int, what: str
    ) -> None:
        super().__init__(num_speculative_tokens, vocab_size, what)
        self.function = function

    def propose(self, state: DraftState) -> Proposal:
        """Calls the function once for each row that has room."""
        errors: dict[int, str] = {}

        def continue_row(row: int, most: int) -> list[int]:
            text = _sealed(state.token_ids[row, : state.num_decided[row]])
            try:
                return check_drafts(self.function(text, most), most, self.vocab_size)
            except Exception as error:
                errors[row] = f"{self.what}: {_said(error)}"
                return []

        proposal = propose_points(state, continue_row)
        proposal.errors = errors or None
        return proposal


class LogitsSpeculator(_Custom):
    """Samples drafts from logits that an object gives, under each request's parameters.

    A request fails alone as with `PointSpeculator`.
    """

    def __init__(
        self,
        source: DraftLogits,
        num_speculative_tokens: int,
        vocab_size: int,
        what: str,
        *,
        greedy: bool = False,
        confidence_threshold: float = 0.0,
    ) -> None:
        super().__init__(num_speculative_tokens, vocab_size, what)
        self.source = source
        self._chain = DraftChain(
            self.what, vocab_size, greedy=greedy, confidence_threshold=confidence_threshold
        )

    def propose(self, state: DraftState) -> Guesses:
        """Asks for logits once for each draft.

        Noise:
            One DRAFT race for each draft, none when greedy.
        """
        counts = state.max_draft_tokens.copy()
        lengths = state.num_decided
        width = int((lengths + counts).max(initial=0))
        texts = np.zeros((state.num_rows, width), np.int64)
        texts[:, : state.token_ids.shape[1]] = state.token_ids[:, :width]
        messages: dict[int, str] = {}

        def next_logits(step: int, before: np.ndarray, rows: np.ndarray) -> Tensor:
            if step > 1:
                texts[rows, lengths[rows] + step - 2] = before[rows]
            laws = torch.empty(len(rows), self.vocab_size)
            for place, row in enumerate(rows.tolist()):
                text = _sealed(texts[row, : lengths[row] + step - 1])
                try:
                    laws[place] = check_logits(self.source.logits(text), self.vocab_size)
                except Exception as error:
                    messages[row] = f"{self.what}, draft {step} of the round: {_said(error)}"
                    # a row that cannot be sampled fails in the chain
                    laws[place] = torch.nan
            return laws

        proposal = self._chain.draw(state, counts, next_logits)
        if messages:
            proposal.errors = (proposal.errors or {}) | messages
        return proposal


def check_drafts(found: Any, max_tokens: int, vocab_size: int) -> list[int]:
    """The ids that a function returned.

    Args:
        found: A sequence, array or tensor of integers, at most `max_tokens` of them.
        max_tokens: What was asked for.
        vocab_size: V.

    Raises:
        WrongDrafts: If it is something else; the message names it.
    """
    values = found.tolist() if hasattr(found, "tolist") else found
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise WrongDrafts(f"it returned {_short(found)}; return a list of token ids, [] for none")
    if len(values) > max_tokens:
        raise WrongDrafts(f"it returned {len(values)} drafts and was asked for {max_tokens}")
    ids = []
    for value in values:
        try:
            token_id = operator.index(value)
        except TypeError:
            token_id = None
        if token_id is None or isinstance(value, bool):
            raise WrongDrafts(f"it returned {_short(value)} among its drafts; return ints")
        if not 0 <= token_id < vocab_size:
            raise WrongDrafts(
                f"it returned token id {token_id}; the target has ids 0 to {vocab_size - 1}"
            )
        ids.append(token_id)
    return ids


def check_logits(found: Any, vocab_size: int) -> Tensor:
    """The logits that an object returned, float32 [V].

    Raises:
        WrongDrafts: If they are something else, hold NaN or +inf, or leave no token.
    """
    if isinstance(found, np.ndarray):
        found = torch.from_numpy(found)
    if not isinstance(found, Tensor) or not found.is_floating_point():
        kind = found.dtype if isinstance(found, Tensor) else _short(found)
        raise WrongDrafts(
            f"its logits are {kind}; return floats, an array or tensor [{vocab_size}]"
        )
    if found.shape != (vocab_size,):
        raise WrongDrafts(f"its logits have shape {list(found.shape)}, not [{vocab_size}]")
    law = found.detach().to("cpu", torch.float32)
    top = float(law.max())
    if not -np.inf < top < np.inf:
        raise WrongDrafts(f"the largest of its logits is {top}; it must be a finite number")
    return law


def _sealed(text: np.ndarray) -> np.ndarray:
    """A view that a plugin cannot write to: the engine's own tokens lie beneath it."""
    view = text.view()
    view.flags.writeable = False
    return view


def _said(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    return text if isinstance(error, WrongDrafts) else f"{type(error).__name__}: {text}"


def _short(value: Any) -> str:
    text = repr(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return f"{text} ({type(value).__name__})"
