"""The exact-match mode: at temperature 0 speculation must emit plain decoding's own tokens.

One right token has no statistics. Two paths through a network differ by rounding, so a text may
part from its twin where two logits are as good as equal: a tie, told from a bug by the gap between
the two tokens' logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fairdraft.audit.settings import AuditSettings
from fairdraft.stats.verdict import Verdict, VerdictState

if TYPE_CHECKING:
    from fairdraft.audit.contexts import ContextCheck
    from fairdraft.audit.report.document import Report
    from fairdraft.audit.subject import SubjectInfo

__all__ = [
    "Difference",
    "Matching",
    "different",
    "identity_report",
    "invalid",
    "match_report",
    "match_texts",
]

#: two paths may each miss a logit by what was measured: a gap of twice that can turn, doubled
TIE_FACTOR = 4.0
COVERAGE = "tested: identity with plain decoding at temperature 0, token by token"


@dataclass(frozen=True)
class Difference:
    """Where a text first differs from its twin.

    Attributes:
        text: Its number.
        position: In its output.
        given: Id that speculation emitted, -1 if it ended before.
        expected: Id that plain decoding emitted, -1 likewise.
        gap: Of the two tokens' logits.
    """

    text: int
    position: int
    given: int
    expected: int
    gap: float

    def __str__(self) -> str:
        return (
            f"token {self.position} of text {self.text} is {self.given}, and plain decoding emits "
            f"{self.expected}; their logits are {self.gap:.3g} apart"
        )


@dataclass(frozen=True)
class Matching:
    """Texts beside their twins, each up to its first difference.

    Attributes:
        num_texts: Compared.
        num_tokens: Compared.
        tie_limit: A gap below it is a tie.
        ties: Differences that rounding explains.
        faults: Those that it does not.
    """

    num_texts: int
    num_tokens: int
    tie_limit: float
    ties: tuple[Difference, ...]
    faults: tuple[Difference, ...]


def match_texts(
    given: Sequence[Sequence[int]],
    expected: Sequence[Sequence[int]],
    gap: Callable[[int, int, int, int], float],
    contexts: ContextCheck,
) -> Matching:
    """Compares texts token by token.

    Args:
        given: Ids of each text under speculation.
        expected: Ids of each text under plain decoding.
        gap: From text, position and two ids to the distance of their logits there.
        contexts: How far logits of the runs are from those of a forward; sets what a tie is.
    """
    limit = TIE_FACTOR * min(contexts.largest, contexts.limit)
    ties, faults, num_tokens = [], [], 0
    for text, (ours, plain) in enumerate(zip(given, expected, strict=True)):
        first = _first_difference(ours, plain)
        num_tokens += min(len(ours), len(plain)) if first is None else first + 1
        if first is None:
            continue
        a = ours[first] if first < len(ours) else -1
        b = plain[first] if first < len(plain) else -1
        distance = gap(text, first, a, b) if a >= 0 and b >= 0 else float("inf")
        (ties if distance <= limit else faults).append(Difference(text, first, a, b, distance))
    return Matching(len(given), num_tokens, limit, tuple(ties), tuple(faults))


def match_report(
    info: SubjectInfo,
    matching: Matching,
    contexts: ContextCheck,
    num_drafts: int,
    *,
    seconds: float,
) -> Report:
    """The report of a comparison."""
    return identity_report(
        match_verdict(matching, contexts, num_drafts),
        info,
        num_tokens=matching.num_tokens,
        num_texts=matching.num_texts,
        coverage=COVERAGE,
        seconds=seconds,
        notes=_notes(matching, contexts, num_drafts),
    )


def identity_report(
    verdict: Verdict,
    info: SubjectInfo,
    *,
    num_tokens: int,
    num_texts: int,
    coverage: str,
    seconds: float,
    notes: Sequence[str] = (),
) -> Report:
    """The report of a verdict by identity, so no error rate is in it.

    Args:
        verdict: On what was compared.
        info: Of the subject.
        num_tokens: Compared.
        num_texts: Compared.
        coverage: What was tested, a sentence.
        seconds: Time spent.
        notes: Sentences about what happened.
    """
    from fairdraft.audit.report import build_report
    from fairdraft.stats.evidence import Evidence

    summary = replace(
        Evidence().summary(), num_tokens=num_tokens, num_texts=num_texts, coverage=(coverage,)
    )
    return build_report(
        summary,
        verdict,
        info,
        AuditSettings().document(0.0) | {"mode": "exact match"},
        seconds=seconds,
        notes=(*notes, "a verdict by identity: eps, alpha and delta play no part"),
    )


def invalid(reason: str) -> Verdict:
    """INVALID, with its reason."""
    return Verdict(VerdictState.INVALID, f"INVALID: {reason}", None, (reason,))


def different(
    faults: Sequence[Difference], num_texts: int, what: str, count: str, diagnosis: str
) -> Verdict:
    """FAIL by the texts that differ.

    Args:
        faults: One a text, at least one.
        num_texts: Compared.
        what: What the faulty texts are, the end of a clause.
        count: What was compared, for the sentence's end.
        diagnosis: As in `Verdict`.
    """
    return Verdict(
        VerdictState.FAIL,
        f"FAIL: {len(faults)} of {num_texts} texts {what}, the first: {faults[0]}; {count}",
        diagnosis,
        tuple(str(fault) for fault in faults[1:6]),
    )


def match_verdict(matching: Matching, contexts: ContextCheck, num_drafts: int) -> Verdict:
    """PASS or FAIL by identity; INVALID if no draft was tested."""
    if not num_drafts:
        return invalid(
            f"no draft was seen in {matching.num_tokens:,} tokens, so speculation was not tested; "
            "turn it on in what is audited"
        )
    n = f"n={matching.num_tokens} tokens in {matching.num_texts} texts"
    if not contexts.is_clean:
        return Verdict(
            VerdictState.FAIL,
            f"FAIL: the logits of {contexts.where} differ by {contexts.largest:.3g} from a forward "
            f"over the whole text, rounding by {contexts.limit:g} at most; {n}",
            "cache, masks or positions give tokens the wrong context",
        )
    if matching.faults:
        return different(
            matching.faults,
            matching.num_texts,
            "are not those of plain decoding",
            n,
            "greedy tokens differ where rounding cannot have turned them",
        )
    ties = _ties(matching)
    return Verdict(
        VerdictState.PASS,
        f"PASS: every greedy token is that of plain decoding{ties and ', ' + ties}; {n}",
    )


def _ties(matching: Matching) -> str:
    if not matching.ties:
        return ""
    largest = max(tie.gap for tie in matching.ties)
    plural = "texts part" if len(matching.ties) > 1 else "text parts"
    return (
        f"but for rounding: {len(matching.ties)} {plural} where two logits are at most "
        f"{largest:.2g} apart"
    )


def _notes(matching: Matching, contexts: ContextCheck, num_drafts: int) -> tuple[str, ...]:
    return (
        f"{num_drafts:,} drafts were tested",
        f"logits of {contexts.num_tokens} tokens are those of a forward over the whole text to "
        f"{contexts.largest:.2g}; a gap of {matching.tie_limit:.2g} is a tie",
        *(f"tie: {tie}" for tie in matching.ties),
    )


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))
