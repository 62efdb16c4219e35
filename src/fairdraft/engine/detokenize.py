"""Text from token ids, a token at a time, never half a character."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: what a byte-level tokenizer writes for bytes that are no character yet
REPLACEMENT = "\ufffd"

_CONTEXT = 5
_WINDOW = 16


class Detokenizer:
    """Turns one sequence's tokens into text as they come.

    Text is what the tokens add after the prompt's last tokens, special tokens skipped. Bytes that
    do not make a character yet are held back, and dropped if the sequence ends before they do.
    """

    def __init__(self, tokenizer: Any, prompt_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._window = list(prompt_token_ids[-_CONTEXT:])
        # a character that the prompt began and the output completes belongs to the output
        self._num_settled = len(self._decode(self._window).rstrip(REPLACEMENT))
        self._num_new = 0

    def push(self, *token_ids: int) -> str:
        """Adds tokens and returns the text that became certain."""
        self._window.extend(token_ids)
        self._num_new += len(token_ids)
        text = self._decode(self._window)
        settled = text.rstrip(REPLACEMENT)
        new = settled[self._num_settled :]
        self._num_settled = max(self._num_settled, len(settled))
        if len(settled) == len(text) and self._num_new > _WINDOW:
            self._window = self._window[-_CONTEXT:]
            self._num_settled = len(self._decode(self._window))
            self._num_new = 0
        return new

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)
