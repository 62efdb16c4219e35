"""How often each token stands in a text that only grows: counted once, not once a round.

Axes: U distinct tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

_FIRST_SIZE = 64


class Tally:
    """Counts of the decided tokens of one sequence.

    Only decided tokens may be counted, which are never taken back; drafts stay outside.

    Attributes:
        length: Tokens of the text that are counted.
    """

    def __init__(self, vocab_size: int, *, reads_prompt: bool = True) -> None:
        self.length = 0
        self._vocab_size = vocab_size
        self._reads_prompt = reads_prompt
        self._places: dict[int, int] = {}
        self._token_ids = np.zeros(_FIRST_SIZE, np.int32)
        self._codes = np.zeros(_FIRST_SIZE, np.int32)

    @property
    def token_ids(self) -> np.ndarray:
        """Distinct tokens [U], int32, in the order they came: a view."""
        return self._token_ids[: len(self._places)]

    @property
    def codes(self) -> np.ndarray:
        """Twice each token's count in the output, plus 1 if the prompt holds it [U], int32."""
        return self._codes[: len(self._places)]

    def count(self, text: np.ndarray, prompt_length: int) -> None:
        """Counts what is new.

        Args:
            text: Prompt and output, everything decided [L], int64; begins with what is counted.
            prompt_length: How much of it is the prompt.

        Raises:
            ValueError: If a new token is outside the vocabulary, or the text has become shorter.
        """
        if len(text) < self.length:
            raise ValueError(f"{self.length} tokens are counted, the text has {len(text)}")
        begin = self.length if self._reads_prompt else max(self.length, prompt_length)
        new = text[begin:].tolist()
        for place, token_id in enumerate(new, begin):
            if not 0 <= token_id < self._vocab_size:
                raise ValueError(
                    f"token {place} of a text is {token_id}; ids go to {self._vocab_size - 1}"
                )
            self._add(token_id, 1 if place < prompt_length else 2)
        self.length = len(text)

    def lacking(self, token_ids: Iterable[int]) -> list[int]:
        """Those of some tokens that are not counted, each once."""
        return [token for token in dict.fromkeys(token_ids) if token not in self._places]

    def _add(self, token_id: int, step: int) -> None:
        place = self._places.get(token_id)
        if place is None:
            place = self._places[token_id] = len(self._places)
            if place == len(self._codes):
                self._token_ids = np.concatenate([self._token_ids, np.zeros_like(self._token_ids)])
                self._codes = np.concatenate([self._codes, np.zeros_like(self._codes)])
            self._token_ids[place], self._codes[place] = token_id, step
        elif step == 2:
            self._codes[place] += 2
        else:
            self._codes[place] |= 1
