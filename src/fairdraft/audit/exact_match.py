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

__all__ = ["Difference", "Matching", "match_report", "match_texts"]

#: two paths may each miss a logit by what was measured: a gap of twice that can turn, doubled
TIE_FACTOR = 4.0


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
    settings: AuditSettings | None = None,
) -> Report:
    """The report of a comparison; its verdict is by identity, so no error rate is in it."""
    from fairdraft.audit.report import build_report
    from fairdraft.stats.evidence import Evidence

    summary = replace(
        Evidence().summary(),
        num_tokens=matching.num_tokens,
        num_texts=matching.num_texts,
        coverage=("tested: identity with plain decoding at temperature 0, token by token",),
    )
    return build_report(
        summary,
        match_verdict(matching, contexts, num_drafts),
        info,
        (settings or AuditSettings()).document(0.0) | {"mode": "exact match"},
        seconds=seconds,
        notes=_notes(matching, contexts, num_drafts),
    )


def match_verdict(matching: Matching, contexts: ContextCheck, num_drafts: int) -> Verdict:
    """PASS or FAIL by identity; INVALID if no draft was tested."""
    if not num_drafts:
        reason = (
            f"no draft was seen in {matching.num_tokens:,} tokens, so speculation was not tested; "
            "turn it on in what is audited"
        )
        return Verdict(VerdictState.INVALID, f"INVALID: {reason}", None, (reason,))
    n = f"n={matching.num_tokens} tokens in {matching.num_texts} texts"
    if not contexts.is_clean:
        return Verdict(
            VerdictState.FAIL,
            f"FAIL: the logits of {contexts.where} differ by {contexts.largest:.3g} from a forward "
            f"over the whole text, rounding by {contexts.limit:g} at most; {n}",
            "cache, masks or positions give tokens the wrong context",
        )
    if matching.faults:
        return Verdict(
            VerdictState.FAIL,
            f"FAIL: {len(matching.faults)} of {matching.num_texts} texts are not those of plain "
            f"decoding, the first: {matching.faults[0]}; {n}",
            "greedy tokens differ where rounding cannot have turned them",
            tuple(str(fault) for fault in matching.faults[1:6]),
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
        "a verdict by identity: eps, alpha and delta play no part",
    )


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))
