"""What needs no GPU of `bench/gpu_ops.py` and `bench/gpu_host.py`: checks, figures and pages."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from fairdraft import noise, ops
from fairdraft.noise import Stream

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "gpu_ops.json"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    names = ("gpu_cases", "gpu_check", "gpu_page", "gpu_host")
    return {name: importlib.import_module(name) for name in names}


def made_up(cases: Any) -> dict[str, Any]:
    """A document as the benchmark writes it; no figure in it was measured."""
    times = {"median": 20.0, "min": 19.0, "max": 25.0}
    results = [
        {
            "case": case.name,
            "batch": batch,
            "bytes": batch * 151936 * 4,
            "is_cold": batch > 1,
            "accepted": None if case.op == "sample" else 3.0,
            "microseconds": times,
            "floor": times,
            "over_floor": 1.0,
        }
        for case in cases
        for batch in (1, 64)
    ]
    names = ("device", "memory_gib", "l2_mib", "python", "torch", "cuda", "triton", "commit")
    return {
        "conditions": dict.fromkeys(names, "made up"),
        "vocab_size": 151936,
        "num_drafts": 5,
        "replays": 15,
        "results": results,
    }


def test_table_picture_and_page_come_from_one_document(
    bench: dict[str, ModuleType], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    cases, page = bench["gpu_cases"].CASES, bench["gpu_page"]
    document = made_up(cases)
    assert len(page.table(document).splitlines()) == 2 + 2 * len(cases)
    text = page.filled(page.PAGE.read_text(encoding="utf-8"), document)
    assert page.table(document) in text and page.filled(text, document) == text
    page.draw(document, tmp_path / "gpu.svg")
    assert (tmp_path / "gpu.svg").read_text(encoding="utf-8").rstrip().endswith("</svg>")


def test_cases_of_peers_and_panels_exist(bench: dict[str, ModuleType]) -> None:
    names = {case.name for case in bench["gpu_cases"].CASES}
    page = bench["gpu_page"]
    assert set(page.PEERS) <= names
    assert {case for lines in page.PANELS.values() for case in lines} == names


def test_page_holds_the_recorded_figures(bench: dict[str, ModuleType]) -> None:
    page = bench["gpu_page"]
    text = page.PAGE.read_text(encoding="utf-8")
    if RESULTS.exists():
        assert page.filled(text, json.loads(RESULTS.read_text())) == text, "run gpu_ops.py --page"
    else:
        assert "Not measured yet." in text


def test_rows_that_a_walk_cannot_do_without(bench: dict[str, ModuleType]) -> None:
    """A leaf by eldest children, one by youngest, and three children that all fall."""
    path = torch.tensor([[0, 1, 4, 10], [0, 3, 9, 15], [0, -1, -1, -1]])
    verdict: Any = SimpleNamespace(path=path, num_accepted_tokens=torch.tensor([3, 3, 0]))
    assert bench["gpu_cases"].rows_needed(verdict) == 4 + (4 + 2 + 1) + (1 + 3)


@pytest.mark.parametrize("margin", [1e-6, 1e-3])
def test_check_forgives_fast_arithmetic_near_ties_alone(
    bench: dict[str, ModuleType], margin: float
) -> None:
    check = bench["gpu_check"]
    logits = torch.randn((3, 40), generator=torch.Generator().manual_seed(1))
    wanted = ops.sample(logits, noise.address(Stream.TARGET, key=5, position=torch.arange(3)))
    wanted = replace(wanted, margin=torch.tensor([1.0, margin, 1.0], dtype=torch.float64))
    other = wanted.token_ids.clone()
    other[1] += 1
    got = replace(wanted, token_ids=other)
    assert check.compare("same", wanted, wanted, may_tie=False) == 0
    with pytest.raises(check.CheckError, match=r"portable: rows \[1\]"):
        check.compare("portable", got, wanted, may_tie=False)
    if margin < check.NEAR_TIE:
        assert check.compare("fast", got, wanted, may_tie=True) == 1
    else:
        with pytest.raises(check.CheckError, match=r"fast: rows \[1\]"):
            check.compare("fast", got, wanted, may_tie=True)


def test_cost_of_checks_is_what_they_add_to_a_call_of_the_same_round(
    bench: dict[str, ModuleType],
) -> None:
    samples = {
        "sample/call/checked": [60.0, 90.0, 62.0],
        "sample/call/unchecked": [57.0, 87.0, 58.0],
        "sample/prepare/checked": [20.0, 50.0, 21.0],
        "sample/prepare/unchecked": [17.0, 47.0, 17.0],
    }
    figures = bench["gpu_host"].figures(samples)["sample"]
    assert figures["call"] == 62.0 and figures["checks"] == 3.0
    assert figures["share_of_checks"] == round(3 / 62, 4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would be measured")
def test_host_cost_is_not_measured_without_a_gpu(
    bench: dict[str, ModuleType],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["gpu_host.py"])
    with pytest.raises(SystemExit):
        bench["gpu_host"].main()
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["error"] == "there is no GPU" and not document["is_correct"]
