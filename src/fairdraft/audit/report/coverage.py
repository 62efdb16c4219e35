"""What a report speaks about, and what it does not."""

from __future__ import annotations

from fairdraft.audit.report.document import Report
from fairdraft.audit.report.findings import is_by_identity
from fairdraft.audit.report.wording import plural, sentence

_SCORING = {
    "own logits": (
        "The target's own numbers: laws come from the logits that the decoder itself verified "
        "with, so a wrong forward pass is not seen."
    ),
    "logprobs": (
        "The target's own numbers: laws come from the log-probabilities that the server reports, "
        "so a server that reports what it does not use is not seen."
    ),
    "rescored": (
        "Deviations below the numeric tolerance eps0: laws come from a second computation of the "
        "target, which differs a little from the first."
    ),
}


def tested(report: Report) -> tuple[str, ...]:
    """Sentences about what was looked at."""
    if is_by_identity(report):
        return _stated(report) or ("What the sentence above names.",)
    if not any(family.num_tokens for family in report.families):
        if not report.num_tokens:
            return ("Nothing: no token was scored.",)
        return (f"Nothing: {plural(report.num_tokens, 'token')} came in, none was judged.",)
    judged = [f for f in report.families if f.num_tokens and not f.is_diagnostic]
    beside = [f for f in report.families if f.num_tokens and f.is_diagnostic]
    bets = [t.name for t in report.templates if t.num_tokens]
    lines = [
        f"{plural(report.num_tokens, 'token')} of {plural(report.num_texts, 'text')}, "
        f"scored by {report.subject.scoring}."
    ]
    if judged:
        names = ", ".join(f.name for f in judged)
        lines.append(
            f"{plural(len(judged), 'declared family').replace('familys', 'families')}: {names}."
        )
    if bets:
        lines.append(f"The exact laws of {plural(len(bets), 'known bug')}: {', '.join(bets)}.")
    if beside:
        names = ", ".join(f.name for f in beside)
        lines.append(f"Shown, but no part of the verdict: {names}.")
    return tuple(lines)


def untested(report: Report) -> tuple[str, ...]:
    """Sentences about what this report says nothing about."""
    if is_by_identity(report):
        return (
            "The law of the tokens: no statistics were needed for this verdict.",
            "Other prompts, models, sampler parameters and loads than those of this run.",
        )
    if not any(family.num_tokens for family in report.families):
        return ("Everything: no token was judged, so the run says nothing about the decoder.",)
    missing: dict[str, list[str]] = {}
    for family in report.families:
        if not family.num_tokens:
            missing.setdefault(_reason(report, family.name), []).append(family.name)
    lines = [f"{', '.join(names)}: {reason}." for reason, names in missing.items()]
    idle = [t.name for t in report.templates if not t.num_tokens]
    if idle:
        lines.append(
            f"Known bugs whose law never differed from the target's here: {', '.join(idle)}."
        )
    eps = report.settings["eps"]
    lines += [
        "Deviations that cancel inside every declared cell.",
        f"Tokens so rare that all of them together weigh less than eps = {eps:g}.",
        "Other prompts, models, sampler parameters and loads than those of this run.",
    ]
    if report.subject.scoring in _SCORING:
        lines.append(_SCORING[report.subject.scoring])
    if report.settings["eps0"] > 0.0:
        lines.append(
            f"Any law within eps0 = {report.settings['eps0']:g} of the target a token: it counts "
            "as right, since numerics may differ so much."
        )
    if report.subject.duplicates_declared:
        lines.append("Agreement between texts of one seed and prompt, which was declared.")
    return tuple(lines)


def _reason(report: Report, name: str) -> str:
    if name.startswith("agreement"):
        return "no two texts could be compared"
    if "q/p" in name or name == "acceptance":
        if not report.subject.is_speculative:
            if report.subject.kind == "endpoint":
                return "drafts and rounds cannot be seen from outside, or no draft model was given"
            return "plain decoding has no drafts"
        return "the drafts' probabilities are not known, or the rule has no such law"
    return "no token was counted"


def _stated(report: Report) -> tuple[str, ...]:
    """What the audit itself says that it tested."""
    lines = [line for line in report.coverage if line.startswith("tested: ")]
    return tuple(sentence(line.removeprefix("tested: ")) for line in lines if "nothing" not in line)
