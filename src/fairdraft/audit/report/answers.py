"""The four questions of an operator: is it broken, how sure, what is it, what next."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairdraft.audit.report.advice import named_template, next_steps
from fairdraft.audit.report.document import Report
from fairdraft.audit.report.findings import (
    is_by_identity,
    largest_deviation,
    threshold,
    worst_family,
)
from fairdraft.audit.report.wording import (
    chance,
    count,
    distance,
    grouped,
    odds,
    power_of_ten,
    sentence,
)

TITLES = {
    "PASS": "PASS",
    "FAIL": "FAIL",
    "BIASED_WITHIN_TOLERANCE": "BIASED WITHIN TOLERANCE",
    "INCONCLUSIVE": "INCONCLUSIVE",
    "INVALID": "INVALID",
}
_MEANINGS = {
    "PASS": (
        "In every declared family the output differs from the target by at most eps, with the "
        "confidence stated, and the evidence of bias stayed below its limit. This is a claim "
        "about the declared families, not about every direction in which a decoder can be wrong."
    ),
    "FAIL": (
        "The output does not follow the target's law. This is not chance: a right sampler reaches "
        "the limit in at most a share alpha of all runs, however long they are and whenever one "
        "looks."
    ),
    "BIASED_WITHIN_TOLERANCE": (
        "The output does not follow the target's law exactly, which is certain, but in every "
        "declared family it differs by at most eps. The process ends with 0."
    ),
    "INCONCLUSIVE": (
        "There are too few tokens to tell: bias is not shown, and neither is that it is at most "
        "eps. This is no PASS."
    ),
    "INVALID": "The run cannot be judged, so nothing was decided. This is no PASS.",
}


_BY_IDENTITY = {
    "PASS": (
        "Every token that was compared is the one it has to be. That says nothing about "
        "temperatures and prompts other than those of this run."
    ),
    "FAIL": (
        "A right decoder never does what was seen here. It is a matter of identity, not of chance, "
        "so no error rate is attached to it."
    ),
}


@dataclass(frozen=True)
class Answer:
    """One question with a short answer and what there is to say about it."""

    question: str
    headline: str
    details: tuple[str, ...]


def verdict_sentence(report: Report) -> str:
    """The verdict in words, without its name in front."""
    verdict = report.verdict
    return grouped(sentence(verdict.sentence.removeprefix(f"{verdict.state}: ")))


def meaning(report: Report) -> str:
    """What the verdict claims, and what it does not."""
    return (_BY_IDENTITY if is_by_identity(report) else _MEANINGS)[report.verdict.state]


def answers(report: Report) -> tuple[Answer, ...]:
    """Answers the four questions for a report."""
    return (_broken(report), _sure(report), _what(report), _next(report))


def _broken(report: Report) -> Answer:
    headline = {
        "PASS": "No, within eps",
        "FAIL": "Yes",
        "BIASED_WITHIN_TOLERANCE": "Slightly",
        "INCONCLUSIVE": "Not known yet",
        "INVALID": "Not known",
    }[report.verdict.state]
    question, largest = "Is it broken?", largest_deviation(report)
    if is_by_identity(report):
        return Answer(question, headline.removesuffix(", within eps"), _checked(report))
    if largest is None or report.verdict.state == "INVALID":
        return Answer(question, headline, ("Nothing was measured that may be judged.",))
    size = (
        f"Largest measured deviation {distance(largest.tv_debiased)} "
        f"({largest.name}), tolerated eps = {report.settings['eps']:g}."
    )
    return Answer(question, headline, (size,))


def _checked(report: Report) -> tuple[str, ...]:
    if not report.num_tokens:
        return ("Found before any token was scored.",)
    return (
        f"{count(report.num_tokens)} tokens of {count(report.num_texts)} texts were looked at.",
    )


def _sure(report: Report) -> Answer:
    question, limit = "How sure?", power_of_ten(threshold(report))
    state = report.verdict.state
    if state == "INVALID":
        return Answer(question, "–", ("No error rate is attached to an invalid run.",))
    if is_by_identity(report):
        text = "Decided by identity, not by statistics: no error rate is involved."
        return Answer(question, "Certain", (text,))
    if state in ("FAIL", "BIASED_WITHIN_TOLERANCE"):
        return _sure_of_bias(report, limit)
    if worst_family(report) is None:
        return Answer(question, "Not at all", ("No token was judged.",))
    confidence = f"{100.0 * (1.0 - report.settings['delta']):g}%"
    evidence = f"Evidence of bias: {odds(report.log10_e)}; the limit is {limit}."
    headline = f"{confidence} confidence" if state == "PASS" else "Not enough tokens"
    return Answer(question, headline, (_bound(report), evidence))


def _sure_of_bias(report: Report, limit: str) -> Answer:
    question, most = "How sure?", report.sup_log10_e
    if math.isinf(most):
        text = "A token came out that the target gives probability 0."
        return Answer(question, "Certain", (text,))
    text = f"A right sampler shows so much evidence {chance(most)}; the limit is {limit}."
    tail = (_bound(report),) if report.verdict.state == "BIASED_WITHIN_TOLERANCE" else ()
    return Answer(question, f"Evidence {power_of_ten(most)} : 1", (text, *tail))


def _bound(report: Report) -> str:
    worst = worst_family(report)
    assert worst is not None
    confidence = f"{100.0 * (1.0 - report.settings['delta']):g}%"
    return (
        f"At {confidence} confidence no family is off by more than {distance(worst.upper)} "
        f"({worst.name})."
    )


def _what(report: Report) -> Answer:
    question, verdict = "What is it?", report.verdict
    if verdict.state == "INVALID":
        return Answer(question, "A run that cannot be judged", verdict.reasons[:2])
    if verdict.diagnosis is not None:
        return _diagnosed(report, verdict.diagnosis)
    if verdict.state in ("FAIL", "BIASED_WITHIN_TOLERANCE"):
        found = [f.name for f in report.families if f.is_localized]
        where = "It shows in: " + "; ".join(found) + "." if found else "See the deviations below."
        return Answer(question, "No bug of the catalogue fits", (where,))
    if is_by_identity(report):
        return Answer(question, "Nothing found", report.notes[:1])
    nothing = "Nothing found" if verdict.state == "PASS" else "Nothing shown so far"
    tried = sum(t.num_tokens > 0 for t in report.templates)
    families = sum(f.num_tokens > 0 and not f.is_diagnostic for f in report.families)
    tokens = count(report.num_tokens)
    detail = f"{families} families and the laws of {tried} known bugs, {tokens} tokens."
    return Answer(question, nothing, (detail,))


def _diagnosed(report: Report, diagnosis: str) -> Answer:
    question, template = "What is it?", named_template(report)
    headline = sentence(diagnosis).removesuffix(".")
    if is_by_identity(report):
        return Answer(question, headline, report.verdict.reasons[:1])
    if template is None:
        if any(diagnosis.startswith(family.title) for family in report.families):
            where = f"It shows in {grouped(diagnosis)}."
            return Answer(question, "No known bug fits best", (where,))
        return Answer(question, headline, ())
    detail = f"Evidence for this bug alone: {power_of_ten(template.log10_e)} : 1."
    if not template.is_localized:
        detail = "The likeliest of the known bugs, but not confirmed at level alpha."
    return Answer(question, headline, (detail,))


def _next(report: Report) -> Answer:
    headline = {
        "PASS": "Carry on",
        "FAIL": "Fix, then audit again",
        "BIASED_WITHIN_TOLERANCE": "Decide whether it matters",
        "INCONCLUSIVE": "Go on sampling",
        "INVALID": "Remove the cause",
    }[report.verdict.state]
    return Answer("What next?", headline, next_steps(report))
