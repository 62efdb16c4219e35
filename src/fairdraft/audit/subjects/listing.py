"""Scores completions: by the logprobs that came with them, or by local models.

Axes: N tokens of a batch, k tokens listed beside each, V ids of the local models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fairdraft.audit.completions import SMALLEST_REST, Completion, listed_law
from fairdraft.audit.rescoring import score_texts
from fairdraft.audit.subject import InvalidSubject
from fairdraft.stats.tokens import NO_TOKEN, ScoredTokens, Source, compact

if TYPE_CHECKING:
    from fairdraft.models import CausalLM

__all__ = ["Rescorer", "score_completions"]

# mean total variation, over listed tokens, past which the local target is another model
_MOST_DISTANCE = 0.05

_NOTHING = ScoredTokens(
    column=np.zeros(0, np.int64),
    target=np.zeros((0, 1)),
    ids=np.zeros((0, 1), np.int64),
    draft=None,
    text=np.zeros(0, np.int64),
    position=np.zeros(0, np.int64),
    slot=np.zeros(0, np.int64),
    source=np.zeros(0, np.int8),
    drafted=np.zeros(0, np.int64),
    previous=np.zeros((0, 2), np.int64),
)


class Rescorer:
    """Local copies of the models that a server runs.

    Args:
        target: Gives the laws that tokens should follow; None leaves them to the logprobs.
        draft: Gives the laws that drafts were drawn from, or None.

    Raises:
        ValueError: If the models have no tokenizer or not the same ids.
    """

    def __init__(self, target: CausalLM | None, draft: CausalLM | None) -> None:
        self.target, self.draft = target, draft
        models = [model for model in (target, draft) if model is not None]
        named = [model for model in models if model.tokenizer is not None]
        if not named:
            raise ValueError(f"{models[0].name!r} has no tokenizer; pass a model that has one")
        self._tokenizer = named[0].tokenizer
        self.width = max(model.padded_vocab_size for model in models)
        sizes = {model.vocab_size for model in models}
        if len(sizes) > 1:
            raise ValueError(f"target and draft have {sizes} ids; pass models of one vocabulary")
        self._encoded: dict[str, list[int]] = {}

    @property
    def parameters(self) -> dict[str, str]:
        """What is recorded about them."""
        pairs = {"rescored_target": self.target, "rescored_draft": self.draft}
        return {key: model.name for key, model in pairs.items() if model is not None}

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt, so that server and local models surely continue the same ones."""
        if text not in self._encoded:
            self._encoded[text] = list(self._tokenizer(text)["input_ids"])
        return self._encoded[text]

    def prompt(self, completion: Completion, text: str) -> np.ndarray:
        """Ids that a completion continues.

        Raises:
            InvalidSubject: If the server reports no ids, or continued others than it was sent.
        """
        sent = np.array(self.encode(text), np.int64)
        if not completion.has_ids:
            raise InvalidSubject(
                "local models score token ids, and the server reports strings only; it must know "
                "return_tokens_as_token_ids, as vLLM does"
            )
        got = completion.prompt_ids
        if got is not None and not np.array_equal(got, sent):
            raise InvalidSubject(
                f"the server continued the ids {got.tolist()} where {sent.tolist()} were sent; "
                "have it add no token to a prompt"
            )
        return sent

    def law(
        self, model: CausalLM, prompts: Sequence[Any], completions: Sequence[Completion]
    ) -> np.ndarray:
        """Laws float32 [N, V] of all tokens.

        Raises:
            InvalidSubject: If the texts are not of the model's vocabulary or context.
        """
        outputs = [completion.token_ids.tolist() for completion in completions]
        try:
            return score_texts(model, [list(p) for p in prompts], outputs, self.width)
        except ValueError as error:
            raise InvalidSubject(
                f"{model.name!r} cannot score the server's texts: {error}"
            ) from None


def score_completions(
    first_text: int,
    completions: Sequence[Completion],
    rescorer: Rescorer | None = None,
    prompts: Sequence[str] = (),
) -> ScoredTokens:
    """Scores whole texts.

    Args:
        first_text: Serial number of the first.
        completions: The texts, in order.
        rescorer: Local models, if any.
        prompts: What each text continues; the rescorer needs them.

    Returns:
        N tokens over k + 1 columns, or over the local vocabulary, compacted.

    Raises:
        InvalidSubject: If local models and server contradict each other.
    """
    before = [completion.prompt_ids if completion.has_ids else None for completion in completions]
    if rescorer is not None:
        before = [rescorer.prompt(*pair) for pair in zip(completions, prompts, strict=True)]
    if not completions:
        return _NOTHING
    parts = [listed_law(completion) for completion in completions]
    ids, law, column = (np.concatenate(part) for part in zip(*parts, strict=True))
    lengths = [len(completion) for completion in completions]
    columns: dict[str, Any] = {
        "text": np.repeat(np.arange(first_text, first_text + len(completions)), lengths),
        "position": np.concatenate([np.arange(length) for length in lengths]),
        "previous": np.concatenate(
            [_previous(*pair) for pair in zip(completions, before, strict=True)]
        ),
        "slot": np.full(len(column), -1),
        "source": np.full(len(column), Source.UNKNOWN, np.int8),
        "drafted": np.full(len(column), -1),
    }
    if rescorer is None:
        return ScoredTokens(column=column, target=law, ids=ids, draft=None, **columns)
    draft = None
    if rescorer.draft is not None:
        draft = rescorer.law(rescorer.draft, before, completions)
    if rescorer.target is None:
        assert draft is not None
        draft = _over(ids, draft)
        return ScoredTokens(column=column, target=law, ids=ids, draft=draft, **columns)
    target = rescorer.law(rescorer.target, before, completions)
    _check_same_model(law, _over(ids, target))
    token_ids = np.concatenate([completion.token_ids for completion in completions])
    return compact(ScoredTokens(token_ids, target, None, draft, **columns))


# a law [N, V] over the listed ids and the rest
def _over(ids: np.ndarray, law: np.ndarray) -> np.ndarray:
    listed = np.take_along_axis(law, ids[:, :-1], axis=1).astype(np.float64)
    rest = np.maximum(1 - listed.sum(axis=1, keepdims=True), SMALLEST_REST)
    over = np.concatenate([listed, rest], axis=1)
    return over / over.sum(axis=1, keepdims=True)


def _check_same_model(returned: np.ndarray, local: np.ndarray) -> None:
    distance = 0.5 * np.abs(returned - local).sum(axis=1).mean()
    if distance > _MOST_DISTANCE:
        raise InvalidSubject(
            f"the local target's probabilities differ from the server's by {distance:.3f} (mean "
            "total variation): it is another model, another tokenizer or another precision"
        )


def _previous(completion: Completion, prompt: np.ndarray | None) -> np.ndarray:
    before = [NO_TOKEN, NO_TOKEN]
    if prompt is not None:
        before = [*before, *prompt.tolist()][-2:]
    text = np.array([*before, *completion.token_ids])
    return np.column_stack([text[1:-1], text[:-2]])
