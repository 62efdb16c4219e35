"""`fairdraft audit kernels` from the command line, with a few small rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from fairdraft.audit import kernels, layouts
from fairdraft.audit.kernels import ROWS, Row

NAMES = ("narrow K=1 coupled", "narrow K=1 salted", "rounds salted")


def small(name: str) -> Row:
    row = next(row for row in ROWS if row.name == name)
    return replace(row, experiment=replace(row.experiment, num_trials=20_000, eps=0.04))


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows in place of all."""
    monkeypatch.setattr(kernels, "rows_of", lambda *, quick: tuple(map(small, NAMES)))


@pytest.fixture
def audit(cli, few_rows) -> Callable:
    return lambda *arguments: cli("audit", "kernels", "--jobs", "1", *arguments)


def test_table_on_stdout_and_progress_on_stderr(audit) -> None:
    result = audit()
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].startswith("16 tokens, normal logits")
    assert sum(line.endswith("  as expected") for line in lines) == 3
    (coupled,) = (line for line in lines if line.startswith("coupled"))
    assert coupled.split()[1] == "20,000"
    assert "FAIL" in coupled
    assert "named by law and trace: draft and residual share noise" in result.out
    assert "named by the trace: a position proposed again" in result.out
    assert "All 3 rows came to what was expected" in lines[-1]
    assert max(map(len, lines)) <= 100
    assert [line.split(",")[0] for line in result.err.splitlines() if " of 3 rows" in line] == [
        f"{i} of 3 rows" for i in (1, 2, 3)
    ]
    assert "s left: narrow K=1 coupled: FAIL" in result.err


def test_json_alone_on_stdout(audit) -> None:
    result = audit("--json")
    assert result.code == 0
    found = json.loads(result.out)
    assert [row["name"] for row in found["rows"]] == list(NAMES)
    assert found["versions"]["torch"]
    assert all(claim["holds"] for claim in found["claims"])


def test_a_mislabelled_layout_ends_in_exit_code_1(audit, monkeypatch) -> None:
    monkeypatch.setitem(layouts.LAYOUTS, "salted", layouts.coupled)
    result = audit()
    assert result.code == 1
    assert "not expected" in result.out
    assert "narrow K=1 salted: FAIL where PASS is expected" in result.out
    assert json.loads(audit("--json").out)["exit_code"] == 1


def test_an_interruption_leaves_the_layout_behind(audit, monkeypatch) -> None:
    from fairdraft import noise
    from fairdraft.audit.kernels import run

    original = noise.address

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "carry_out", interrupted)
    result = audit()
    assert result.code == 130
    assert result.err.splitlines()[-1] == "interrupted"
    assert noise.address is original


def test_no_process_is_a_usage_error(cli) -> None:
    assert cli("audit", "kernels", "--jobs", "0").code == 2


def test_a_gpu_that_is_not_there_is_refused(cli, monkeypatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = cli("audit", "kernels", "--device", "cuda", "--quick")
    assert result.code == 2
    assert "torch finds no GPU" in result.err
    assert cli("audit", "kernels", "--device", "tpu").code == 2
