"""What to do about a verdict: steps for the bugs and families that can be named."""

from __future__ import annotations

from fairdraft.audit.report.document import Report
from fairdraft.audit.report.findings import is_by_identity, ranked_templates, threshold
from fairdraft.audit.report.wording import count, duration
from fairdraft.stats.summary import TemplateSummary

TEMPLATE_STEPS = {
    "shared noise": (
        "Draw the replacement of a rejected draft with random numbers that the draft's own draw "
        "never used."
    ),
    "shared test": ("Give the acceptance test a random number that no draft was drawn with."),
    "replaced from p": (
        "Draw the replacement from max(p - q, 0), scaled to sum to 1; drawing from p puts the "
        "rejected draft's share back where it was taken."
    ),
    "replaced from q": "Draw the replacement from max(p - q, 0), scaled to sum to 1, not from q.",
    "replaced by another": (
        "Pass q to the verifier: drafts that were sampled are being treated as a fixed guess."
    ),
    "lenient test": "Accept with probability min(1, p / q): the test keeps more than that.",
    "no test": "Test every draft: all of them are kept.",
    "swapped test": "Accept with probability min(1, p / q): the two are exchanged.",
    "raw q": (
        "Hand the verifier the q that drafts were drawn from, after temperature and filters."
    ),
    "raw drafts": "Apply temperature and filters to q before drafts are drawn, too.",
    "temperature +5%": (
        "Compare the temperature that the sampler applies with the one that was asked for."
    ),
    "temperature -5%": (
        "Compare the temperature that the sampler applies with the one that was asked for."
    ),
    "filters dropped": (
        "Look for a path, often the bonus token's or the replacement's, that skips top-k, top-p "
        "or min-p."
    ),
    "impossible token": (
        "Look for a path that skips a filter or a mask: a token of probability 0 must never come."
    ),
    "draft leak": (
        "Look for drafts that are kept without a test: a wrong count of accepted tokens, or a "
        "replacement that is dropped."
    ),
    "point mass as softmax": (
        "A draft taken by argmax has probability 1: test it against p alone, not against its "
        "softmax."
    ),
}
FAMILY_STEPS = (
    (
        "agreement",
        "Texts of different requests share random numbers: key the noise by request, not by seed "
        "and position alone.",
    ),
    (
        "previous replaced",
        "The bias follows a rejection: look for random numbers that a new round at the same "
        "position uses again.",
    ),
    (
        "slot",
        "The bias depends on the place in the round: look at how noise is keyed for the second "
        "and later drafts.",
    ),
    (
        "repeat",
        "Tokens repeat more or less than they should: look for draws at neighboring positions "
        "that share random numbers.",
    ),
    (
        "q/p octile",
        "The bias follows q/p, so it sits in the acceptance test or in the replacement of "
        "rejected drafts.",
    ),
    (
        "acceptance",
        "Drafts stand more or less often than their law says: look at the acceptance test.",
    ),
    (
        "replacement",
        "The tokens that replace rejected drafts do not follow max(p - q, 0): look at that draw.",
    ),
    (
        "rank",
        "Likely tokens are over- or under-drawn: look at temperature, filters and penalties.",
    ),
)


def named_template(report: Report) -> TemplateSummary | None:
    """The template that the verdict's diagnosis names, or None."""
    if report.verdict.diagnosis is None:
        return None
    for template in ranked_templates(report):
        if template.title in report.verdict.diagnosis:
            return template
    return None


def next_steps(report: Report) -> tuple[str, ...]:
    """What an operator does now, in order."""
    return _STEPS[report.verdict.state](report)


def _after_pass(report: Report) -> tuple[str, ...]:
    return (
        "Nothing. Audit again after an upgrade, or when models, sampler parameters or the "
        "speculation settings change.",
    )


def _after_fail(report: Report) -> tuple[str, ...]:
    steps = []
    if report.subject.is_speculative:
        steps.append("Turn speculation off if the output must follow the target.")
    template = named_template(report)
    if template is not None and template.name in TEMPLATE_STEPS:
        steps.append(TEMPLATE_STEPS[template.name])
    elif is_by_identity(report):
        steps.append("Look at what is not identical; the sentence above says where it begins.")
    else:
        steps.extend(_by_family(report))
    steps.append("Run the same audit on the fix; it should PASS with these settings.")
    return tuple(steps)


def _by_family(report: Report) -> list[str]:
    found = [f for f in report.families if f.is_localized or f.log10_e >= threshold(report)]
    for family in sorted(found, key=lambda f: (f.is_diagnostic, -f.log10_e)):
        for word, step in FAMILY_STEPS:
            if word in family.name:
                return [step]
    return ["Look at the largest deviations below for where the bias sits."]


def _after_bias(report: Report) -> tuple[str, ...]:
    return (
        f"Decide whether a deviation of up to eps = {report.settings['eps']:g} matters to you; "
        "if it does, audit again with a smaller eps, which will FAIL.",
        *_after_fail(report)[1 if report.subject.is_speculative else 0 : -1],
    )


def _after_inconclusive(report: Report) -> tuple[str, ...]:
    steps = []
    needed = report.verdict.needed_tokens
    if needed is not None and needed > report.num_tokens:
        more = needed - report.num_tokens
        time = ""
        if report.num_tokens and report.seconds > 0.0:
            time = f", {duration(more * report.seconds / report.num_tokens)} at this run's speed"
        steps.append(f"Go on for about {count(more)} more tokens{time}; no sample is lost.")
    else:
        steps.append("Go on with more tokens; no sample is lost.")
    steps.append("Keep eps as it was declared: widening it after a look voids the error rates.")
    return tuple(steps)


def _after_invalid(report: Report) -> tuple[str, ...]:
    return ("Do what the reason asks for, then run the audit again; nothing was decided.",)


_STEPS = {
    "PASS": _after_pass,
    "FAIL": _after_fail,
    "BIASED_WITHIN_TOLERANCE": _after_bias,
    "INCONCLUSIVE": _after_inconclusive,
    "INVALID": _after_invalid,
}
