"""A row of the catalogue: a fault in a setup, and what the audit must say of it."""

from __future__ import annotations

from dataclasses import dataclass

from fairdraft.audit.faults.fault import Fault
from fairdraft.audit.faults.setups import Setup
from fairdraft.stats.verdict import VerdictState

__all__ = ["ALPHA", "DELTA", "EPS", "Case"]

#: largest deviation that is let pass, and the chances of a false FAIL and of a false PASS
EPS, ALPHA, DELTA = 0.01, 1e-6, 0.01


@dataclass(frozen=True)
class Case:
    """One fault in one setup, or nothing planted.

    Attributes:
        fault: What is planted; None for the clean path.
        setup: Where.
        num_tokens: Planned tokens: after so many the verdict must have come.
        expected: Verdict of the law test; None: anything but FAIL, for the clean path.
        names: What may be named first, template or family; empty for anything.
        is_traced: Whether the address trace must name the fault; None where it is not looked at.
        keeps_text: Whether texts must be those of plain decoding, or must not; None where they are
            not compared. For toys under rule `common_noise`.
    """

    fault: Fault | None
    setup: Setup
    num_tokens: int
    expected: VerdictState | None = VerdictState.FAIL
    names: tuple[str, ...] = ()
    is_traced: bool | None = None
    keeps_text: bool | None = None

    @property
    def name(self) -> str:
        """Unique: the fault's, or the clean setup's."""
        return f"clean-{self.setup.name}" if self.fault is None else self.fault.name

    @property
    def cost(self) -> float:
        """About how many seconds it takes."""
        # a verdict comes at a third of the plan, or so
        share = 1.0 if self.expected is None else 1.0 / 3.0
        return 1.0 + share * self.num_tokens / self.setup.tokens_per_second
