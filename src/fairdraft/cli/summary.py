"""Figures of one run: several requests' metrics added up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairdraft.engine import LLM, RequestOutput


@dataclass(frozen=True)
class EngineSeconds:
    """Where an engine's time went; requests of one batch share it."""

    draft: float = 0.0
    target: float = 0.0
    verify: float = 0.0

    @classmethod
    def of(cls, llm: LLM) -> EngineSeconds:
        """Reads the running totals of an engine."""
        clock = llm.engine.clock
        return cls(clock.draft, clock.target, clock.verify)

    def __sub__(self, other: EngineSeconds) -> EngineSeconds:
        return EngineSeconds(
            self.draft - other.draft, self.target - other.target, self.verify - other.verify
        )


@dataclass(frozen=True)
class Summary:
    """What a run did.

    Attributes:
        num_requests: Requests, failed ones included.
        num_failed: Requests that ended in an error.
        num_tokens: Tokens emitted.
        seconds: Wall time of the run, loading apart.
        rounds: Propose, verify and commit cycles, each one row of a target pass.
        num_draft_tokens: Drafts verified.
        num_accepted_tokens: Drafts that stood.
        drafted_per_position: Drafts verified at each place of the block.
        accepted_per_position: Drafts that stood at each place.
        draft_seconds: Time in the speculator.
        target_seconds: Time in the target's forward, prefill included.
        verify_seconds: Time in filters and verification.
        lossy: Name of the rule if the text does not follow the target, else None.
    """

    num_requests: int
    num_failed: int
    num_tokens: int
    seconds: float
    rounds: int
    num_draft_tokens: int
    num_accepted_tokens: int
    drafted_per_position: tuple[int, ...]
    accepted_per_position: tuple[int, ...]
    draft_seconds: float
    target_seconds: float
    verify_seconds: float
    lossy: str | None = None

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds if self.seconds > 0.0 else 0.0

    @property
    def acceptance_length(self) -> float:
        """Mean tokens a round, the bonus included."""
        return self.num_tokens / self.rounds if self.rounds else 0.0

    @property
    def target_passes_saved(self) -> int:
        return self.num_tokens - self.rounds

    @property
    def acceptance_per_position(self) -> tuple[float | None, ...]:
        """Share of the drafts that stood, at each place; None where nothing was drafted."""
        pairs = zip(self.accepted_per_position, self.drafted_per_position, strict=True)
        return tuple(stood / drafted if drafted else None for stood, drafted in pairs)

    @property
    def other_seconds(self) -> float:
        """Wall time outside draft, target and verify."""
        return self.seconds - self.draft_seconds - self.target_seconds - self.verify_seconds


def summarize(outputs: Sequence[RequestOutput], seconds: float, engine: EngineSeconds) -> Summary:
    """Adds up the metrics of a run.

    Args:
        outputs: Its requests.
        seconds: Its wall time.
        engine: What the engine's own clock gained in it.
    """
    metrics = [output.metrics for output in outputs if output.metrics is not None]
    return Summary(
        num_requests=len(outputs),
        num_failed=sum(output.error is not None for output in outputs),
        num_tokens=sum(len(sample.token_ids) for out in outputs for sample in out.outputs),
        seconds=seconds,
        rounds=sum(m.rounds for m in metrics),
        num_draft_tokens=sum(m.num_draft_tokens for m in metrics),
        num_accepted_tokens=sum(m.num_accepted_tokens for m in metrics),
        drafted_per_position=_add(m.drafted_per_position for m in metrics),
        accepted_per_position=_add(m.accepted_per_position for m in metrics),
        draft_seconds=engine.draft,
        target_seconds=engine.target,
        verify_seconds=engine.verify,
        lossy=next((output.lossy for output in outputs if output.lossy is not None), None),
    )


def _add(lists: Iterable[list[int]]) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip_longest(*lists, fillvalue=0))
