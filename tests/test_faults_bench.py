"""`bench/faults.py`: rows are recorded one by one and kept, and the page holds what is recorded."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fairdraft.audit.faults import CASES, find_cases
from fairdraft.stats.verdict import VerdictState

BENCH = Path(__file__).resolve().parent.parent / "bench"
ROWS = ["constant-position", "common-one-behind"]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("faults")


def run(bench: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["faults", "--jobs", "1", *arguments])
    return bench.main()


def test_page_holds_the_recorded_run(bench: ModuleType) -> None:
    text = bench.PAGE.read_text(encoding="utf-8")
    assert bench.filled(text) == text, "run python bench/faults.py"
    recorded = json.loads(bench.RECORDED.read_text(encoding="utf-8"))
    assert recorded["exit_code"] == 0 and recorded["surprises"] == []
    assert [row["name"] for row in recorded["rows"]] == [case.name for case in CASES]
    planned = {case.name: case.num_tokens for case in CASES}
    assert all(row["planned_tokens"] == planned[row["name"]] for row in recorded["rows"])
    pilots = json.loads(bench.PILOTS.read_text(encoding="utf-8"))["tokens_to_fail"]
    due = [c.name for c in CASES if c.fault is not None and c.expected is VerdictState.FAIL]
    assert list(pilots) == due
    assert all(max(tokens) <= planned[name] for name, tokens in pilots.items())


def test_a_run_that_was_broken_off_goes_on(
    bench: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bench, "RECORDED", tmp_path / "faults.json")
    assert run(bench, monkeypatch, "--record", "--only", ROWS[0]) == 0
    assert run(bench, monkeypatch, "--record", "--only", *ROWS, "--missing") == 0
    said = capsys.readouterr().err.splitlines()
    assert [line.split(" s left: ")[1] for line in said] == [f"{name}: FAIL" for name in ROWS]
    found = json.loads(bench.RECORDED.read_text(encoding="utf-8"))
    assert [row["name"] for row in found["rows"]] == [c.name for c in find_cases(ROWS)]
    behind = found["rows"][1]
    assert behind["num_differing"] > 0 and behind["expected"]["keeps_text"] is False
    assert behind["commit"] and found["seconds"] == sum(row["seconds"] for row in found["rows"])


def test_what_is_not_as_expected_ends_in_1(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "RECORDED", tmp_path / "faults.json")
    row: dict[str, Any] = {"name": ROWS[0], "seconds": 1.0, "surprises": ["PASS"]}
    bench.RECORDED.write_text(json.dumps({"rows": [row]}), encoding="utf-8")
    assert run(bench, monkeypatch, "--record", "--only", ROWS[0], "--missing") == 1


def test_pilots_are_merged(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "PILOTS", tmp_path / "pilots.json")
    asked = ("--pilot", "101", "102", "--only")
    assert run(bench, monkeypatch, *asked, ROWS[0]) == 0
    before = json.loads(bench.PILOTS.read_text(encoding="utf-8"))
    assert run(bench, monkeypatch, *asked, *ROWS, "clean-toy", "--missing") == 0
    found = json.loads(bench.PILOTS.read_text(encoding="utf-8"))
    assert found["tokens_to_fail"].keys() == set(ROWS) and found["seeds"] == [101, 102]
    assert found["tokens_to_fail"][ROWS[0]] == before["tokens_to_fail"][ROWS[0]]


def test_an_unknown_row_and_two_files_at_once_are_refused(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (("--record", "--only", "typo"), ("--pilot", "1", "--record")):
        with pytest.raises(SystemExit) as exit_:
            run(bench, monkeypatch, *arguments)
        assert exit_.value.code == 2
    assert "no fault is named 'typo'" in capsys.readouterr().err
