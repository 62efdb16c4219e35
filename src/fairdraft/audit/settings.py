"""What an audit is asked for: error rates, tolerance, and how long it may take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["AuditSettings", "OraclePolicy"]


class OraclePolicy(StrEnum):
    """What a finding of the deterministic oracles means: the address trace and the replay."""

    #: FAIL before any statistics: an address promises to be used once, an op to be its definition
    FAIL = "fail"
    #: it is named in the report, and the law of the tokens alone decides
    NAME = "name"
    #: nobody looks
    SKIP = "skip"


@dataclass(frozen=True)
class AuditSettings:
    """How an audit decides and when it gives up.

    Attributes:
        eps: Largest averaged total variation that still passes, in (0, 1).
        alpha: Most probability of FAIL for a right sampler, at any stopping time.
        delta: Most probability of PASS for a sampler that is off by more than eps.
        eps0: Numeric tolerance a token (total variation); None takes the subject's own.
        max_tokens: Tokens after which the audit ends without a verdict; the batch that reaches
            the number is scored whole.
        max_seconds: Seconds of this sitting after which it ends likewise; None for no limit.
        oracles: What it means if the address trace or the replay of an in-process subject finds
            something.

    Raises:
        ValueError: If a value is out of range.
    """

    eps: float = 0.01
    alpha: float = 1e-3
    delta: float = 0.01
    eps0: float | None = None
    max_tokens: int = 1_000_000
    max_seconds: float | None = None
    oracles: OraclePolicy = OraclePolicy.FAIL

    def __post_init__(self) -> None:
        for name in ("eps", "alpha", "delta"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 < value < 1:
                raise ValueError(f"{name} = {value!r} must be above 0 and below 1, such as 0.01")
        if self.eps0 is not None and (not _is_number(self.eps0) or not 0 <= self.eps0 < 0.5):
            raise ValueError(
                f"eps0 = {self.eps0!r} must be at least 0 and below 0.5, or None for the subject's"
            )
        if isinstance(self.max_tokens, bool) or not isinstance(self.max_tokens, int):
            raise ValueError(f"max_tokens = {self.max_tokens!r} must be an int")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens = {self.max_tokens!r} must be at least 1")
        seconds = self.max_seconds
        if seconds is not None and not (_is_number(seconds) and seconds > 0):
            raise ValueError(f"max_seconds = {seconds!r} must be above 0, or None for no limit")
        object.__setattr__(self, "oracles", OraclePolicy(self.oracles))

    def decisive(self, eps0: float) -> dict[str, float]:
        """The numbers that error rates depend on; a resumed audit must be given the same."""
        values = {"eps": self.eps, "alpha": self.alpha, "delta": self.delta, "eps0": eps0}
        return {name: float(value) for name, value in values.items()}

    def document(self, eps0: float) -> dict[str, Any]:
        """Everything, as JSON values, for the report."""
        return self.decisive(eps0) | {
            "max_tokens": self.max_tokens,
            "max_seconds": self.max_seconds,
            "oracles": str(self.oracles),
        }


def _is_number(value: Any) -> bool:
    is_plain = isinstance(value, int | float) and not isinstance(value, bool)
    return is_plain and math.isfinite(value)
