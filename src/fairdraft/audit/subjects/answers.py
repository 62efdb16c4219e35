"""What must stay the same from one answer of an endpoint to the next."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fairdraft.audit.completions import Completion, parse_completion
from fairdraft.audit.subject import InvalidSubject

__all__ = ["AnswerChecks", "Identity"]


@dataclass(frozen=True)
class Identity:
    """Who answers.

    Attributes:
        model: Name in the answer.
        fingerprint: Its `system_fingerprint`.
        has_ids: Whether tokens come with the server's ids.
    """

    model: str | None
    fingerprint: str | None
    has_ids: bool

    @classmethod
    def read(cls, cursor: dict[str, Any] | None) -> Identity | None:
        """Who answered up to a cursor."""
        return None if cursor is None else cls(**cursor["identity"])

    def document(self) -> dict[str, Any]:
        """Its part of a cursor, JSON values."""
        return asdict(self)


class AnswerChecks:
    """Reads answers, and refuses one by another server or one whose end token is missing.

    Args:
        identity: Who must answer; None takes whoever answers first.
    """

    def __init__(self, identity: Identity | None = None) -> None:
        self.identity = identity
        self._inside: set[int] = set()
        self._last: set[int] = set()

    def read(self, answer: Any, k: int) -> Completion:
        """Reads one answer.

        Raises:
            InvalidSubject: If it cannot be scored.
        """
        completion = parse_completion(answer, k)
        found = Identity(answer.get("model"), answer.get("system_fingerprint"), completion.has_ids)
        if self.identity is None:
            self.identity = found
        if found != self.identity:
            was, now = asdict(self.identity), asdict(found)
            changed = next(name for name in was if was[name] != now[name])
            raise InvalidSubject(
                f"the server changed during the audit: {changed} was {was[changed]!r} and is "
                f"{now[changed]!r}; texts of two servers have no common verdict, so begin anew"
            )
        self._check_end(completion)
        return completion

    # a text that stops without listing its end token hides an outcome, and so biases the rest
    def _check_end(self, completion: Completion) -> None:
        *inside, last = completion.token_ids.tolist()
        self._inside.update(inside)
        if completion.finish_reason == "stop":
            self._last.add(last)
        else:
            self._inside.add(last)
        both = self._last & self._inside
        if both:
            raise InvalidSubject(
                f"a text stopped after token {min(both)}, which elsewhere ends nothing: the token "
                "that ends a text is not listed, so what was sampled there is unknown; have the "
                "server ignore the end token (vLLM: ignore_eos)"
            )
