"""`make nightly`: every part runs whatever the others come to, and the time is told."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def nightly(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("nightly")


def run(nightly: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["nightly", *arguments])
    return nightly.main()


@pytest.mark.parametrize("code", [0, 3])
def test_parts_are_processes_and_a_failure_stops_none(
    nightly: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    code: int,
) -> None:
    first = nightly.Part("first", "fails or not", ("-c", f"raise SystemExit({code})"), 1)
    second = nightly.Part("second", "prints", ("-c", "print('from the second')"), 3)
    monkeypatch.setattr(nightly, "PARTS", (first, second))
    assert run(nightly, monkeypatch) == (1 if code else 0)
    said = capfd.readouterr()
    assert "from the second" in said.out
    found = json.loads(said.out.splitlines()[-1])
    assert [part["code"] for part in found["parts"]] == [code, 0]
    assert found["is_correct"] is (code == 0) and found["conditions"]["torch"]
    assert found["seconds"] == pytest.approx(sum(p["seconds"] for p in found["parts"]), abs=0.2)
    lines = said.err.splitlines()
    assert lines[0] == "part 1 of 2, first: fails or not; 0 s so far, 4 s left, about"
    assert lines[1].startswith("first: ok" if not code else "first: FAILED, exit code 3")
    assert lines[-1].startswith("total: ")


def test_time_left_follows_the_pace_of_what_is_done(nightly: ModuleType) -> None:
    parts = [replace(part, about=100.0) for part in nightly.PARTS[:3]]
    assert nightly.seconds_left([], parts) == 300
    done = [nightly.Done(parts[0], 0, 250.0)]
    assert nightly.seconds_left(done, parts) == 500
    assert nightly.clock(59.6) == "1 min 00 s" and nightly.clock(3) == "3 s"


def test_an_interruption_tells_what_was_done(
    nightly: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def execute(part: object) -> int:
        if part is nightly.PARTS[1]:
            raise KeyboardInterrupt
        return 0

    monkeypatch.setattr(nightly, "execute", execute)
    assert run(nightly, monkeypatch) == 130
    said = capsys.readouterr()
    assert json.loads(said.out)["is_correct"] is False
    assert "faults: interrupted after 0 s" in said.err


def test_parts_are_there_and_make_runs_them(
    nightly: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(nightly, monkeypatch, "--list", "--only", "matrix", "kernels") == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in listed] == ["matrix", "kernels"]
    for part in nightly.PARTS:
        script = Path(part.arguments[0])
        assert script.is_file() or part.arguments[:3] == ("-m", "fairdraft", "audit")
    assert "bench/nightly.py $(RUN_ARGS)" in (ROOT / "Makefile").read_text(encoding="utf-8")
