"""Runs one case: plants, decodes, gathers evidence, and compares with what must come out."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from fairdraft.audit.faults.case import ALPHA, DELTA, EPS, Case
from fairdraft.stats.verdict import Verdict, VerdictState

if TYPE_CHECKING:
    from fairdraft.audit.faults.fault import Planting
    from fairdraft.audit.subject import Subject
    from fairdraft.noise import Trace
    from fairdraft.stats.evidence import Evidence

__all__ = ["Outcome", "run_case"]

#: texts of a toy that are traced, or compared with plain decoding
_TRACED_TEXTS = 40
_LIMIT = -math.log10(ALPHA)


@dataclass(frozen=True)
class Outcome:
    """What a case came to.

    Attributes:
        case: Which.
        verdict: Of the law test.
        num_tokens: Tokens scored.
        tokens_to_fail: Tokens after which FAIL was due; None if it never was.
        log10_e: Most evidence there ever was.
        named: Template or family of the most evidence; None unless the verdict is FAIL.
        num_collisions: Addresses that raced two things; None where the trace was not looked at.
        num_differing: Texts that plain decoding does not give; None where none were compared.
        num_calls: How often the faulty function ran.
        seconds: How long it took.
    """

    case: Case
    verdict: Verdict
    num_tokens: int
    tokens_to_fail: int | None
    log10_e: float
    named: str | None
    num_collisions: int | None
    num_differing: int | None
    num_calls: int
    seconds: float

    def numbers(self) -> dict[str, Any]:
        """Everything but the case, whose functions do not travel between processes."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "case"}

    @property
    def named_by(self) -> str:
        """Everything that named the fault, for a table."""
        found = [] if self.named is None else [self.named]
        if self.num_collisions:
            found.append("trace")
        if self.num_differing:
            found.append("text")
        return ", ".join(found) or "-"

    @property
    def surprises(self) -> tuple[str, ...]:
        """What is not as expected, a clause each."""
        case, found = self.case, []
        if case.expected is None:
            if self.verdict.state not in (VerdictState.PASS, VerdictState.INCONCLUSIVE):
                found.append(f"{self.verdict.state} where nothing is planted")
        elif self.verdict.state != case.expected:
            found.append(f"{self.verdict.state} where {case.expected} is expected")
        elif self.tokens_to_fail is not None and self.tokens_to_fail > case.num_tokens:
            found.append(f"FAIL after {self.tokens_to_fail:,} tokens, not {case.num_tokens:,}")
        elif case.names and self.named not in case.names:
            found.append(f"named '{self.named}' in place of '{case.names[0]}'")
        if case.is_traced is not None and bool(self.num_collisions) != case.is_traced:
            found.append("the trace is silent" if case.is_traced else "the trace names something")
        if case.keeps_text is not None and bool(self.num_differing) == case.keeps_text:
            found.append(
                f"{self.num_differing} texts are not those of plain decoding"
                if case.keeps_text
                else "every text is that of plain decoding"
            )
        if case.fault is not None and not self.num_calls:
            found.append(f"{case.fault.function} never ran")
        return tuple(found)


def run_case(case: Case, seed: int = 0) -> Outcome:
    """Runs a case to its verdict, or to the planned number of tokens.

    Args:
        case: Which.
        seed: Any integer; another one gives other texts.

    Raises:
        ValueError: If another fault is in place.
    """
    from fairdraft.stats.evidence import Evidence, EvidenceSettings

    begin = time.perf_counter()
    # built before anything is planted, so that its laws are the right ones
    subject = case.setup.subject(seed)
    info = subject.info
    settings = EvidenceSettings(
        eps=EPS, alpha=ALPHA, delta=DELTA, sampler=info.sampler, rule=info.rule
    )
    evidence = Evidence(settings)
    with _planted(case, None) as planting:
        impossible_at = _gather(evidence, subject, case)
    num_collisions = None if case.is_traced is None else _count_collisions(case, subject)
    num_differing = None if case.keeps_text is None else _count_differing(case, subject)
    verdict = evidence.verdict()
    is_failed = verdict.state is VerdictState.FAIL
    return Outcome(
        case,
        verdict,
        evidence.num_tokens,
        _tokens_to_fail(evidence, impossible_at) if is_failed else None,
        evidence.sup_log10_e,
        _named(evidence, impossible_at) if is_failed else None,
        num_collisions,
        num_differing,
        planting.count if planting else 0,
        time.perf_counter() - begin,
    )


def _planted(case: Case, trace: Trace | None) -> contextlib.AbstractContextManager[Planting | None]:
    return contextlib.nullcontext() if case.fault is None else case.fault.planted(trace)


def _gather(evidence: Evidence, subject: Subject, case: Case) -> int | None:
    """Adds batches until the verdict; returns the tokens up to the first impossible one."""
    for batch in subject.batches():
        before = evidence.num_tokens
        evidence.add(batch.tokens)
        if evidence.excluded is not None:
            return before + int((batch.tokens.probability == 0).argmax()) + 1
        if evidence.num_tokens >= case.num_tokens:
            return None
        may_pass = case.expected is not VerdictState.FAIL
        if may_pass or evidence.sup_log10_e >= _LIMIT:
            state = evidence.verdict().state
            if state is VerdictState.FAIL or (may_pass and state is VerdictState.PASS):
                return None
    raise AssertionError("subjects of setups never end")


def _tokens_to_fail(evidence: Evidence, impossible_at: int | None) -> int:
    refuted = [tokens for tokens, log10_e in evidence.curve if log10_e >= _LIMIT]
    # the curve is thinned, and the last point always stays
    ends = [*refuted[:1], *([] if impossible_at is None else [impossible_at])]
    return min(ends, default=evidence.num_tokens)


def _named(evidence: Evidence, impossible_at: int | None) -> str:
    """The template or family that holds most evidence."""
    from fairdraft.stats.evidence import IMPOSSIBLE

    processes = evidence.log_evidence()
    if impossible_at is not None:
        return IMPOSSIBLE
    return max(processes, key=lambda name: processes[name])


def _count_collisions(case: Case, subject: Subject) -> int:
    """Traces some texts under the fault; deterministic."""
    from fairdraft.audit.subjects.engine import EngineSubject
    from fairdraft.audit.subjects.toy import ToySubject
    from fairdraft.noise import Trace

    trace = Trace()
    with _planted(case, trace):
        if isinstance(subject, ToySubject):
            subject.play(0, _TRACED_TEXTS, trace)
        else:
            assert isinstance(subject, EngineSubject)
            trace = subject.trace_addresses()
    return len(trace.collisions)


def _count_differing(case: Case, subject: Subject) -> int:
    """Compares some texts under the fault with those of plain decoding; deterministic."""
    from fairdraft.audit.subjects.toy import ToySubject

    assert isinstance(subject, ToySubject)
    plain = replace(subject, decoding=replace(subject.decoding, num_drafts=0))
    expected = plain.decode(0, _TRACED_TEXTS).token
    with _planted(case, None):
        found = subject.decode(0, _TRACED_TEXTS).token
    return int((found != expected).any(axis=1).sum())
