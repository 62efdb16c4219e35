"""What needs no GPU of `bench/gpu_audit.py`: its table, its page, and that the page is current."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "gpu_audit.json"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("gpu_audit")


def made_up() -> dict[str, Any]:
    """A document as the script writes it; no figure in it was measured."""
    names = ("device", "cuda", "triton", "python", "torch", "numpy", "commit")
    row = {
        "name": "large token coupled",
        "num_trials": 1 << 24,
        "eps": 0.001,
        "tv": {"observed": 0.5, "upper": 0.5004},
        "chi_square": {"statistic": None, "limit": 42.1},
        "acceptance": {"share": 0.5},
        "decoding": {"num_drafts": 1},
        "verdict": {"state": "FAIL", "diagnosis": "made up"},
        "replay": {"num_texts": 16, "num_unlike": 1},
        "surprises": [],
    }
    other = row | {"decoding": {"num_drafts": 0}, "chi_square": None, "surprises": ["made up"]}
    return {
        "conditions": dict.fromkeys(names, "made up"),
        "settings": {"seed": 0},
        "rows": [row, other],
        "claims": [{"sentence": "this", "holds": True}, {"sentence": "that", "holds": False}],
        "surprises": ["made up"],
        "seconds": 61.2,
        "benchmark": "gpu_audit",
        "exit_code": 1,
    }


def test_table_claims_and_page_come_from_one_document(bench: ModuleType) -> None:
    document = made_up()
    lines = bench.table(document).splitlines()
    assert len(lines) == 2 + 2
    assert "infinite" in lines[2] and "15 of 16" in lines[2]
    assert lines[3].endswith("| FAIL, NOT EXPECTED | made up | 15 of 16 |")
    assert bench.claims(document) == "- Yes: this.\n- NO: that.\n"
    assert "1 not as expected" in bench.describe(document)
    text = bench.filled(bench.PAGE.read_text(encoding="utf-8"), document)
    assert bench.table(document) in text and bench.claims(document) in text
    assert bench.filled(text, document) == text


def test_the_last_line_says_how_it_ended(bench: ModuleType) -> None:
    found = bench.summary(made_up())
    assert (found["exit_code"], found["verdicts"]) == (1, {"FAIL": 2})
    assert "rows" not in found and found["surprises"] == ["made up"]


def test_numbers_that_json_lacks_are_null(bench: ModuleType) -> None:
    assert bench._strict({"a": [1.0, float("inf")], "b": (float("nan"), 2)}) == {
        "a": [1.0, None],
        "b": [None, 2],
    }


def test_page_holds_the_recorded_figures(bench: ModuleType) -> None:
    text = bench.PAGE.read_text(encoding="utf-8")
    if RESULTS.exists():
        recorded = json.loads(RESULTS.read_text())
        assert bench.filled(text, recorded) == text, "run gpu_audit.py --page"
    else:
        assert "<!-- gpu-audit-conditions -->\nNot measured yet.\n" in text
