"""From a summary to a verdict."""

from __future__ import annotations

import math

import numpy as np

from fairdraft.stats.planner import tokens_to_fail, tokens_to_pass
from fairdraft.stats.settings import EvidenceSettings
from fairdraft.stats.summary import EvidenceSummary, FamilySummary
from fairdraft.stats.verdict import Verdict, VerdictState

__all__ = ["judge"]

# deviations within this many standard deviations of the floor are not planned with
_NOISE = 0.6


def judge(
    settings: EvidenceSettings, summary: EvidenceSummary, excluded: str | None = None
) -> Verdict:
    """Judges a summary.

    FAIL: the merged evidence once reached 1 / alpha and some bound is above eps, or a token came
    out that the target excludes. PASS: every bound of a family that saw tokens is at most eps and
    the evidence never reached 1 / alpha. BIASED_WITHIN_TOLERANCE: it did, and they are.

    Args:
        settings: Limits.
        summary: What was seen.
        excluded: Sentence on a token that the target excludes, or None.
    """
    used = [f for f in summary.families if f.num_tokens and not f.is_diagnostic]
    is_near = bool(used) and all(_upper(family) <= settings.eps for family in used)
    is_refuted = summary.sup_log10_e >= -math.log10(settings.alpha)
    diagnosis, doubts = _diagnosis(summary) if is_refuted else (None, ())
    if excluded is not None:
        return Verdict(
            VerdictState.FAIL,
            f"FAIL: {excluded}; n={summary.num_tokens} tokens",
            diagnosis or "tokens come out that the target excludes",
            (excluded, *doubts, *summary.coverage),
        )
    if is_refuted and not is_near:
        return _fail(settings, summary, diagnosis, doubts)
    if is_near:
        return _near(settings, summary, used, diagnosis if is_refuted else None, doubts)
    return _open(settings, summary, used)


def _upper(family: FamilySummary) -> float:
    return 1.0 if family.upper is None else family.upper


def _fail(
    settings: EvidenceSettings,
    summary: EvidenceSummary,
    diagnosis: str | None,
    doubts: tuple[str, ...],
) -> Verdict:
    sentence = (
        f"FAIL: the tokens do not follow the target: evidence {_power(summary.sup_log10_e)} to 1 "
        f"against it, the limit is {_power(-math.log10(settings.alpha))} "
        f"(alpha={settings.alpha:g}); n={summary.num_tokens} tokens"
    )
    reasons = _localized(summary)
    return Verdict(VerdictState.FAIL, sentence, diagnosis, (*reasons, *doubts, *summary.coverage))


def _near(
    settings: EvidenceSettings,
    summary: EvidenceSummary,
    used: list[FamilySummary],
    diagnosis: str | None,
    doubts: tuple[str, ...],
) -> Verdict:
    largest = max(used, key=_upper)
    claim = (
        f"no declared direction differs from the target by more than eps={settings.eps:g} "
        f"at {100.0 * (1.0 - settings.delta):g}%; n={summary.num_tokens} tokens, "
        f"families={len(used)}"
    )
    detail = f"the largest bound is {_upper(largest):.4f}, of {largest.name}"
    if diagnosis is None:
        return Verdict(VerdictState.PASS, f"PASS: {claim}", None, (detail, *summary.coverage))
    sentence = (
        f"BIASED_WITHIN_TOLERANCE: the tokens do not follow the target exactly (evidence "
        f"{_power(summary.sup_log10_e)} to 1), but {claim}"
    )
    state = VerdictState.BIASED_WITHIN_TOLERANCE
    return Verdict(
        state, sentence, diagnosis, (detail, *_localized(summary), *doubts, *summary.coverage)
    )


def _open(
    settings: EvidenceSettings, summary: EvidenceSummary, used: list[FamilySummary]
) -> Verdict:
    needed = _needed_tokens(settings, summary, used)
    about = f"about {needed} tokens in all are needed" if needed else "more tokens are needed"
    what = "nothing was seen"
    if used:
        largest = max(used, key=_upper)
        what = (
            f"the bound of {largest.name} is {_upper(largest):.4f}, above eps={settings.eps:g}, "
            f"and the evidence {_power(summary.sup_log10_e)} to 1 is below "
            f"{_power(-math.log10(settings.alpha))}"
        )
    sentence = f"INCONCLUSIVE: {what}; n={summary.num_tokens} tokens, {about}"
    return Verdict(VerdictState.INCONCLUSIVE, sentence, None, summary.coverage, needed)


def _needed_tokens(
    settings: EvidenceSettings, summary: EvidenceSummary, used: list[FamilySummary]
) -> int | None:
    """Tokens in all until PASS, or until FAIL if that is sooner; from the deviations so far."""
    declared = [family for family in summary.families if not family.is_diagnostic]
    share = settings.delta / len(declared)
    to_pass: list[float | None] = []
    to_fail: list[float] = []
    for family in used or declared:
        count = family.num_tokens
        cells = len(family.labels)
        probs = np.array(family.expected) / count if count else np.full(cells, 1.0 / cells)
        scale = summary.num_tokens / count if count else 1.0
        noise = _NOISE / math.sqrt(count) if count else 0.0
        tv = max(0.0, (family.tv_debiased or 0.0) - noise)
        enough = tokens_to_pass(probs, eps=settings.eps, delta=share, tv=tv)
        to_pass.append(None if enough is None else scale * enough)
        refuting = tokens_to_fail(cells, alpha=settings.alpha, tv=tv)
        if refuting is not None:
            to_fail.append(scale * refuting)
    options = list(to_fail)
    if None not in to_pass:
        options.append(max(value for value in to_pass if value is not None))
    if not options:
        return None
    return max(math.ceil(min(options)), summary.num_tokens + 1)


def _localized(summary: EvidenceSummary) -> tuple[str, ...]:
    """A sentence on each family and template that e-BH names, the strongest first."""
    named = [(t.log10_e, f"{t.name}: {t.title}") for t in summary.templates if t.is_localized]
    named += [
        (f.log10_e, f"{f.name}: {_worst_cell(f)}") for f in summary.families if f.is_localized
    ]
    return tuple(f"{text} ({_power(value)} to 1)" for value, text in sorted(named, reverse=True))


def _diagnosis(summary: EvidenceSummary) -> tuple[str | None, tuple[str, ...]]:
    """What the largest localized e-value says, else the largest of all; and a doubt, if any."""
    titled = [(t.is_localized, t.log10_e, t.title) for t in summary.templates if t.num_tokens]
    titled += [
        (f.is_localized, f.log10_e, f"{f.title}: {_worst_cell(f)}")
        for f in summary.families
        if f.num_tokens and not f.is_diagnostic
    ]
    if not titled:
        return None, ()
    is_localized, _, title = max(titled)
    if is_localized:
        return title, ()
    return title, ("the diagnosis is the likeliest; e-BH does not confirm it at level alpha",)


def _worst_cell(family: FamilySummary) -> str:
    """The cell that is furthest off, in its own standard deviations."""
    observed, expected = np.array(family.observed, np.float64), np.array(family.expected)
    at = int(np.argmax(np.abs(observed - expected) / np.sqrt(np.maximum(expected, 1.0))))
    return f"{family.labels[at]}: {family.observed[at]} seen, {expected[at]:.1f} expected"


def _power(log10: float) -> str:
    return f"10^{log10:.1f}"
