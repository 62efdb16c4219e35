"""Reports of every kind, made of real evidence about a small decoder, for the report tests."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import cache

import numpy as np

from fairdraft.audit import layouts
from fairdraft.audit.report import Report, build_report
from fairdraft.audit.subjects.markov import Decoding, MarkovPair
from fairdraft.audit.subjects.toy import ToySubject
from fairdraft.stats.evidence import Evidence, EvidenceSettings
from fairdraft.stats.verdict import Verdict, VerdictState

STATES = ("PASS", "FAIL", "BIASED_WITHIN_TOLERANCE", "INCONCLUSIVE", "INVALID")
KINDS = (*STATES, "plain", "excluded", "empty")


def make(
    num_tokens: int,
    *,
    eps: float = 0.01,
    num_drafts: int = 3,
    repeats: bool = False,
    hotter: float = 1.0,
    verdict: Verdict | None = None,
) -> Report:
    """Audits Markov tables.

    Args:
        num_tokens: At least so many, in texts of 32.
        eps: Tolerance.
        num_drafts: K.
        repeats: Plants the drafter that draws a whole proposal at one position.
        hotter: Divides the target's logits after the laws were taken.
        verdict: In place of the evidence's own.
    """
    rng = np.random.default_rng(3)
    logits = 1.6 * rng.standard_normal((16, 16))
    pair = MarkovPair(logits, logits + 0.7 * rng.standard_normal((16, 16)))
    subject = ToySubject(pair, Decoding(num_drafts, method="gumbel"), length=32, texts_per_batch=64)
    info = subject.info
    subject.pair = MarkovPair(logits / hotter, pair.draft_logits)
    evidence = Evidence(EvidenceSettings(eps=eps, sampler=info.sampler, rule=info.rule))
    layout = layouts.salted(constant_position=True) if repeats else nullcontext()
    with layout:
        for batch in subject.batches():
            if evidence.num_tokens >= num_tokens:
                break
            evidence.add(batch.tokens)
    return build_report(
        evidence.summary(),
        verdict or evidence.verdict(),
        info,
        {"eps": eps, "alpha": 1e-3, "delta": 0.01, "eps0": 0.0, "max_tokens": num_tokens},
        seconds=12.5,
        notes=("One request was sent twice.", "One request was sent twice."),
        command="fairdraft audit engine pocket --eps 0.01",
    )


@cache
def report_of(kind: str) -> Report:
    """The report of a kind in `KINDS`; each is made once."""
    if kind == "PASS":
        return make(6_000, eps=0.15)
    if kind == "FAIL":
        return make(4_000, repeats=True)
    if kind == "BIASED_WITHIN_TOLERANCE":
        return make(8_000, eps=0.3, hotter=1.5)
    if kind == "INCONCLUSIVE":
        return make(4_000)
    if kind == "plain":
        return make(4_000, num_drafts=0)
    if kind == "excluded":
        found = report_of("FAIL")
        curve = (*found.curve[:-1], (found.num_tokens, np.inf))
        return replace(found, log10_e=np.inf, sup_log10_e=np.inf, curve=curve)
    state = VerdictState.INVALID if kind == "INVALID" else VerdictState.INCONCLUSIVE
    reasons = ("no draft was seen in 2,048 tokens; turn speculation on",)
    return make(0, verdict=Verdict(state, f"{state}: nothing was judged", None, reasons))
