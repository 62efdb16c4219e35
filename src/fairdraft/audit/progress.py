"""How an audit stands, for whoever waits for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fairdraft.stats.summary import EvidenceSummary
from fairdraft.stats.verdict import Verdict, VerdictState

__all__ = ["OnProgress", "Progress"]


@dataclass(frozen=True)
class Progress:
    """A moment of an audit.

    Attributes:
        stage: What is going on: "addresses", "replay", "A/A run" or "audit".
        num_tokens: Tokens scored, over all sittings.
        num_texts: Texts they came from.
        seconds: Over all sittings.
        tokens_per_second: Of this sitting; 0 before the first batch.
        log10_e: Merged evidence now.
        threshold: What it must reach for FAIL, log10(1 / alpha).
        largest: Name of the family with the largest bound, or None.
        deviation: Its deviation, less what a right sampler shows.
        upper: Its upper bound.
        eps: What the bound must not be above for PASS.
        planned_tokens: Tokens in all until a verdict, about; None if unknown.
        state: Verdict so far.
        notes: Sentences that are new since the last call.
    """

    stage: str
    num_tokens: int
    num_texts: int
    seconds: float
    tokens_per_second: float
    log10_e: float
    threshold: float
    largest: str | None
    deviation: float
    upper: float
    eps: float
    planned_tokens: int | None
    state: VerdictState
    notes: tuple[str, ...] = ()

    @property
    def seconds_left(self) -> float | None:
        """Until the planned number of tokens, at this sitting's speed; None if unknown."""
        if self.planned_tokens is None or not self.tokens_per_second:
            return None
        return max(0, self.planned_tokens - self.num_tokens) / self.tokens_per_second


OnProgress = Callable[[Progress], None]


def progress_of(
    stage: str,
    summary: EvidenceSummary,
    verdict: Verdict,
    *,
    alpha: float,
    eps: float,
    seconds: float,
    tokens_per_second: float,
    notes: tuple[str, ...] = (),
) -> Progress:
    """Reads how an audit stands off its summary and its verdict so far."""
    judged = [f for f in summary.families if f.num_tokens and not f.is_diagnostic]
    largest = max(judged, key=lambda family: family.upper or 0.0, default=None)
    return Progress(
        stage=stage,
        num_tokens=summary.num_tokens,
        num_texts=summary.num_texts,
        seconds=seconds,
        tokens_per_second=tokens_per_second,
        log10_e=summary.log10_e,
        threshold=-math.log10(alpha),
        largest=None if largest is None else largest.name,
        deviation=0.0 if largest is None else largest.tv_debiased or 0.0,
        upper=1.0 if largest is None else largest.upper or 0.0,
        eps=eps,
        planned_tokens=verdict.needed_tokens,
        state=verdict.state,
        notes=notes,
    )
