"""Drawing a chain of drafts, one after the other, from whatever gives their logits.

Axes: B rows, K drafted, N rows that draft at a step, C candidates, V vocabulary of the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fairdraft.ops import PLACEHOLDER_TOKEN_ID, RowError, SparseLogits
from fairdraft.ops.arithmetic import GREEDY_TEMPERATURE
from fairdraft.speculators.proposal import DraftState, Guesses, Proposal
from fairdraft.speculators.sampler import Drawn, SharedSampler

#: step (1 for the first), the drafts before it [B] and the rows that draft [N] to logits [N, V]
NextLogits = Callable[[int, np.ndarray, np.ndarray], Tensor]
#: of the same, to a guess of each draft's acceptance, which the draft has no part in [N]
Confidence = Callable[[int, np.ndarray, np.ndarray], np.ndarray]


class DraftChain:
    """Draws each draft from logits that may depend on the drafts before it.

    Meets (a): what is sampled is what is handed on as q. Meets (b): how many drafts a row gets is
    given before the first is drawn, and draft i is left out with all after it if q_i is flat,
    which is decided before draft i is drawn. A row whose logits cannot be sampled gets none and
    fails.

    Args:
        what: What messages call the speculator.
        vocab_size: V.
        greedy: Takes the best token at each step: point masses without noise.
        confidence_threshold: Draft i is present only while the largest probability of its law is
            at least this, after processors and filters and at the row's temperature (at 1 where
            the best token is taken), or the speculator's own guess of its acceptance; 0 for every
            draft.
    """

    def __init__(
        self, what: str, vocab_size: int, *, greedy: bool, confidence_threshold: float = 0.0
    ) -> None:
        self.what = what
        self.vocab_size = vocab_size
        self.greedy = greedy
        self.confidence_threshold = confidence_threshold
        self._memory = self._laws = torch.empty(0)
        self._host_laws: np.ndarray | None = None

    def draw(
        self,
        state: DraftState,
        counts: np.ndarray,
        next_logits: NextLogits,
        confidence: Confidence | None = None,
        candidates: Tensor | None = None,
    ) -> Guesses:
        """Draws `counts` drafts a row: a Proposal, or Guesses where the sampler gives no laws.

        Args:
            state: The round.
            counts: Drafts of each row [B], int64; changed where a row stops or fails.
            next_logits: Called once a step, in order, with rows in ascending order.
            confidence: A guess in place of the law's largest probability, called before it.
            candidates: Ids [B, K, C] beyond which all logits are -inf; q is handed on for them
                alone, unless the sampler processes laws. None for q over the vocabulary.

        Noise:
            One race for each draft as its sampler says, none when greedy.
        """
        asked: list[int] = counts.tolist()
        num_steps = max(asked, default=0)
        if not num_steps:
            return Proposal.empty(state.num_rows)
        # filled through NumPy, which writes a few numbers several times faster than torch
        drafts = np.full((state.num_rows, num_steps), PLACEHOLDER_TOKEN_ID)
        has_laws = isinstance(state.sampler, SharedSampler)
        candidates = _candidates_of(state, candidates, num_steps)
        size = self.vocab_size if candidates is None else candidates.shape[2]
        laws = self._law_buffer(state, num_steps, size) if has_laws and not self.greedy else None
        errors: dict[int, str] = {}
        rows = np.array([row for row, count in enumerate(asked) if count > 0])
        num_shared = min(count for count in asked if count > 0)
        has_stop = self.confidence_threshold > 0
        device = state.sampler.device
        for step in range(1, num_steps + 1):
            if step > num_shared or errors or has_stop:
                rows = np.flatnonzero(counts >= step)
                if not len(rows):
                    break
            before = drafts[:, step - 2] if step > 1 else drafts[:, 0]
            if has_stop and confidence is not None:
                rows = rows[self._kept(confidence(step, before, rows), step, rows, counts)]
                if not len(rows):
                    break
            law = next_logits(step, before, rows)
            if law.device != device:
                law = law.to(device)
            is_law = has_stop and confidence is None
            if is_law:
                law = state.sampler.law(law, step, rows, greedy=self.greedy)
                peak = largest_probability(
                    law, 1.0 if self.greedy else state.sampler.temperature[rows]
                )
                kept = self._kept(peak, step, rows, counts)
                if len(kept) < len(rows):
                    rows, law = rows[kept], law[torch.from_numpy(kept).to(law.device)]
                if not len(rows):
                    break
            drawn = state.sampler.draw(law, step, rows, greedy=self.greedy, is_law=is_law)
            index = slice(None) if len(rows) == state.num_rows else rows
            drafts[index, step - 1] = drawn.token_ids.numpy()
            if laws is not None and isinstance(drawn, Drawn):
                self._keep_law(laws, step, index, drawn.logits, candidates)
            error = drawn.error.numpy()
            if np.count_nonzero(error):
                errors |= self._note_errors(rows, error, step)
                counts[list(errors)] = 0
        if has_stop and (num_left := int(counts.max())) < num_steps:
            # what is not drafted is not scored
            drafts = np.ascontiguousarray(drafts[:, :num_left])
            laws = None if laws is None or not num_left else laws[:, :num_left].contiguous()
            candidates = None if candidates is None else candidates[:, :num_left].contiguous()
        token_ids, num_drafts = torch.from_numpy(drafts), torch.from_numpy(counts)
        if not has_laws:
            return Guesses(token_ids, num_drafts, errors=errors or None)
        q = laws if laws is None or candidates is None else SparseLogits(candidates, laws)
        return Proposal(token_ids, num_drafts, q, errors=errors or None)

    def error(self, step: int, code: int) -> str:
        """What a row's message says when a draft of the round could not be drawn."""
        return f"{self.what}, draft {step} of the round: {RowError(code).message}"

    def _kept(
        self, confidence: np.ndarray, step: int, rows: np.ndarray, counts: np.ndarray
    ) -> np.ndarray:
        """Ends rows that are not sure enough before they draw; returns the places of the others."""
        # a row whose law is broken is drawn from, and fails
        is_kept = ~(confidence < self.confidence_threshold)
        counts[rows[~is_kept]] = step - 1
        return np.flatnonzero(is_kept)

    def _law_buffer(self, state: DraftState, num_steps: int, num_ids: int) -> Tensor:
        device = state.sampler.device
        shape = (state.num_rows, num_steps, num_ids)
        # most rounds have the shape of the one before
        if self._laws.shape == shape and self._laws.device == device:
            return self._laws
        size = math.prod(shape)
        if self._memory.numel() < size or self._memory.device != device:
            self._memory = torch.empty(size, device=device)
        self._laws = self._memory[:size].view(shape)
        self._host_laws = self._laws.numpy() if device.type == "cpu" else None
        return self._laws

    def _keep_law(
        self,
        laws: Tensor,
        step: int,
        index: slice | np.ndarray,
        law: Tensor,
        candidates: Tensor | None,
    ) -> None:
        """Writes what rows `index` drew from at a step, of its candidates alone if it has any."""
        is_whole = isinstance(index, slice)
        if is_whole and candidates is None and self._host_laws is not None:
            # a fifth of what torch takes for a few rows
            self._host_laws[:, step - 1] = law.numpy()
            return
        place = index if is_whole else torch.from_numpy(index)
        if candidates is not None:
            law = law.gather(1, candidates[place, step - 1])
        laws[place, step - 1] = law

    def _note_errors(self, rows: np.ndarray, error: np.ndarray, step: int) -> dict[int, str]:
        return {
            int(row): self.error(step, code)
            for row, code in zip(rows, error.tolist(), strict=True)
            if code
        }


def _candidates_of(state: DraftState, given: Tensor | None, num_steps: int) -> Tensor | None:
    """Candidates of the steps, where q has to name them alone."""
    # a processor of the caller's may let in what is no candidate
    if given is None or state.sampler.process is not None:
        return None
    return given[:, :num_steps].to(state.sampler.device)


def largest_probability(law: Tensor, temperature: np.ndarray | float) -> np.ndarray:
    """Largest probability of softmax(law / temperature) [N], at 1 where a row is greedy.

    Computed in float64, so that the number of rows of a batch decides none of them.

    Args:
        law: Logits [N, V].
        temperature: [N], or one for all.
    """
    scale = np.broadcast_to(np.asarray(temperature, np.float64), (len(law),))
    scale = np.where(scale < GREEDY_TEMPERATURE, 1.0, scale)
    shifted = law.double() - law.amax(-1, keepdim=True)
    weights = (shifted / torch.from_numpy(scale).to(law.device)[:, None]).exp()
    return (1.0 / weights.sum(-1)).cpu().numpy()
