"""The terminal's view: the verdict first, inside the width, and the same answers as the page."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from fairdraft.audit.report import Report
from fairdraft.audit.report.table import print_report
from tests.audit.reports import KINDS, STATES, report_of


def shown(report: Report, width: int = 80, *, color: bool = False) -> str:
    buffer = io.StringIO()
    system = "256" if color else None
    console = Console(file=buffer, width=width, force_terminal=color, color_system=system)
    print_report(report, console)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [80, 132])
def test_view_fits_the_width(kind: str, width: int) -> None:
    assert all(len(line) <= width for line in shown(report_of(kind), width).splitlines())


@pytest.mark.parametrize("state", STATES)
def test_verdict_comes_first_in_words_and_color(state: str) -> None:
    plain = shown(report_of(state)).split()
    assert " ".join(plain[: len(state.split("_"))]) == state.replace("_", " ")
    assert "\x1b[1;" in shown(report_of(state), color=True).strip().splitlines()[0]
    exit_code = report_of(state).exit_code
    assert f"exit code {exit_code}." in " ".join(plain)


def test_every_family_fits_one_line_of_a_narrow_terminal() -> None:
    lines = shown(report_of("FAIL"), 80).splitlines()
    for family in report_of("FAIL").families:
        (line,) = (line for line in lines if line.startswith(f" {family.name} "))
        assert f"{family.num_tokens:,}" in line and f"{family.tv_debiased:.4f}" in line
    (repeat,) = (line for line in lines if line.startswith(" repeat "))
    assert repeat.startswith(" repeat *") and "◆ beyond" in repeat


def test_diagnosis_and_steps_are_named() -> None:
    text = " ".join(shown(report_of("FAIL")).split())
    assert "It shows in repeats of one of the two tokens before" in text
    assert "1. Turn speculation off" in text and "look for draws at neighboring positions" in text
    text = " ".join(shown(report_of("INCONCLUSIVE")).split())
    needed = report_of("INCONCLUSIVE").verdict.needed_tokens
    assert needed is not None and f"{needed - report_of('INCONCLUSIVE').num_tokens:,} more" in text
    assert "PASS speaks of the declared families" in " ".join(shown(report_of("PASS")).split())


def test_markup_in_a_subjects_words_is_text() -> None:
    report = report_of("INVALID")
    evil = "[red]rate[/red] [/] limit"
    report = replace(
        report,
        verdict=replace(report.verdict, sentence=evil, reasons=(evil,)),
        notes=(evil,),
    )
    assert shown(report).count(evil) >= 3
