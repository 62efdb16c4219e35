"""Faults of q: the verifier is told another law than the drafts were drawn from.

They replace the shared sampler's `draw`, or what a speculator proposes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fairdraft.audit.faults.fault import Fault, Function, Planting

__all__ = ["DRAFT_FAULTS"]

DRAW = "fairdraft.speculators.SharedSampler.draw"


def _drawn_at_one(original: Function, planting: Planting) -> Function:
    def draw(self: Any, *args: Any, **kwargs: Any) -> Any:
        at_one = replace(self, temperature=np.ones_like(self.temperature))
        return original(at_one, *args, **kwargs)

    return draw


def _unfiltered_q(original: Function, planting: Planting) -> Function:
    def draw(self: Any, logits: Any, *args: Any, **kwargs: Any) -> Any:
        return replace(original(self, logits, *args, **kwargs), logits=logits)

    return draw


def _raw_q(original: Function, planting: Planting) -> Function:
    """Logits are scaled so that the request's temperature makes them the law at temperature 1."""

    def draw(self: Any, logits: Any, step: int, rows: np.ndarray, **kwargs: Any) -> Any:
        import torch

        drawn = original(self, logits, step, rows, **kwargs)
        temperature = torch.from_numpy(self.temperature[rows]).to(logits.dtype)
        return replace(drawn, logits=logits * temperature[:, None])

    return draw


def _argmax_as_sampled(original: Function, planting: Planting) -> Function:
    def draw(self: Any, *args: Any, **kwargs: Any) -> Any:
        law = original(self, *args, **kwargs).logits
        best = original(self, *args, **{**kwargs, "greedy": True})
        return replace(best, logits=law)

    return draw


def _rounded(original: Function, planting: Planting) -> Function:
    """Drawn from bfloat16 logits of magnitude 32, as heads without a shift give them."""

    def draw(self: Any, logits: Any, *args: Any, **kwargs: Any) -> Any:
        rounded = (logits + 32).bfloat16().to(logits.dtype) - 32
        return replace(original(self, rounded, *args, **kwargs), logits=logits)

    return draw


def _two_best(original: Function, planting: Planting) -> Function:
    def draw(self: Any, logits: Any, *args: Any, **kwargs: Any) -> Any:
        least = logits.topk(2, dim=-1).values[:, -1:]
        return original(self, logits.masked_fill(logits < least, -float("inf")), *args, **kwargs)

    return draw


def _looked_at(original: Function, planting: Planting) -> Function:
    def propose(self: Any, state: Any) -> Any:
        proposal = original(self, state)
        if not proposal.token_ids.shape[1]:
            return proposal
        law = proposal.draft_logits.softmax(-1)
        drawn = law.gather(-1, proposal.token_ids.clamp(min=0)[..., None])[..., 0]
        is_kept = ((drawn >= 0.25) & (proposal.token_ids >= 0)).cumprod(1)
        return replace(proposal, num_draft_tokens=is_kept.sum(1))

    return propose


DRAFT_FAULTS = (
    Fault(
        "drawn-at-one",
        "drafts are drawn at temperature 1 and verified at the request's",
        DRAW,
        _drawn_at_one,
        "q",
        "dflash #74",
    ),
    Fault(
        "unfiltered-q",
        "drafts are drawn after top-k and top-p and verified with q before them",
        DRAW,
        _unfiltered_q,
        "q",
        "transformers #47932",
    ),
    Fault(
        "raw-q",
        "drafts are drawn at the request's temperature and filters and verified with raw q",
        DRAW,
        _raw_q,
        "q",
        "transformers #47961",
    ),
    Fault(
        "argmax-as-sampled",
        "the best token is drafted and verified as if it had been sampled",
        DRAW,
        _argmax_as_sampled,
        "q",
        "transformers #32867",
    ),
    Fault(
        "rounded-draft",
        "drafts are drawn from bfloat16 logits and verified with float32 ones",
        DRAW,
        _rounded,
        "q",
        "DeepSpec #31",
    ),
    Fault(
        "guessed-from-two",
        "under rule common_noise, guesses are drawn from the draft's two best tokens alone",
        "fairdraft.speculators.CommonSampler.draw",
        _two_best,
        "q",
    ),
    Fault(
        "dropped-after-looking",
        "a draft of small q is dropped, so whether it is verified depends on what was drawn",
        "fairdraft.speculators.DraftModelSpeculator.propose",
        _looked_at,
        "q",
    ),
)
