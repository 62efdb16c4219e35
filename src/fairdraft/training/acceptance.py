"""Acceptance length: tokens a round, measured by generating."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fairdraft.engine import LLM, SamplingParams


@dataclass(frozen=True)
class Acceptance:
    """What was counted over all requests of a run.

    Attributes:
        temperature: Of the requests.
        num_prompts: Requests.
        num_rounds: Verified rounds.
        num_tokens: Emitted tokens.
        length: Tokens a round, the one after the drafts included.
        by_draft: Chance that draft i is accepted, given that it is reached.
    """

    temperature: float
    num_prompts: int
    num_rounds: int
    num_tokens: int
    length: float
    by_draft: list[float]

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for files."""
        return asdict(self)


def measure_acceptance(
    llm: LLM, prompts: Sequence[list[int]], temperature: float, *, max_tokens: int = 128
) -> Acceptance:
    """Generates from prompts, each under a seed of its own, and counts.

    Args:
        llm: With a speculator.
        prompts: Token ids.
        temperature: 0 is greedy.
        max_tokens: Of each request; it ends earlier at its end token.

    Raises:
        ValueError: If there are no prompts, or a request fails.
    """
    if not prompts:
        raise ValueError("no prompts to measure acceptance on; the held-out text is too short")
    params = [
        SamplingParams(temperature=temperature, seed=i, max_tokens=max_tokens)
        for i in range(len(prompts))
    ]
    outputs = llm.generate(list(prompts), params)
    failed = [output.error for output in outputs if output.error]
    if failed:
        raise ValueError(f"a request failed while acceptance was measured: {failed[0]}")
    metrics = [output.metrics for output in outputs if output.metrics is not None]
    rounds = sum(m.rounds for m in metrics)
    tokens = sum(m.num_emitted_tokens for m in metrics)
    accepted = [sum(c) for c in zip(*(m.accepted_per_position for m in metrics), strict=True)]
    drafted = [sum(c) for c in zip(*(m.drafted_per_position for m in metrics), strict=True)]
    # draft i + 1 is reached in the rounds that accepted draft i and held one more
    reached = [drafted[0] if drafted else 0]
    reached += [min(a, d) for a, d in zip(accepted, drafted[1:], strict=False)]
    given = [round(a / r, 4) if r else 0.0 for a, r in zip(accepted, reached, strict=True)]
    return Acceptance(
        temperature, len(prompts), rounds, tokens, round(tokens / max(rounds, 1), 4), given
    )
