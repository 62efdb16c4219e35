"""The report's document: JSON and back without loss, and a clear word about everything else."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairdraft.audit.report import Report, SubjectEntry, VerdictEntry
from fairdraft.audit.report.codec import encode
from fairdraft.stats.summary import (
    AgreementSummary,
    FamilySummary,
    HeatSummary,
    PositionSummary,
    SlotSummary,
    TemplateSummary,
)

REPORT = Report(
    version="0.1.0",
    created="2026-01-02T03:04:05+00:00",
    verdict=VerdictEntry(
        "FAIL", "It is biased.", "draft and residual share noise", ("E is large.",), None, 1
    ),
    subject=SubjectEntry("toy", "a toy", {"K": 3}, "own logits", True, "gumbel", "token", False),
    settings={"eps": 0.01, "alpha": 1e-3, "delta": 0.01, "eps0": 0.0, "max_tokens": 4096},
    num_tokens=30,
    num_texts=2,
    num_impossible=0,
    seconds=1.5,
    log10_e=math.inf,
    sup_log10_e=math.inf,
    curve=((10, -0.5), (30, math.inf)),
    families=(
        FamilySummary(
            *("rank", "rank of the token", ("1", "2+"), 30, (20, 10), (18.5, 11.5)),
            *(0.05, 0.04, 0.01, 0.0, 0.3, 1.25, False, True),
        ),
        FamilySummary(
            *("repeat", "repeats", ("same", "new"), 0, (0, 0), (0.0, 0.0)),
            *(None, None, None, None, None, 0.0, False, False),
        ),
    ),
    templates=(TemplateSummary("shared noise", "draft and residual share noise", 30, 4.5, True),),
    slots=(SlotSummary(0, 12, 9, 8.75),),
    positions=(PositionSummary(0, 7, 16, 0.1, 0.0, 0.4),),
    agreement=(AgreementSummary(-1, 8, 2, 1.5),),
    heat=HeatSummary(("0", "2+"), ("a", "b"), ((5, 6), (7, 8)), ((5.5, 5.5), (7.0, 8.0))),
    coverage=("tested: rank",),
    notes=("One retry.",),
    environment={"python": "3.11.4"},
    command="fairdraft audit kernels",
)


def put(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of the document with one place changed; `...` takes it away."""
    changed = copy.deepcopy(document)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place: Any = changed
    for part in parents:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return changed


def test_document_survives_json() -> None:
    text = json.dumps(REPORT.to_json(), allow_nan=False)
    assert next(iter(json.loads(text))) == "schema"
    assert Report.from_json(json.loads(text)) == REPORT


def test_file_round_trip_leaves_nothing_beside(tmp_path: Path) -> None:
    REPORT.write(tmp_path / "report.json")
    assert Report.read(tmp_path / "report.json") == REPORT
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_failed_write_keeps_the_older_file(tmp_path: Path) -> None:
    REPORT.write(tmp_path / "report.json")
    with pytest.raises(ValueError, match=r"seconds is NaN"):
        replace(REPORT, seconds=math.nan).write(tmp_path / "report.json")
    assert Report.read(tmp_path / "report.json") == REPORT


def test_numpy_values_become_numbers() -> None:
    values = {"a": np.int64(3), "b": np.float32(0.5), "c": np.arange(2), "d": np.bool_(True)}
    assert json.dumps(encode(values)) == '{"a": 3, "b": 0.5, "c": [0, 1], "d": true}'


@pytest.mark.parametrize(
    ("state", "code"),
    [("PASS", 0), ("FAIL", 1), ("BIASED_WITHIN_TOLERANCE", 0), ("INCONCLUSIVE", 3), ("INVALID", 4)],
)
def test_exit_code_follows_the_state(state: str, code: int) -> None:
    assert VerdictEntry(state, "", None, (), None, code).exit_code == code
    with pytest.raises(ValueError, match=f"{state} ends with {code}"):
        VerdictEntry(state, "", None, (), None, code + 1)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("schema", ..., "no field schema"),
        ("schema", "fairdraft/audit/2", r"schema is 'fairdraft/audit/2'; this version reads"),
        ("num_tokens", ..., "num_tokens is missing"),
        ("num_tokens", 3.5, "num_tokens is 3.5, not a whole number"),
        ("num_tokens", True, "num_tokens is True, not a whole number"),
        ("num_tokens", None, "num_tokens is None, not a whole number"),
        ("seconds", "inf", "seconds is 'inf', not a number"),
        ("seconds", math.nan, "seconds is nan, not a number"),
        ("log10_e", "much", "log10_e is 'much', not a number"),
        ("speed", 3, "speed is no field of this schema"),
        ("settings.eps", ..., "settings.eps is None, not a number"),
        ("settings", [], "settings is an array, not an object"),
        ("verdict.state", "FINE", "verdict.state is 'FINE', not one of PASS"),
        ("verdict.exit_code", 0, "FAIL ends with 1"),
        ("verdict.reasons.0", 7, r"verdict.reasons\[0\] is 7, not text"),
        ("families.1.tv", "x", r"families\[1\].tv is 'x', not a number"),
        ("families.0.observed", [20], "family 'rank' has 2 labels, 1 observed"),
        ("families.0.is_diagnostic", 0, r"is_diagnostic is 0, not true or false"),
        ("curve.0", [1], r"curve\[0\] has 1 items, not 2"),
        ("heat.observed", [[1, 2]], "heat.observed is no table of 2 slots by 2 octiles"),
        ("environment.python", 3, "environment.python is 3, not text"),
    ],
)
def test_bent_document_is_refused_by_name(path: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Report.from_json(put(REPORT.to_json(), path, value))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"schema": "other"}'])
def test_unreadable_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="report.json: "):
        Report.read(path)
