"""The equivalence matrix by the engine: small cells of it, and the page of the large run."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
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
        ("frequency_penalty", "tree", "dense"),
        ("bad_words_ids", "tree", "suffix"),
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
    planted = cells.Cell("logits_processors", "token", "dense", "custom-on-first-row")
    result = cells.run_cell(planted, 0, EFFECT, seed=1)
    assert result["as_expected"] and result["fault"] == "custom-on-first-row"
    assert result["log10_p"] < -9 and result["same_text"] is None


@pytest.mark.parametrize(
    ("parameter", "fault"),
    [
        ("min_tokens", "early-ends-once-a-round"),
        ("no_repeat_ngram_size", "siblings-in-tails"),
        ("allowed_token_ids", "masked-siblings-absent"),
    ],
)
def test_a_fault_of_trees_fails_its_cell(cells: ModuleType, parameter: str, fault: str) -> None:
    """Planned for TV .14: the faults' own are .14 to .34."""
    result = cells.run_cell(cells.Cell(parameter, "tree", "dense", fault), 0, 0.14, seed=1)
    assert result["as_expected"] and result["error"] is None and result["same_text"] is None
    assert result["log10_p"] is None or result["log10_p"] < -9


@pytest.mark.parametrize(
    ("parameter", "fault", "log10_p"),
    [
        ("presence_penalty", "common-drawn-again", -9),
        ("presence_penalty", "common-one-behind", -9),
        ("presence_penalty", "common-named-as-ratio", None),
        ("frequency_penalty", "penalties-once-a-round", -9),
        ("top_k, after penalties", "filtered-as-drafts", -np.inf),
    ],
)
def test_a_fault_of_common_noise_fails_by_the_law_or_by_the_text_alone(
    cells: ModuleType, parameter: str, fault: str, log10_p: float | None
) -> None:
    """Planned for TV .14: the faults' own are .14 to 1, and one leaves the law alone."""
    planted = cells.Cell(parameter, "common_noise", "dense", fault)
    result = cells.run_cell(planted, 0, 0.14, seed=1)
    assert result["as_expected"] and result["same_text"] is False
    assert result["breaks_law"] is (log10_p is not None)
    found = -np.inf if result["log10_p"] is None else result["log10_p"]
    assert found > -9 if log10_p is None else found <= log10_p


def test_what_is_planted_must_show_where_it_should(
    cells: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that does nothing here, and one said to leave alone a law that it moves."""
    faults = importlib.import_module("matrix_faults")
    (moves, *_), idle = (faults.PLANTED_COMMON[n] for n in ("frequency_penalty", "bad_words"))
    planted = {"presence_penalty": idle, "frequency_penalty": (replace(moves, breaks_law=False),)}
    monkeypatch.setattr(cells, "PLANTED_COMMON", planted)
    for parameter, (each,) in planted.items():
        cell = cells.Cell(parameter, "common_noise", "dense", each.fault.name)
        assert not cells.run_cell(cell, 0, EFFECT, seed=1)["as_expected"]


def test_every_parameter_has_cells_and_a_fault(
    cells: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = importlib.import_module("matrix_faults")
    assert faults.PLANTED.keys() == cells.PARAMETERS.keys()
    trees = importlib.import_module("matrix_tree_faults").PLANTED_TREE
    assert trees.keys() == cells.PARAMETERS.keys()
    # a grammar's mask that is not advanced ends its request with an error
    assert faults.PLANTED_COMMON.keys() == cells.PARAMETERS.keys() - {cells.GRAMMAR}
    planted = [*faults.PLANTED_COMMON.values(), *trees.values()]
    found = cells.cells(cells.PARAMETERS)
    expected = len(cells.PARAMETERS) * (3 * 4 + 2 + 3) - len(cells.NEVER_STAND)
    expected += sum(map(len, planted))
    assert len(set(found)) == len(found) == expected
    assert all(cells.planted_in(c).fault.name == c.fault for c in found if c.is_planted)
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
        return asdict(cell) | {"as_expected": not wrong, "num_trials": 7, "effect": effect}

    monkeypatch.setattr(matrix.matrix_cells, "run_cell", run_cell)
    monkeypatch.setattr(sys, "argv", ["matrix", "--quick", "--jobs", "1"])
    assert matrix.main() == (0 if is_right else 1)
    said = capsys.readouterr()
    document = json.loads(said.out.splitlines()[-1])
    assert document["is_correct"] is is_right and document["texts"] == 7 * 44
    assert (len(document["cells"]), len(document["faults"])) == (30, 14)
    assert {cell["effect"] for cell in document["cells"]} == {document["effect"]}
    assert said.err.count(" s left: ") == 44
    assert (said.err.count("not as expected: ") == 0) is is_right


def test_a_recorded_run_goes_on_where_it_was_broken_off(
    matrix: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    numbers = []

    def run_cell(cell: Any, number: int, effect: float, seed: int) -> dict[str, Any]:
        numbers.append(number)
        if len(numbers) == 4:
            raise KeyboardInterrupt
        return asdict(cell) | {"as_expected": True, "num_trials": 7}

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["matrix", "--quick", "--jobs", "1", *arguments])
        return matrix.main()

    monkeypatch.setattr(matrix.matrix_cells, "run_cell", run_cell)
    monkeypatch.setattr(matrix, "RECORDED", tmp_path / "matrix.json")
    asked = ("--record", "--only", "rule block")
    with pytest.raises(KeyboardInterrupt):
        run(*asked)
    assert run(*asked, "--missing") == 0
    recorded = json.loads(matrix.RECORDED.read_text(encoding="utf-8"))
    assert [run["num_cells"] for run in recorded["runs"]] == [3, 7]
    assert len(recorded["cells"]) == 8 and len(recorded["faults"]) == 2
    # a cell's number names its seeds, so it is that of the whole matrix
    assert len(set(numbers)) == 10 and min(numbers) > 4 and numbers.count(numbers[3]) == 2
    for wrong, message in {
        ("--missing",): "give --record too",
        (*asked, "--seed", "5"): "matrix.json has seed 0, not 5",
        ("--only", "no such"): "no such cell",
    }.items():
        with pytest.raises(SystemExit):
            run(*wrong)
        assert message in capsys.readouterr().err


def test_page_holds_the_recorded_run(cells: ModuleType) -> None:
    page = importlib.import_module("matrix_page")
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text) == text, "run python bench/matrix_page.py"
    recorded = json.loads(page.RECORDED.read_text(encoding="utf-8"))
    assert recorded["is_correct"] and recorded["left_out"] == {}
    names = ("parameter", "rule", "q", "fault")
    ran = [tuple(cell[name] for name in names) for cell in recorded["cells"] + recorded["faults"]]
    due = sorted(cells.cells(cells.PARAMETERS), key=lambda cell: cell.is_planted)
    assert ran == [(c.parameter, c.rule, c.q, c.fault) for c in due]
    common = [cell for cell in recorded["cells"] if cell["rule"] == "common_noise"]
    assert all(cell["same_text"] is True for cell in common)
    assert all(cell["moved"] > recorded["effect"] for cell in recorded["cells"])
    assert all(0.05 < cell["stood"] < 0.95 for cell in recorded["cells"])
