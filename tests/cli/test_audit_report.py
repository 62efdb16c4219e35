"""`fairdraft audit report`: what was saved is shown again, and ends as its audit did."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit.reports import STATES, report_of
from tests.cli.conftest import Cli


@pytest.mark.parametrize("state", STATES)
def test_saved_report_is_shown_and_ends_with_its_code(cli: Cli, tmp_path: Path, state: str) -> None:
    path = tmp_path / "report.json"
    report_of(state).write(path)
    result = cli("audit", "report", str(path))
    assert result.code == report_of(state).exit_code
    assert state.replace("_", " ") in result.out and "exit code" in result.out


def test_page_is_drawn_from_a_saved_report(cli: Cli, tmp_path: Path) -> None:
    path, page = tmp_path / "report.json", tmp_path / "page.html"
    report_of("INVALID").write(path)
    result = cli("audit", "report", str(path), "--html", str(page))
    assert result.code == 4 and f"wrote {page}" in result.err
    assert "<title>INVALID" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("{", "report.json: no report, as it is no JSON: Expecting"),
        ('{"schema": "fairdraft/audit/9"}', "this version reads 'fairdraft/audit/1'"),
    ],
)
def test_other_files_are_usage_errors(
    cli: Cli, tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "report.json"
    if text is not None:
        path.write_text(text)
    result = cli("audit", "report", str(path))
    assert result.code == 2 and message in result.err
