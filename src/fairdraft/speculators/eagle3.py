"""EAGLE-3: a head of one layer that drafts from hidden states of the target.

Meets (a): each draft is sampled by the shared sampler from the logits that are handed on as q;
they depend on decided tokens, the target's states at them, and earlier drafts. Meets (b): how many
drafts a row gets follows from its limits, and from each draft's law before it is drawn. Draft i is
the token at position num_decided + i - 1: there its noise sits, whatever slot of the head computed
it. Source: Li et al. 2025.

Axes: B rows, Q tokens of a block, K drafted, H width of the head, V vocabulary of the target.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairdraft.speculators.chain import DraftChain
from fairdraft.speculators.features import Features
from fairdraft.speculators.heads import CachedHead
from fairdraft.speculators.proposal import DraftState, Guesses


class Eagle3Speculator:
    """Drafts with an EAGLE-3 head.

    Invariant: of a row with n decided tokens, slots 0 to n - 2 of the head hold keys and values
    made of the target's states, and the head's last outputs are kept. A round that is redone finds
    them unchanged, since a slot of a decided token is never written to otherwise.
    """

    name = "eagle3"

    def __init__(
        self,
        head: CachedHead,
        num_speculative_tokens: int,
        vocab_size: int,
        *,
        greedy: bool = False,
        confidence_threshold: float = 0.0,
    ) -> None:
        """Drafts up to `num_speculative_tokens` a round.

        Args:
            head: Checked against its target, see `heads.load_head`.
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
            "the eagle3 head",
            vocab_size,
            greedy=greedy,
            confidence_threshold=confidence_threshold,
        )
        ids = head.head.target_ids
        self._is_known = ids < vocab_size
        self._ids = ids[self._is_known]
        self._is_whole = len(self._ids) == len(ids) == vocab_size
        # a round writes K + 1 outputs, and the one before must survive for a round that is redone
        self._num_kept = num_speculative_tokens + 2
        self._outputs = torch.zeros(
            1, self._num_kept, config.hidden_size, dtype=head.dtype, device=head.device
        )

    def propose(self, state: DraftState) -> Guesses:
        """Drafts `max_draft_tokens` for each row, fewer where the head's own context ends.

        A row with a single decided token gets none: the target has no state before it.

        Noise:
            One DRAFT race for each draft (TARGET under common noise), none when greedy.
        """
        anchor = state.num_decided
        # draft i is the output of slot anchor + i - 3
        room = self.head.num_slots - anchor + 2
        counts = np.maximum(np.minimum(state.max_draft_tokens, room), 0)
        counts[anchor < 2] = 0
        kept = torch.from_numpy((anchor - 2) % self._num_kept).to(self.head.device)
        hidden = self._outputs[torch.arange(state.num_rows, device=kept.device), kept]

        def next_logits(step: int, before: np.ndarray, rows: np.ndarray) -> Tensor:
            nonlocal hidden
            if step > 1:
                hidden = self._run_drafts(before, hidden, anchor + step - 3, rows)
            index = torch.from_numpy(rows).to(self.head.device)
            return self._law(hidden if len(rows) == len(hidden) else hidden[index])

        return self._chain.draw(state, counts, next_logits)

    def observe(self, features: Features) -> None:
        """Runs the slots of newly decided tokens."""
        num_slots = self.head.num_slots
        start = np.minimum(features.start, num_slots)
        counts = np.minimum(features.num_tokens, num_slots - start)
        if not counts.any():
            return
        width = int(counts.max())
        is_real = np.arange(width) < counts[:, None]
        tokens = torch.from_numpy(np.where(is_real, features.next_token_ids[:, :width], 0))
        fused = self.head.fuse(tuple(states[:, :width] for states in features.states))
        fused = torch.where(torch.from_numpy(is_real).to(fused.device)[..., None], fused, 0)
        outputs = self.head.forward(tokens, fused, start, counts, features.first_row)
        # the last outputs of each row, at their slot modulo the number kept
        is_kept = is_real & (np.arange(width) >= counts[:, None] - self._num_kept)
        row, column = np.nonzero(is_kept)
        place = (start[row] + column) % self._num_kept
        at = [torch.from_numpy(index).to(outputs.device) for index in (row, column, place)]
        self._outputs[features.first_row + at[0], at[2]] = outputs[at[0], at[1]]

    def commit(self, num_accepted_tokens: np.ndarray) -> None:
        """Does nothing: slots of drafts are written again when their tokens are decided."""

    def admit_row(self, row: int) -> None:
        """Makes room for the row; its slots are filled when it is prefilled."""
        self.head.cache.reserve(row + 1, 1)
        if row >= len(self._outputs):
            grown = self._outputs.new_zeros(2 * row, *self._outputs.shape[1:])
            grown[: len(self._outputs)] = self._outputs
            self._outputs = grown

    def move_row(self, source: int, destination: int) -> None:
        """Moves the row's keys, values and outputs."""
        self.head.cache.move_row(source, destination)
        self._outputs[destination] = self._outputs[source]
        self._outputs[source] = 0

    def drop_row(self, row: int) -> None:
        """Frees the row."""
        self.head.cache.drop_row(row)
        self._outputs[row] = 0

    def describe(self, max_model_len: int) -> str:
        """One line on the head, and on where it drafts less or not at all.

        Args:
            max_model_len: The context of the requests.
        """
        config, num_slots = self.head.head.config, self.head.num_slots
        own = sum(p.numel() for p in self.head.head.own_parameters().values())
        text = (
            f"{own:,} parameters, states {', '.join(map(str, config.feature_layers))}, drafts "
            f"{len(self._ids)} of {self.vocab_size} ids"
        )
        trained = config.num_trained_steps
        if trained is not None and trained < self.num_speculative_tokens:
            text += f"; trained for {trained} drafts a round, later ones are accepted less often"
        if num_slots + 1 < max_model_len:
            text += f"; past {num_slots + 1} tokens a request goes on without drafts"
        return text

    def _run_drafts(
        self, drafts: np.ndarray, hidden: Tensor, slot: np.ndarray, rows: np.ndarray
    ) -> Tensor:
        """Runs the slot of one draft of each row; returns the outputs [B, H]."""
        counts = np.zeros(len(slot), np.int64)
        counts[rows] = 1
        start = np.clip(slot, 0, self.head.num_slots)
        start[rows] = slot[rows]
        # rows without a draft here hold the placeholder
        tokens = torch.from_numpy(np.where(drafts < 0, 0, drafts))[:, None]
        return self.head.forward(tokens, hidden[:, None], start, counts)[:, 0]

    def _law(self, hidden: Tensor) -> Tensor:
        """Logits over the target's ids [N, V]; ids that the head cannot draft have q = 0."""
        logits = self.head.logits(hidden).float()
        if self._is_whole:
            return logits
        law = logits.new_full((len(logits), self.vocab_size), -torch.inf)
        known = logits if len(self._ids) == logits.shape[1] else logits[:, self._is_known]
        return law.index_copy_(1, self._ids, known)
