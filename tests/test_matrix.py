"""The equivalence matrix by the engine: small cells of it, and the page of the large run."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"
#: seen at false alarm 1e-9 and miss 1e-6
EFFECT = 0.3


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("matrix_cells")


@pytest.fixture
def matrix(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("matrix")


@pytest.mark.parametrize(
    ("parameter", "rule", "q"),
    [
        ("all together", "token", "sparse"),
        ("min_tokens", "block", "dense, processed"),
        ("bad_words", "common_noise", "point mass"),
    ],
)
def test_a_cell_follows_the_definitions(
    cells: ModuleType, parameter: str, rule: str, q: str
) -> None:
    result = cells.run_cell(cells.Cell(parameter, rule, q), 0, EFFECT, seed=1)
    assert result["as_expected"] and result["error"] is None and result["fault"] is None
    assert result["log10_p"] > -9 and result["moved"] > 0.15
    # drafts stand and fall, so both ends of a round are seen
    assert 0.1 < result["stood"] < 0.9


def test_a_planted_fault_fails_its_cell(cells: ModuleType) -> None:
    planted = cells.Cell("logits_processors", "token", "dense", is_planted=True)
    result = cells.run_cell(planted, 0, EFFECT, seed=1)
    assert result["as_expected"] and result["fault"] == "custom-on-first-row"
    assert result["log10_p"] < -9


def test_every_parameter_has_cells_and_a_fault(
    cells: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = importlib.import_module("matrix_faults")
    assert faults.PLANTED.keys() == cells.PARAMETERS.keys()
    found = cells.cells(cells.PARAMETERS)
    assert len(set(found)) == len(found) == len(cells.PARAMETERS) * (3 * 4 + 2)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cells.left_out() == {cells.GRAMMAR: "llguidance is not installed"}


@pytest.mark.parametrize("is_right", [True, False])
def test_a_run_ends_in_json_and_says_whether_all_is_right(
    matrix: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_right: bool,
) -> None:
    def run_cell(cell: Any, number: int, effect: float, seed: int) -> dict[str, Any]:
        wrong = not is_right and cell.is_planted and number % 2 == 0
        name = "a fault" if cell.is_planted else None
        return {"as_expected": not wrong, "fault": name, "num_trials": 7, "effect": effect}

    monkeypatch.setattr(matrix.matrix_cells, "run_cell", run_cell)
    monkeypatch.setattr(sys, "argv", ["matrix", "--quick", "--jobs", "1"])
    assert matrix.main() == (0 if is_right else 1)
    said = capsys.readouterr()
    document = json.loads(said.out.splitlines()[-1])
    assert document["is_correct"] is is_right and document["texts"] == 7 * 28
    assert (len(document["cells"]), len(document["faults"])) == (24, 4)
    assert {cell["effect"] for cell in document["cells"]} == {document["effect"]}
    assert said.err.count(" s left: ") == 28
    assert said.err.count("not as expected: ") == (0 if is_right else 2)
    assert json.loads(matrix._lines(document)) == document


def test_page_holds_the_recorded_run(cells: ModuleType) -> None:
    page = importlib.import_module("matrix_page")
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text) == text, "run python bench/matrix_page.py"
    recorded = json.loads(page.RECORDED.read_text(encoding="utf-8"))
    assert recorded["is_correct"] and recorded["left_out"] == {}
    names = ("parameter", "rule", "q")
    ran = [tuple(cell[name] for name in names) for cell in recorded["cells"] + recorded["faults"]]
    assert ran == [(c.parameter, c.rule, c.q) for c in cells.cells(cells.PARAMETERS)]
    assert all(cell["moved"] > recorded["effect"] for cell in recorded["cells"])
    assert all(0.05 < cell["stood"] < 0.95 for cell in recorded["cells"])
