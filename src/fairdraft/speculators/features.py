"""Hidden states of the target at decided tokens, as a speculator sees them.

Axes: B rows, Q tokens of a block, H hidden size of the target.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Features:
    """What the target computed at a block of decided tokens.

    Token i of row b has position `start[b] + i`, and everything up to `next_token_ids[b, i]`, the
    token after it, is decided: all of it is part of H_i for the next round.

    Attributes:
        states: One tensor [B, Q, H] for each of the speculator's `feature_layers`, numbered as
            transformers does: 0 is the embedding, L the state after the last of L layers and the
            final norm.
        first_row: Row of the batch that the first row of the block is.
        start: Position of each row's first token [B].
        num_tokens: Tokens of each row [B], 0 to Q; the rest is padding and holds anything.
        next_token_ids: The token after each [B, Q], int64; anything where there is padding.
    """

    states: tuple[Tensor, ...]
    first_row: int
    start: np.ndarray
    num_tokens: np.ndarray
    next_token_ids: np.ndarray
