"""`make nightly`: every part runs whatever the others come to, and the time is told."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
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


def test_an_interruption_ends_every_process_of_a_part(
    nightly: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Though this process alone is told: a worker that outlives its parent would run on."""
    file = tmp_path / "pid"
    worker = f"import os, time; open({str(file)!r}, 'w').write(f'{{os.getpid()}}.'); time.sleep(99)"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {worker!r}])"
    monkeypatch.setattr(nightly, "PARTS", (nightly.Part("slow", "waits", ("-c", script), 1),))

    def interrupt() -> None:
        while not (file.exists() and file.read_text(encoding="utf-8").endswith(".")):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    assert run(nightly, monkeypatch) == 130
    assert json.loads(capfd.readouterr().out)["parts"] == []
    process = int(file.read_text(encoding="utf-8").rstrip("."))
    for _ in range(100):
        if not _is_running(process):
            break
        time.sleep(0.02)
    assert not _is_running(process)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process}/stat")
    # nobody may be there to collect an orphan that ended
    return not status.exists() or status.read_text(encoding="utf-8").split(") ")[1][0] != "Z"


def test_a_night_is_recorded_part_by_part(
    nightly: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "testing.md"
    page.write_text("<!-- nightly -->\n<!-- end -->\n", encoding="utf-8")
    codes = {"matrix": 0, "faults": 1}
    monkeypatch.setattr(nightly, "PAGE", page)
    monkeypatch.setattr(nightly, "RECORDED", tmp_path / "nightly.json")
    monkeypatch.setattr(nightly, "execute", lambda part: codes[part.name])
    assert run(nightly, monkeypatch, "--record", "--only", "matrix") == 0
    assert run(nightly, monkeypatch, "--record", "--only", "faults") == 1
    assert [(part["name"], part["code"]) for part in nightly.recorded()] == [
        ("faults", 1),
        ("matrix", 0),
    ]
    text = page.read_text(encoding="utf-8")
    assert text.count("| not recorded | - |") == len(nightly.PARTS) - 2
    assert "| passes | 0 s |" in text and "| FAILS, exit code 1 | 0 s |" in text
    assert nightly.filled(text) == text


def test_page_holds_the_recorded_night(nightly: ModuleType) -> None:
    text = nightly.PAGE.read_text(encoding="utf-8")
    assert nightly.filled(text) == text, "run python bench/nightly.py --record"
    assert not any(part["code"] for part in nightly.recorded())
    told = text.partition("<!-- end -->")[2]
    assert all(f"- `{part.name}`: " in told for part in nightly.PARTS)


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
