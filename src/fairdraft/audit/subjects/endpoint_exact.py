"""An endpoint at temperature 0: is every token the most likely one of its own forward pass?

One right token has no statistics, so the verdict is by identity. What the server says of its own
logits is taken as it is: that they belong to the text is not tested.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fairdraft.audit.completions import Completion
from fairdraft.audit.conversation import Conversation, reason
from fairdraft.audit.drafting import DraftCounters
from fairdraft.audit.exact_match import Difference, different, identity_report, invalid
from fairdraft.audit.openai import EndpointError
from fairdraft.audit.subject import InvalidSubject
from fairdraft.stats.verdict import Verdict, VerdictState

if TYPE_CHECKING:
    from fairdraft.audit.report.document import Report
    from fairdraft.audit.subjects.endpoint import EndpointSubject

__all__ = ["compare_endpoint", "first_difference"]

#: logprobs so close are one number: they are float32, printed in decimal
TIE = 1e-4


def compare_endpoint(
    subject: EndpointSubject,
    *,
    num_texts: int | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Report:
    """Compares greedy tokens with the most likely ones listed beside them.

    Args:
        subject: Asked as it would ask, but at temperature 0.
        num_texts: None for one a prompt.
        on_progress: Told what is going on.

    Returns:
        A report whose verdict is by identity; it keeps the texts that came before a failure.
    """
    begin = time.monotonic()
    subject = copy(subject)
    subject.request = replace(subject.request, is_greedy=True, sampling=())
    wanted = num_texts or len(subject.request.prompts)
    say = on_progress or (lambda sentence: None)
    say(f"asking for {wanted} texts at temperature 0")
    texts: list[Completion] = []
    notes: list[str] = []
    drafts: DraftCounters | None = None
    try:
        with subject.client() as client:
            talk = subject.talk(client)
            before = DraftCounters.parse(client.metrics(), talk.model)
            while len(texts) < wanted:
                texts.append(talk.next())
            drafts = _drafts(talk, before)
            notes = talk.about() + talk.troubles()
        verdict = _verdict(texts, drafts, subject.speculative)
    except InvalidSubject as error:
        verdict = invalid(str(error))
    except EndpointError as error:
        verdict = invalid(f"the endpoint stopped answering: {reason(error)}")
    if drafts is not None:
        notes.append(f"{drafts.drafted:,} tokens were drafted and {drafts.accepted:,} accepted")
    info = subject.info
    return identity_report(
        verdict,
        replace(info, parameters=info.parameters | {"temperature": 0.0}),
        num_tokens=sum(map(len, texts)),
        num_texts=len(texts),
        coverage="tested: each greedy token against the logprobs that came with it",
        seconds=time.monotonic() - begin,
        notes=notes,
    )


def first_difference(number: int, text: Completion) -> Difference | None:
    """The first token of a text that is not the most likely one, or None."""
    best = text.listed_logprobs.argmax(axis=1)
    rows = np.arange(len(text))
    gap = text.listed_logprobs[rows, best] - text.logprobs
    wrong = np.flatnonzero(gap > TIE)
    if not len(wrong):
        return None
    t = int(wrong[0])
    expected = int(text.listed_ids[t, best[t]])
    return Difference(number, t, int(text.token_ids[t]), expected, float(gap[t]))


def _drafts(talk: Conversation, before: DraftCounters | None) -> DraftCounters | None:
    now = DraftCounters.parse(talk.client.metrics(), talk.model)
    return None if now is None else now.since(before)


def _verdict(
    texts: list[Completion], drafts: DraftCounters | None, speculative: bool | None
) -> Verdict:
    count = sum(map(len, texts))
    n = f"n={count} tokens in {len(texts)} texts"
    if speculative and drafts is not None and not drafts.drafted:
        return invalid(f"the server is said to speculate, and drafted nothing; {n}")
    if speculative is False and drafts is not None and drafts.drafted:
        return invalid(f"the server is said to decode plainly, and drafted tokens; {n}")
    found = [first_difference(number, text) for number, text in enumerate(texts)]
    faults = [fault for fault in found if fault is not None]
    if faults:
        return different(
            faults,
            len(texts),
            "hold tokens that are not the most likely ones",
            n,
            "greedy tokens are not those of the logits that came with them",
        )
    sentence = f"PASS: every greedy token is the most likely one of its forward pass; {n}"
    return Verdict(VerdictState.PASS, sentence)
