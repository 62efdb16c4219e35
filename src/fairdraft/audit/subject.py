"""The protocol between an audit and whatever decodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from fairdraft.stats.tokens import ScoredTokens

__all__ = ["LOSSY_NAMES", "Batch", "InvalidSubject", "Subject", "SubjectInfo", "refuse_lossy"]

#: `ops.lossy.LOSSY_RULES` by name alone: reading a report loads no torch
LOSSY_NAMES = ("typical", "threshold", "synthetic")


class InvalidSubject(Exception):
    """The subject cannot be judged; the message says why and what to do."""


@dataclass(frozen=True)
class SubjectInfo:
    """What is recorded about a subject.

    Attributes:
        kind: "engine", "hf", "endpoint", "trace", "kernel" or a caller's own word.
        name: One line for people.
        parameters: Sampler and model settings, JSON values; a resumed audit must find the same.
        scoring: Whose laws score the tokens: "own logits", "logprobs" or "rescored".
        default_eps0: Numeric tolerance a token of that scoring (total variation).
        is_speculative: Whether drafts must be seen, or the audit is invalid.
        sampler: "race", "gumbel", "inverse_cdf" or "unknown": which coupled laws can occur.
        rule: Verification rule, if known: "token", "block", "common_noise" or "tree".
        duplicates_declared: Texts of one seed and prompt are expected to agree.
    """

    kind: str
    name: str
    parameters: dict[str, Any] = field(default_factory=dict)
    scoring: str = "own logits"
    default_eps0: float = 0.0
    is_speculative: bool = True
    sampler: str = "unknown"
    rule: str | None = None
    duplicates_declared: bool = False

    def __post_init__(self) -> None:
        refuse_lossy(self.rule)


def refuse_lossy(rule: Any) -> None:
    """Refuses a subject under a lossy rule, given by name or value.

    Raises:
        ValueError: If the rule is lossy.
    """
    name = getattr(rule, "name", rule)
    if name in LOSSY_NAMES:
        raise ValueError(
            f"rule {name!r} is lossy: what it emits does not follow the target, so an audit can "
            "only come to FAIL; audit the engine under an exact rule, such as 'standard'"
        )


@dataclass(frozen=True)
class Batch:
    """Some whole texts, scored.

    Attributes:
        tokens: Their tokens; texts are numbered on from the batch before.
        cursor: Where the subject goes on after this batch; JSON, given back to `batches`.
        notes: Sentences about what happened (a retry, a text that failed), each shown once.
    """

    tokens: ScoredTokens
    cursor: Any
    notes: tuple[str, ...] = ()


class Subject(Protocol):
    """Anything that emits tokens whose target laws are known."""

    @property
    def info(self) -> SubjectInfo:
        """What is recorded about the subject."""
        ...

    def batches(self, cursor: Any = None) -> Iterator[Batch]:
        """Yields scored texts, from the beginning or from a batch's cursor; may never end.

        Raises:
            InvalidSubject: If nothing that follows could be judged.
        """
        ...
