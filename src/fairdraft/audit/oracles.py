"""The deterministic oracles of a subject in this process, and the verdict on what they find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairdraft.audit.contexts import ContextCheck, Rescorable
from fairdraft.audit.replay import Replay, Replayable
from fairdraft.audit.tracing import AddressCheck, Traceable, check_addresses
from fairdraft.stats.verdict import Verdict, VerdictState

__all__ = ["OracleFindings", "consult"]


@dataclass(frozen=True)
class OracleFindings:
    """What the oracles said.

    Attributes:
        notes: A sentence each, whatever they found.
        faults: The sentences that name a fault.
        diagnosis: What is wrong, a clause, or None.
    """

    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    diagnosis: str | None = None

    def state(self) -> dict[str, Any]:
        """JSON values for `restore`."""
        return {
            "notes": list(self.notes),
            "faults": list(self.faults),
            "diagnosis": self.diagnosis,
        }

    @classmethod
    def restore(cls, state: dict[str, Any]) -> OracleFindings:
        """The findings that `state` wrote."""
        return cls(tuple(state["notes"]), tuple(state["faults"]), state["diagnosis"])

    def verdict(self) -> Verdict | None:
        """FAIL, without statistics, if they found a fault."""
        if not self.faults:
            return None
        return Verdict(
            VerdictState.FAIL,
            f"FAIL: {self.faults[0]}",
            self.diagnosis,
            (*self.faults[1:], "found without statistics, so there is no false alarm"),
        )


def consult(subject: Any, on_stage: Callable[[str], None]) -> OracleFindings:
    """Asks the oracles that a subject offers, the address trace first.

    Args:
        subject: Any subject.
        on_stage: Told "addresses", "replay" and "contexts" before each begins.
    """
    notes: list[str] = []
    faults: list[str] = []
    diagnoses: list[str] = []
    if isinstance(subject, Traceable):
        on_stage("addresses")
        check = check_addresses(subject)
        notes.append(_on_addresses(check))
        if check.num_collisions:
            faults.append(f"one random number is used for two things: {check.collisions[0]}")
            faults.extend(check.collisions[1:])
            diagnoses.append("draws share an address of the noise")
    if isinstance(subject, Replayable):
        on_stage("replay")
        replay = subject.replay_rounds()
        notes.append(_on_replay(replay))
        faults.extend(replay.mismatches)
        if replay.mismatches:
            diagnoses.append("the ops do not decide as their definition does")
    if isinstance(subject, Rescorable):
        on_stage("contexts")
        contexts = subject.check_contexts()
        notes.append(_on_contexts(contexts))
        if not contexts.is_clean:
            faults.append(
                f"the logits that decided {contexts.where} are not the target's for that text: a "
                f"forward over the whole text differs by {contexts.largest:.3g}, and rounding by "
                f"{contexts.limit:g} at most"
            )
            diagnoses.append("cache, masks or positions give tokens the wrong context")
    return OracleFindings(tuple(notes), tuple(faults), "; ".join(diagnoses) or None)


def _on_addresses(check: AddressCheck) -> str:
    found = f"{check.num_collisions:,} collisions" if check.num_collisions else "no collision"
    return f"address trace: {check.num_draws:,} draws, {found}"


def _on_replay(replay: Replay) -> str:
    found = f"{len(replay.mismatches)} mismatches" if replay.mismatches else "no mismatch"
    ties = f", {replay.num_ties} left to rounding" if replay.num_ties else ""
    return (
        f"replay: {replay.num_rounds} rounds, {replay.num_tokens} tokens and "
        f"{replay.num_drafts} drafts decided again, {found}{ties}"
    )


def _on_contexts(check: ContextCheck) -> str:
    return (
        f"contexts: logits of {check.num_tokens} tokens are those of a forward over the whole "
        f"text to {check.largest:.2g}"
    )
