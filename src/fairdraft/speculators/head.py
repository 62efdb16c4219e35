"""What speculators with a head have in common: its rows, its law, and what they say of it.

Axes: B rows, Q tokens of a block, K drafted, H width of the head, V vocabulary of the target.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairdraft.speculators.chain import DraftChain
from fairdraft.speculators.features import Features
from fairdraft.speculators.heads import CachedNetwork, DraftLaw, KeptOutputs, RecallingHead
from fairdraft.speculators.on_device import DeviceFeatures


class HeadSpeculator:
    """Keeps a head's slots and last outputs in step with the batch's rows."""

    name: str

    def __init__(
        self,
        head: CachedNetwork | RecallingHead,
        num_speculative_tokens: int,
        vocab_size: int,
        *,
        greedy: bool = False,
        confidence_threshold: float = 0.0,
    ) -> None:
        """Drafts up to `num_speculative_tokens` a round.

        Args:
            head: Checked against its target, see `heads.load_head` and its siblings.
            num_speculative_tokens: K.
            vocab_size: V.
            greedy: Drafts the head's best token, a point mass.
            confidence_threshold: See `DraftChain`.
        """
        self.head = head
        self.num_speculative_tokens = num_speculative_tokens
        self.vocab_size = vocab_size
        self.greedy = greedy
        config = head.head.config
        self.feature_layers = config.feature_layers
        self._chain = DraftChain(
            f"the {self.name} head",
            vocab_size,
            greedy=greedy,
            confidence_threshold=confidence_threshold,
        )
        self._law = DraftLaw(head.head.target_ids, vocab_size)
        # a round writes K + 1 outputs, and the one before must survive for a round that is redone
        num_kept = num_speculative_tokens + 2
        self._kept = [
            KeptOutputs(num_kept, config.hidden_size, head.dtype, head.device)
            for _ in range(self.num_modules)
        ]

    @property
    def num_modules(self) -> int:
        """Modules that run and go on from outputs of their own, the last of which are kept."""
        return 1

    @property
    def num_parameters(self) -> int:
        """Parameters of the head's own; what it shares with the target is not counted."""
        return sum(p.numel() for p in self.head.head.own_parameters().values())

    @property
    def has_stop(self) -> bool:
        """As `DeviceSpeculator.has_stop`."""
        return self._chain.confidence_threshold > 0

    @property
    def num_moves(self) -> int:
        """As `DeviceSpeculator.num_moves`."""
        return self.head.num_moves + sum(kept.num_moves for kept in self._kept)

    def reserve(self, num_rows: int, read_length: int) -> None:
        """As `DeviceSpeculator.reserve`."""
        self.head.reserve(num_rows, read_length)
        for kept in self._kept:
            kept.reserve(num_rows - 1)

    def begin_steps(
        self, token_ids: np.ndarray, num_decided: np.ndarray, max_draft_tokens: np.ndarray
    ) -> np.ndarray:
        """As `DeviceSpeculator.begin_steps`: decided tokens were observed, nothing is missing."""
        return self._num_drafts(num_decided, max_draft_tokens)

    def error(self, step: int, code: int) -> str:
        """As `DeviceSpeculator.error`."""
        return self._chain.error(step, code)

    def _num_drafts(self, num_decided: np.ndarray, max_draft_tokens: np.ndarray) -> np.ndarray:
        """Drafts of each row in the next round [B]; arguments as in `DraftState`."""
        raise NotImplementedError

    def commit(self, num_accepted_tokens: np.ndarray) -> None:
        """Does nothing: slots of drafts are written again when their tokens are decided."""

    def admit_row(self, row: int) -> None:
        """Makes room for the row; its slots are filled when it is prefilled."""
        for cache in self.head.caches:
            cache.reserve(row + 1, 1)
        for kept in self._kept:
            kept.reserve(row)

    def move_row(self, source: int, destination: int) -> None:
        """Moves the row's keys, values and outputs."""
        for cache in self.head.caches:
            cache.move_row(source, destination)
        for kept in self._kept:
            kept.move_row(source, destination)

    def drop_row(self, row: int) -> None:
        """Frees the row."""
        for cache in self.head.caches:
            cache.drop_row(row)
        for kept in self._kept:
            kept.drop_row(row)

    def describe(self, max_model_len: int) -> str:
        """One line on the head, and on where it drafts less or not at all.

        Args:
            max_model_len: The context of the requests.
        """
        config, num_slots = self.head.head.config, self.head.num_slots
        states = ", ".join(map(str, config.feature_layers))
        text = (
            f"{self.num_parameters:,} parameters, states {states}, drafts "
            f"{self._law.num_ids} of {self.vocab_size} ids"
        )
        trained = config.num_trained_steps
        if trained is not None and trained < self.num_speculative_tokens:
            text += f"; trained for {trained} drafts a round, later ones are accepted less often"
        if num_slots + 1 < max_model_len:
            text += f"; past {num_slots + 1} tokens a request goes on without drafts"
        return text

    def _chosen(self, values: Tensor, rows: np.ndarray) -> Tensor:
        """Of values [B, ...] those of some rows, in ascending order [N, ...]."""
        if len(rows) == len(values):
            return values
        return values[torch.from_numpy(rows).to(values.device)]

    def _fused(self, features: Features, counts: np.ndarray, width: int) -> Tensor:
        """Fused states of a block's first tokens [B, width, H]; padding is 0."""
        is_real = torch.from_numpy(np.arange(width) < counts[:, None])
        fused = self.head.fuse(tuple(states[:, :width] for states in features.states))
        return torch.where(is_real.to(fused.device)[..., None], fused, 0)

    def _fused_on_device(self, features: DeviceFeatures) -> Tensor:
        """`_fused` of a whole block [B, Q, H]."""
        columns = torch.arange(features.next_token_ids.shape[1], device=features.start.device)
        is_padding = columns >= features.num_tokens[:, None]
        return self.head.fuse(features.states).masked_fill(is_padding[..., None], 0.0)
