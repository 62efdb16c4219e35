"""`fairdraft audit trace`: the exit code and the message that a recording gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.audit.traces import plain_lines, write
from tests.cli.conftest import Cli


def test_a_short_recording_is_inconclusive(cli: Cli, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", plain_lines())
    result = cli("audit", "trace", str(path))
    assert result.code == 3 and "INCONCLUSIVE" in result.out
    assert "12 tokens of 3 texts" in result.out


def test_a_long_one_passes_and_a_document_says_so(cli: Cli, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", plain_lines(400, 10))
    result = cli("audit", "trace", str(path), "--eps", "0.2", "--json")
    document = json.loads(result.out)
    assert result.code == 0 and document["verdict"]["state"] == "PASS"
    assert document["subject"]["kind"] == "trace"
    assert document["subject"]["parameters"]["file"] == "t.jsonl"


def test_a_fault_is_invalid_and_names_its_line(cli: Cli, tmp_path: Path) -> None:
    lines = plain_lines()
    lines[5]["target"] = [0.5, 0.5, 0.5, 0.5]
    result = cli("audit", "trace", str(write(tmp_path / "t.jsonl", lines)))
    assert result.code == 4
    assert "line 6 of t.jsonl" in " ".join(result.out.split())


def test_a_cut_line_needs_leave(cli: Cli, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", plain_lines())
    path.write_text(path.read_text()[:-20])
    result = cli("audit", "trace", str(path))
    assert result.code == 4 and "--allow-cut" in " ".join(result.out.split())
    result = cli("audit", "trace", str(path), "--allow-cut")
    assert result.code == 3 and "breaks off in line 13" in " ".join(result.out.split())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        ('{"schema": "fair', "the file breaks off in it"),
        ("not JSON\n", "it is no JSON"),
    ],
)
def test_a_recording_without_a_header_is_invalid(
    cli: Cli, tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    result = cli("audit", "trace", str(path))
    assert result.code == 4
    assert f"line 1 of t.jsonl is no header of a trace: {reason}" in " ".join(result.out.split())


def test_a_path_that_cannot_be_read_is_a_usage_error(cli: Cli, tmp_path: Path) -> None:
    missing = tmp_path / "none.jsonl"
    result = cli("audit", "trace", str(missing))
    assert result.code == 2 and result.err == f"error: {missing}: No such file or directory\n"
    result = cli("audit", "trace", str(tmp_path))
    assert result.code == 2 and "is a folder" in result.err
