"""`transformers` assisted generation at temperature 0, beside plain generation."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fairdraft.audit.exact_match import (
    COVERAGE,
    identity_report,
    invalid,
    match_report,
    match_texts,
)
from fairdraft.audit.subject import InvalidSubject
from fairdraft.audit.subjects.hf import HFSubject
from fairdraft.audit.subjects.hf_generate import Generator

if TYPE_CHECKING:
    from fairdraft.audit.report.document import Report

__all__ = ["compare_hf"]


def compare_hf(subject: HFSubject) -> Report:
    """Compares greedy assisted generation with greedy plain generation, token by token.

    Args:
        subject: An assisted one at temperature 0; each of its prompts is continued once.

    Returns:
        A report whose verdict is by identity; INVALID if drafts cannot be seen.

    Raises:
        ValueError: If it is not assisted or not at temperature 0.
    """
    if subject.request.temperature != 0 or not subject.is_assisted:
        raise ValueError(
            f"temperature = {subject.request.temperature}, {subject.info.name}: only assisted "
            "generation at temperature 0 can be compared with plain generation token by token"
        )
    begin = time.monotonic()
    generator = Generator(subject)
    try:
        given, expected, num_drafts = generator.greedy_pairs()
        contexts = subject.check_contexts()
    except InvalidSubject as error:
        return identity_report(
            invalid(str(error)),
            subject.info,
            num_tokens=0,
            num_texts=0,
            coverage=COVERAGE,
            seconds=time.monotonic() - begin,
        )

    def gap(text: int, position: int, first: int, second: int) -> float:
        prompt = subject.prompts[text]
        whole = [*prompt, *given[text][:position], first]
        row = generator.forward(whole, len(prompt))[-1]
        return float((row[first] - row[second]).abs())

    matching = match_texts(given, expected, gap, contexts)
    seconds = time.monotonic() - begin
    return match_report(subject.info, matching, contexts, num_drafts, seconds=seconds)
