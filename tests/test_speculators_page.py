"""The table of speculators is what the recorded files give, and says what was not run."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("speculators_page")


def cell(name: str, temperature: float, **changes: Any) -> dict[str, Any]:
    """A cell as the command writes it; no figure in it was measured."""
    figures = {
        "num_drafts": 4,
        "parameters": 1234,
        "acceptance_length": 2.0,
        "interval": [1.5, 2.5],
        "tokens_per_second": {"median": 99.6},
        "over_plain": {"median": 1.254},
    }
    return {"speculator": name, "temperature": temperature, **figures, **changes}


def test_page_holds_the_recorded_figures(page: ModuleType) -> None:
    for path in (page.PAGE, page.SMOLLM2_PAGE):
        text = path.read_text(encoding="utf-8")
        assert page.filled(path) == text, "run python bench/speculators_page.py"


PLAIN = {"num_drafts": 0, "parameters": 0, "acceptance_length": 1.0}


def test_a_line_says_what_was_measured_audited_and_tested(page: ModuleType) -> None:
    cells = [cell(name, t) for t in (0.0, 1.0) for name in ("eagle3", "dflash b")]
    cells = [cell("plain", 0.0, **PLAIN), cell("plain", 1.0, **PLAIN), *cells]
    cpu = {"device_name": "cpu", "cells": cells}
    gpu = {"device_name": "a card", "cells": [cell("eagle3", 1.0, over_plain={"median": 2.0})]}
    verdicts = page.Verdicts({"plain": "PASS"}, {"eagle3": "drafts follow q"})
    lines = page.table([cpu, gpu], verdicts).splitlines()
    assert lines[2] == "| plain | none | 1.00 | 1.00 | 99.6, 1.25 |  | PASS |  |"
    assert lines[3].startswith("| `eagle3` | 1,234 | 2.00 [1.50, 2.50] | ")
    assert lines[3].endswith("| 99.6, 1.25 | 99.6, 2.00 | not run | drafts follow q |")
    assert lines[4].endswith("| 99.6, 1.25 |  | not run | not in the test |")
    assert "a card" not in page.table([cpu], verdicts) and "audit" not in page.table([cpu], None)


def test_a_batch_on_one_machine_is_a_table_of_its_own(page: ModuleType) -> None:
    cells = [cell("plain", 1.0, **PLAIN, num_same_alone=8), cell("eagle3", 0.0, num_same_alone=8)]
    cells += [cell("eagle3", 1.0, num_same_alone=7, interval=None)]
    found = {"device_name": "a card", "batch": 8, "cells": cells}
    lines = page.table([found], None).splitlines()
    assert lines[0].endswith("| a card: tokens/s at T = 1, over plain | texts as alone |")
    assert lines[2] == "| plain | none |  | 1.00 | 99.6, 1.25 | 8 of 8 |"
    assert lines[3] == "| `eagle3` | 1,234 | 2.00 [1.50, 2.50] | 2.00 | 99.6, 1.25 | 15 of 16 |"
    assert page.table([], None) == "Not measured.\n"
    fewer = {"device_name": "cpu", "cells": [cell("eagle3", 1.0), cell("mtp", 1.0, num_drafts=3)]}
    fewer["cells"][0]["temperature"] = 0.0
    slow = page.table([fewer], None, are_all_speeds=True).splitlines()
    assert slow[3].endswith("| 2.00 [1.50, 2.50] |  | 99.6, 1.25 |")
    fewer["cells"][0]["temperature"] = 1.0
    lines = page.table([fewer], None).splitlines()
    assert lines[0].startswith("| speculator | K | parameters | tokens a round, T = 1 |")
    assert lines[3].startswith("| `mtp` | 3 | 1,234 | 2.00 [1.50, 2.50] | 99.6, 1.25 |")


def test_methods_are_read_from_the_test_of_q_and_from_audits(page: ModuleType) -> None:
    source = 'SAMPLED = {"mtp, one": 1, "custom": 2}\nPOINTS = {"custom": 3}\nOTHER = {"x": 0}\n'
    assert page.q_verdicts(source) == {
        "mtp": "drafts follow q",
        "custom": "drafts follow q, point masses",
    }
    found = page.q_verdicts(page.Q_TEST.read_text(encoding="utf-8"))
    assert {"draft_model", "eagle3", "mtp", "ngram", "suffix"} <= found.keys()
    assert page.audits()["draft_model"] == "[PASS](audits/engine-token.json)"
    assert page.audits().keys() >= {"plain", "ngram"}
