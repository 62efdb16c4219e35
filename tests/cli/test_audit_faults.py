"""`fairdraft audit faults` from the command line, with a few quick rows."""

from __future__ import annotations

import json
from dataclasses import replace

from fairdraft.audit import faults
from fairdraft.audit.faults import CASES, FAULTS, find_cases
from fairdraft.stats.verdict import VerdictState

ROWS = ("--only", "seed-ignored", "--only", "constant-position", "--jobs", "1")


def test_table_on_stdout_and_progress_on_stderr(cli) -> None:
    result = cli("audit", "faults", *ROWS)
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].split()[:4] == ["fault", "function", "setup", "expected"]
    (row,) = (line for line in lines if line.startswith("constant-position"))
    assert row.split()[1:5] == ["noise.address", "toy", "FAIL,", "traced"]
    assert "repeat, trace" in row and row.rstrip().endswith("ok")
    assert lines[-1].startswith("All 2 rows came to what was expected")
    assert result.err.splitlines()[:2] == ["loading", "2 rows in 1 process"]
    assert "2 of 2 rows, about 0 s left: seed-ignored: FAIL" in result.err


def test_json_alone_on_stdout(cli) -> None:
    result = cli("audit", "faults", *ROWS, "--json")
    assert result.code == 0
    found = json.loads(result.out)
    assert found["schema"] == "fairdraft/audit-faults/1"
    rows = {row["name"]: row for row in found["rows"]}
    assert set(rows) == {"seed-ignored", "constant-position"}
    row = rows["constant-position"]
    assert row["verdict"]["state"] == "FAIL" and row["named"] == "repeat"
    assert 0 < row["tokens_to_fail"] <= row["planned_tokens"]
    assert row["num_collisions"] > 0 and row["num_calls"] > 0
    assert found["exit_code"] == 0


def test_the_list_runs_nothing(cli, monkeypatch) -> None:
    monkeypatch.setattr(faults, "run_catalogue", None)
    result = cli("audit", "faults", "--list")
    assert result.code == 0
    firsts = {line.split()[0] for line in result.out.splitlines()}
    assert {case.name for case in CASES} <= firsts
    rows = json.loads(cli("audit", "faults", "--list", "--json").out)["rows"]
    assert [row["name"] for row in rows] == [case.name for case in CASES]
    assert {row["function"] for row in rows} >= {fault.function for fault in FAULTS.values()}


def test_a_wrong_verdict_ends_in_exit_code_1(cli, monkeypatch) -> None:
    def found(names):
        return [replace(case, expected=VerdictState.PASS) for case in find_cases(names)]

    monkeypatch.setattr(faults, "find_cases", found)
    result = cli("audit", "faults", *ROWS)
    assert result.code == 1
    assert "seed-ignored: FAIL where PASS is expected" in result.out
    assert "NOT AS EXPECTED" in result.err
    assert json.loads(cli("audit", "faults", *ROWS, "--json").out)["exit_code"] == 1


def test_an_unknown_name_is_a_usage_error(cli) -> None:
    result = cli("audit", "faults", "--only", "typo")
    assert result.code == 2
    assert "error: --only: no fault is named 'typo'; choose from" in result.err


def test_an_interruption_leaves_production_as_it_was(cli, monkeypatch) -> None:
    from fairdraft import noise
    from fairdraft.audit.faults import trial

    original = noise.address

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trial, "_gather", interrupted)
    assert cli("audit", "faults", "--only", "off-by-one").code == 130
    assert noise.address is original


def test_no_process_is_a_usage_error(cli) -> None:
    assert cli("audit", "faults", "--jobs", "0").code == 2
