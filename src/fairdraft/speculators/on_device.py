"""What a round on the device shows a speculator, so that a CUDA graph can hold its drafting.

Everything stays on the device: nothing here may wait for it, copy to or from the host, or have a
shape that depends on values. The round runs all K steps of all rows; rows past those in use and
steps past a row's own number of drafts compute on whatever they find, in places that are written
again before they are read. Axes: B rows, K drafts, Q = K + 1 tokens, V vocabulary, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from fairdraft.speculators.memory import TargetMemory
from fairdraft.speculators.proposal import Speculator

#: law of a draft, logits [B, V], and its step (1 for the first) to token ids [B], 0 where it failed
DrawOnDevice = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True)
class DeviceState:
    """A round before its drafts; see `DraftState` for what may be read.

    Attributes:
        last_two: The last two decided tokens of each row, int64 [B, 2]; of a row with a single one
            that one twice.
        num_decided: Decided tokens of each row, int64 [B]; padding has 1.
        depth: K.
        read_length: Slots that attention reads: at least `num_decided` + K, or a whole context.
        draw: Draws a step; called once for each, in order.
        memory: The target's keys and values at decided tokens.
    """

    last_two: Tensor
    num_decided: Tensor
    depth: int
    read_length: int
    draw: DrawOnDevice
    memory: TargetMemory


@dataclass(frozen=True)
class DeviceFeatures:
    """`Features` of a verified round.

    Attributes:
        states: Of the layers that the speculator reads, in its order, each [B, Q, H].
        start: Position of each row's first token, int64 [B].
        num_tokens: Tokens that were decided, int64 [B], 0 to Q.
        next_token_ids: The token after each, int64 [B, Q]; anything where there is padding.
        read_length: As in `DeviceState`.
    """

    states: tuple[Tensor, ...]
    start: Tensor
    num_tokens: Tensor
    next_token_ids: Tensor
    read_length: int


class DeviceSpeculator(Speculator, Protocol):
    """A speculator that also drafts inside a round on the device, with the drafts of `propose`.

    Rounds of either kind may follow each other: both keep their state in the same places.
    """

    greedy: bool

    @property
    def has_stop(self) -> bool:
        """Whether the laws of a round decide how many drafts it has, which no such round can."""
        ...

    @property
    def num_moves(self) -> int:
        """How often what rounds read or write went to other memory, whose addresses graphs hold."""
        ...

    def reserve(self, num_rows: int, read_length: int) -> None:
        """Makes room for rounds of so many rows that read so many slots."""
        ...

    def begin_steps(
        self, token_ids: np.ndarray, num_decided: np.ndarray, max_draft_tokens: np.ndarray
    ) -> np.ndarray:
        """Prepares a round, on the host; `commit` ends it.

        Args:
            token_ids, num_decided, max_draft_tokens: As in `DraftState`.

        Returns:
            Drafts of each row [B], as `propose` would make them.
        """
        ...

    def draft_on_device(self, state: DeviceState) -> None:
        """Draws K drafts of every row.

        Noise:
            As `propose`.
        """
        ...

    def error(self, step: int, code: int) -> str:
        """What a row's message says when a draft of the round could not be drawn."""
        ...


class DeviceReader(Protocol):
    """A `DeviceSpeculator` that is a `FeatureReader` too."""

    feature_layers: tuple[int, ...]

    def observe_on_device(self, features: DeviceFeatures) -> None:
        """Takes in the features of newly decided tokens, as `observe`."""
        ...
