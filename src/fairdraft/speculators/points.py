"""What speculators share that draft point masses row by row, or keep no state of a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from fairdraft.ops import PLACEHOLDER_TOKEN_ID
from fairdraft.speculators.proposal import DraftState, Proposal


class Rowless:
    """The hooks of a speculator that reads what it needs from the text of each round."""

    def commit(self, num_accepted_tokens: np.ndarray) -> None:
        """Keeps no state of a row."""

    def admit_row(self, row: int) -> None:
        """Keeps no state of a row."""

    def move_row(self, source: int, destination: int) -> None:
        """Keeps no state of a row."""

    def drop_row(self, row: int) -> None:
        """Keeps no state of a row."""


def propose_points(
    state: DraftState, continue_row: Callable[[int, int], Sequence[int] | np.ndarray]
) -> Proposal:
    """Point masses on what each row that has room is continued with.

    Args:
        state: Of the round.
        continue_row: A row and the most drafts it may have, at least 1, to its drafts.
    """
    limits = state.max_draft_tokens
    drafts = np.full((state.num_rows, int(limits.max(initial=0))), PLACEHOLDER_TOKEN_ID)
    counts = np.zeros(state.num_rows, np.int64)
    for row in np.flatnonzero(limits > 0).tolist():
        found = continue_row(row, int(limits[row]))
        counts[row] = len(found)
        drafts[row, : len(found)] = found
    drafts = drafts[:, : int(counts.max(initial=0))]
    return Proposal(torch.from_numpy(drafts.copy()), torch.from_numpy(counts))
