"""Drafts from a smaller model with a KV cache of its own.

Meets (a): each draft is sampled by the shared sampler from the logits that are handed on as q.
Meets (b): how many drafts a row gets follows from its limits, and from each draft's law before it
is drawn. Sources: Leviathan et al. 2023; Chen et al. 2023. Axes: B rows, K drafted, V vocabulary
of the target.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from fairdraft.models import CausalLM
from fairdraft.models.device_forward import forward_on_device
from fairdraft.speculators.chain import DraftChain
from fairdraft.speculators.on_device import DeviceState
from fairdraft.speculators.proposal import DraftState, Guesses
from fairdraft.speculators.vocabulary import VocabularyMap

#: rows that lag by more tokens than this are prefilled alone, so that the batch is not padded
MAX_LAG = 8


class DraftModelSpeculator:
    """Samples drafts token by token from its own checkpoint.

    Invariant: the cache of row b holds its first `_num_cached[b]` decided tokens. A round feeds
    the decided tokens that are missing, usually one or two, then its own drafts but the last.
    """

    name = "draft_model"

    def __init__(
        self,
        model: CausalLM,
        num_speculative_tokens: int,
        vocabulary: VocabularyMap,
        *,
        greedy: bool = False,
        confidence_threshold: float = 0.0,
    ) -> None:
        self.model = model
        self.num_speculative_tokens = num_speculative_tokens
        self.vocabulary = vocabulary
        self.greedy = greedy
        self._cache = model.new_cache()
        self._num_cached = np.zeros(1, np.int64)
        self._num_fed = np.zeros(0, np.int64)
        # what steps that somebody else runs will have cached, once they are verified
        self._pending: np.ndarray | None = None
        self._chain = DraftChain(
            f"draft model {model.name!r}",
            vocabulary.target_size,
            greedy=greedy,
            confidence_threshold=confidence_threshold,
        )

    def propose(self, state: DraftState) -> Guesses:
        """Drafts `max_draft_tokens` for each row, fewer where the draft's own context ends.

        With a confidence threshold, drafts whose law is flat are left out with all after them.

        Noise:
            One DRAFT race for each draft (TARGET under common noise), none when greedy.
        """
        anchor = state.num_decided
        self._pending = None
        counts = self._num_drafts(anchor, state.max_draft_tokens)
        self._num_fed = np.zeros(len(counts), np.int64)

        def next_logits(step: int, before: np.ndarray, rows: np.ndarray) -> Tensor:
            if step == 1:
                logits = self._feed_decided(state, rows)
            else:
                logits = self._feed_drafts(before, anchor + step - 2, rows)
                self._num_fed[rows] = step - 1
            return self.vocabulary.fit(logits)

        return self._chain.draw(state, counts, next_logits)

    @property
    def has_stop(self) -> bool:
        """Whether the laws of a round decide how many drafts it has."""
        return self._chain.confidence_threshold > 0

    @property
    def num_moves(self) -> int:
        """As `DeviceSpeculator.num_moves`."""
        return self._cache.num_moves

    def reserve(self, num_rows: int, read_length: int) -> None:
        """As `DeviceSpeculator.reserve`."""
        # one slot more: padding past the context goes there
        self._cache.reserve(num_rows, min(read_length, self._cache.max_length) + 1)

    def begin_steps(
        self, token_ids: np.ndarray, num_decided: np.ndarray, max_draft_tokens: np.ndarray
    ) -> np.ndarray:
        """As `DeviceSpeculator.begin_steps`: rows may lag by two tokens, which the round feeds."""
        counts = self._num_drafts(num_decided, max_draft_tokens)
        cached = self._num_cached[: len(counts)]
        is_fed = counts > 0
        late = is_fed & (num_decided - cached > 2)
        if late.any():
            self._prefill(token_ids, num_decided, late)
        self._pending = np.where(is_fed, num_decided, cached)
        self._num_fed = np.maximum(counts - 1, 0)
        return counts

    def draft_on_device(self, state: DeviceState) -> None:
        """As `DeviceSpeculator.draft_on_device`."""
        anchor, depth, vocabulary = state.num_decided, state.depth, self.vocabulary
        forward = partial(
            forward_on_device,
            self.model,
            cache=self._cache,
            read_length=min(state.read_length, self.model.max_model_len),
            last_only=True,
        )
        # a row of one token feeds it twice, to the same slot
        positions = torch.stack([(anchor - 2).clamp(min=0), anchor - 1], dim=1)
        logits, _ = forward(vocabulary.known_on_device(state.last_two), positions)
        for step in range(1, depth + 1):
            drafts = state.draw(vocabulary.fit(logits), step)
            if step < depth:
                fed = vocabulary.known_on_device(drafts)[:, None]
                logits, _ = forward(fed, (anchor + (step - 1))[:, None])

    def error(self, step: int, code: int) -> str:
        """What a row's message says when a draft of the round could not be drawn."""
        return self._chain.error(step, code)

    def commit(self, num_accepted_tokens: np.ndarray) -> None:
        """Keeps the cached drafts that stood; the rest is rolled back by position."""
        if self._pending is not None:
            self._num_cached[: len(self._pending)] = self._pending
            self._pending = None
        self._num_cached[: len(self._num_fed)] += np.minimum(self._num_fed, num_accepted_tokens)

    def admit_row(self, row: int) -> None:
        """Starts the row with nothing cached; its next round feeds every decided token."""
        self._cache.reserve(row + 1, 1)
        if row >= len(self._num_cached):
            self._num_cached = np.resize(self._num_cached, 2 * row)
        self._num_cached[row] = 0

    def move_row(self, source: int, destination: int) -> None:
        """Moves the row's cache."""
        self._cache.move_row(source, destination)
        self._num_cached[destination] = self._num_cached[source]
        self._num_cached[source] = 0

    def drop_row(self, row: int) -> None:
        """Frees the row's cache."""
        self._cache.drop_row(row)
        self._num_cached[row] = 0

    def _num_drafts(self, num_decided: np.ndarray, max_draft_tokens: np.ndarray) -> np.ndarray:
        # draft i is fed at position anchor + i - 1, and the last one is not fed
        room = self.model.max_model_len - num_decided + 1
        return np.maximum(np.minimum(max_draft_tokens, room), 0)

    def _feed_decided(self, state: DraftState, rows: np.ndarray) -> Tensor:
        """Feeds what is decided and not cached; returns the logits of each row's first draft."""
        cached = self._num_cached[: state.num_rows]
        # a round that was never verified is redone: its last decided token is fed again
        np.minimum(cached, state.num_decided - 1, out=cached)
        if len(cached) == 1 and (logits := self._feed_row(state, cached)) is not None:
            return logits
        lag = np.zeros(state.num_rows, np.int64)
        lag[rows] = state.num_decided[rows] - cached[rows]
        if lag.max() > MAX_LAG:
            late = lag > MAX_LAG
            self._prefill(state.token_ids, state.num_decided, late)
            lag[late] = 1
        columns = np.arange(lag.max())
        at = np.minimum(cached[:, None] + columns, state.token_ids.shape[1] - 1)
        tokens = state.token_ids[np.arange(state.num_rows)[:, None], at]
        logits = self._forward(self.vocabulary.known(tokens), cached, lag)
        cached += lag
        return _pick(logits, rows)

    def _feed_row(self, state: DraftState, cached: np.ndarray) -> Tensor | None:
        """`_feed_decided` of the only row, which drafts, in few steps; None if it lags far."""
        begin, end = cached.item(), state.num_decided.item()
        if end - begin > MAX_LAG:
            return None
        tokens = self.vocabulary.known(state.token_ids[:, begin:end])
        logits = self._forward(tokens, cached, None)
        cached[:] = end
        return logits

    def _prefill(self, token_ids: np.ndarray, num_decided: np.ndarray, late: np.ndarray) -> None:
        """Feeds all decided tokens but the last of the rows that lag far behind."""
        first, last = np.flatnonzero(late)[[0, -1]]
        span = range(first, last + 1)
        start = [int(self._num_cached[row]) for row in span]
        token_ids = self.vocabulary.known(token_ids)
        texts = [
            token_ids[row, begin : num_decided[row] - 1].tolist() if late[row] else []
            for row, begin in zip(span, start, strict=True)
        ]
        self.model.prefill(texts, self._cache, first_row=int(first), start=start)
        self._num_cached[: len(late)][late] = num_decided[late] - 1

    def _feed_drafts(self, token_ids: np.ndarray, position: np.ndarray, rows: np.ndarray) -> Tensor:
        """Feeds one draft of each row; returns the logits of the next."""
        # a processor of the caller's may draw an id that the draft does not have
        token_ids = self.vocabulary.known(token_ids)[:, None]
        if len(rows) == len(position):
            # drawn ids, and positions that there is room for
            block = torch.from_numpy(token_ids).to(self.model.device)
            return self.model.step(block, position, self._cache)
        count = np.zeros(len(position), np.int64)
        count[rows] = 1
        return _pick(self._forward(token_ids, position, count), rows)

    def _forward(
        self, token_ids: np.ndarray, start: np.ndarray, num_tokens: np.ndarray | None
    ) -> Tensor:
        # a row past the draft's context feeds nothing, but its start must be legal
        start = np.minimum(start, self.model.max_model_len)
        return self.model.forward(
            torch.from_numpy(token_ids),
            start,
            self._cache,
            num_tokens=num_tokens,
            last_only=True,
        )


def _pick(logits: Tensor, rows: np.ndarray) -> Tensor:
    return logits if len(rows) == len(logits) else logits[torch.from_numpy(rows).to(logits.device)]
