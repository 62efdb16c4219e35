"""The catalogue and what a run of it came to, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairdraft.audit.closing import STATE_STYLES, closing
from fairdraft.audit.faults.case import ALPHA, EPS, Case
from fairdraft.audit.faults.run import Catalogue
from fairdraft.audit.faults.trial import Outcome
from fairdraft.stats.verdict import VerdictState

__all__ = ["MIN_WIDTH", "case_view", "catalogue_view", "expected_word"]

#: below it the names wrap
MIN_WIDTH = 140


def expected_word(case: Case) -> str:
    """What must come out, in a word or two."""
    words = ["no FAIL" if case.expected is None else str(case.expected)]
    words += ["traced"] if case.is_traced else []
    words += ["text"] if case.keeps_text is False else []
    return ", ".join(words)


def case_view(cases: Sequence[Case]) -> RenderableType:
    """Returns the catalogue itself: what each fault is, without running it."""
    table = _table("fault", "what is wrong", "function", "setup", "expected", "planned")
    for case in cases:
        table.add_row(
            case.name,
            _what(case),
            _function(case),
            case.setup.name,
            expected_word(case),
            f"{case.num_tokens:,}",
        )
    return table


def catalogue_view(run: Catalogue) -> RenderableType:
    """Returns a run: a row a case, and the closing sentence."""
    return Group(*_parts(run))


def _parts(run: Catalogue) -> Iterator[RenderableType]:
    table = _table(
        "fault", "function", "setup", "expected", "planned", "verdict", "tokens", "named by", ""
    )
    for outcome in run.outcomes:
        table.add_row(*_cells(outcome))
    yield table
    yield Text(
        f"Planned: tokens after which the verdict must have come. Tokens: those that FAIL took, or "
        f"all that were scored. Chance of a false FAIL {ALPHA:g}, eps {EPS:g}. 'traced': the trace "
        "of addresses must name it, without statistics. 'text': plain decoding must give another.",
        style="dim",
    )
    yield closing(len(run.outcomes), run.seconds, run.surprises)


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        table.add_column(
            heading,
            justify="right" if heading in ("planned", "tokens") else "left",
            no_wrap=heading not in ("what is wrong", "named by"),
            overflow="fold",
        )
    return table


def _cells(outcome: Outcome) -> list[str | Text]:
    case, state = outcome.case, outcome.verdict.state
    word = "BIASED" if state is VerdictState.BIASED_WITHIN_TOLERANCE else str(state)
    tokens = outcome.num_tokens if outcome.tokens_to_fail is None else outcome.tokens_to_fail
    return [
        case.name,
        _function(case),
        case.setup.name,
        expected_word(case),
        f"{case.num_tokens:,}",
        Text(word, STATE_STYLES.get(state, "none")),
        f"{tokens:,}",
        outcome.named_by,
        Text("NO", "bold red3") if outcome.surprises else Text("ok", "dark_cyan"),
    ]


def _what(case: Case) -> str:
    fault = case.fault
    if fault is None:
        return f"nothing: {case.setup.title}"
    return f"{fault.title} ({fault.source})" if fault.source else fault.title


def _function(case: Case) -> str:
    return "-" if case.fault is None else case.fault.function.removeprefix("fairdraft.")
