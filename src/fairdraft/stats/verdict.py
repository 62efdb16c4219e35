"""What an audit says in the end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["EXIT_CODES", "Verdict", "VerdictState"]


class VerdictState(StrEnum):
    """The five outcomes."""

    #: every declared deviation is bounded by eps, and nothing speaks against the target
    PASS = "PASS"
    #: the tokens do not follow the target
    FAIL = "FAIL"
    #: they do not, but every declared deviation is bounded by eps
    BIASED_WITHIN_TOLERANCE = "BIASED_WITHIN_TOLERANCE"
    #: more tokens are needed
    INCONCLUSIVE = "INCONCLUSIVE"
    #: the subject cannot be judged
    INVALID = "INVALID"


#: exit code of the process for each outcome
EXIT_CODES: dict[VerdictState, int] = {
    VerdictState.PASS: 0,
    VerdictState.FAIL: 1,
    VerdictState.BIASED_WITHIN_TOLERANCE: 0,
    VerdictState.INCONCLUSIVE: 3,
    VerdictState.INVALID: 4,
}


@dataclass(frozen=True)
class Verdict:
    """A verdict.

    Attributes:
        state: Which.
        sentence: It in numbers, one sentence.
        diagnosis: What is wrong, a clause, if the evidence says.
        reasons: Sentences that support it, and what was not tested.
        needed_tokens: For INCONCLUSIVE: tokens in all, about, until PASS or FAIL; None if unknown.
    """

    state: VerdictState
    sentence: str
    diagnosis: str | None = None
    reasons: tuple[str, ...] = ()
    needed_tokens: int | None = None

    @property
    def exit_code(self) -> int:
        """Exit code of the process."""
        return EXIT_CODES[self.state]
