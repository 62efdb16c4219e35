"""The benchmarks run at toy size, end in one JSON document, and time nothing that is wrong."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fairdraft.engine.processing.order import process
from fairdraft.ops.verify import ChainInputs, ChainOutputs

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / "bench"


def run_quick(script: str, *arguments: str) -> dict[str, Any]:
    """Runs a benchmark at toy size and reads the last line of its output."""
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(BENCH / script), "--quick", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("script", ["decode.py", "ops.py", "audit.py"])
def test_last_line_is_json_with_conditions(script: str, tmp_path: Path) -> None:
    raw = tmp_path / "raw.json"
    document = run_quick(script, "--json", str(raw))
    assert document["is_correct"] and document["results"] and document["targets"]
    assert {"cpu", "cores", "torch", "transformers", "commit"} <= document["conditions"].keys()
    assert all("threads" in result for result in document["results"])
    kept = json.loads(raw.read_text())
    assert kept["raw"] and {k: v for k, v in kept.items() if k != "raw"} == document


def spoiled(verify: Callable[..., None], calls: list[int]) -> Callable[..., None]:
    """A verification whose every token is wrong once there are drafts."""

    def verify_wrongly(inputs: ChainInputs, outputs: ChainOutputs) -> None:
        verify(inputs, outputs)
        if inputs.num_drafts.any():
            calls.append(len(inputs.target))
            outputs.token_ids[outputs.token_ids >= 0] = 5

    return verify_wrongly


@pytest.mark.slow
@pytest.mark.parametrize("script", ["decode", "ops"])
def test_wrong_tokens_are_not_timed(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module("fairdraft.ops.cpu.verify")
    calls: list[int] = []
    monkeypatch.setattr(module, "verify_cpu", spoiled(module.verify_cpu, calls))
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setattr(sys, "argv", [script, "--quick"])
    with pytest.raises(SystemExit) as exit_:
        runpy.run_path(str(BENCH / f"{script}.py"), run_name="__main__")
    assert calls and exit_.value.code == 1
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["is_correct"] is False and "results" not in document


def test_page_holds_the_recorded_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    page = importlib.import_module("page")
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text) == text, "run python bench/page.py"


def test_a_rewritten_page_keeps_its_prose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    blocks = importlib.import_module("blocks")
    page = tmp_path / "page.md"
    page.write_text("\u00e9\n<!-- a -->\nold\n<!-- end -->\nafter\n", encoding="utf-8")
    blocks.rewrite(page, lambda text: blocks.fill(text, {"a": "new\n"}, page.name))
    found = page.read_text(encoding="utf-8")
    assert found == "\u00e9\n<!-- a -->\nnew\n<!-- end -->\nafter\n"
    with pytest.raises(ValueError, match="0 blocks named b"):
        blocks.rewrite(page, lambda text: blocks.fill(text, {"b": ""}, page.name))
    assert page.read_text(encoding="utf-8") == found


def test_rules_page_holds_figures_that_agree_with_theory(monkeypatch: pytest.MonkeyPatch) -> None:
    """24 shares: one is 4 standard errors from theory in 650 such tables of a right rule."""
    monkeypatch.syspath_prepend(str(BENCH))
    page = importlib.import_module("rules")
    recorded = json.loads(page.RECORDED.read_text(encoding="utf-8"))
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text, recorded) == text, "run python bench/rules.py --record"
    assert page.PICTURE.is_file()
    found = recorded["results"]
    assert [(r["rule"], r["temperature"]) for r in found] == [
        (rule, temperature) for temperature in page.TEMPERATURES for rule in page.METHODS
    ]
    assert all(abs(deviation) < 4 for result in found for deviation in result["deviations"])


def test_rules_are_measured_on_the_same_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    document = importlib.import_module("rules").measure(num_texts=12, cuts=1)
    assert document["rounds"] == 12 and len(document["results"]) == 6
    by_rule = {(r["rule"], r["temperature"]): r for r in document["results"]}
    for temperature in (0.7, 1.0):
        token, block = (by_rule[rule, temperature] for rule in ("token", "block"))
        # the same drafts, so the same most that any rule can keep, which rho does not exceed
        assert token["bound"] == block["bound"]
        assert all(
            share <= most + 1e-9
            for share, most in zip(block["theory"][0], block["bound"], strict=True)
        )


def test_a_grammar_of_the_benchmark_masks_rows_of_texts_that_it_matches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within a JSON string: control characters are out, letters and numbers are in."""
    pytest.importorskip("llguidance", reason="the extra `grammar` is not installed")
    monkeypatch.syspath_prepend(str(BENCH))
    case, cases = (
        importlib.import_module("grammar_case"),
        importlib.import_module("processor_cases"),
    )
    shape = cases.Shape(2, 3, 40, 1_000)
    own, logits = case.GrammarRound(shape), torch.zeros(shape.logits)
    assert process(logits, own.paths(), own.plans, own.grammars) == {}
    is_masked = logits == -torch.inf
    assert (is_masked.sum(-1) > 30).all() and not is_masked[..., 300:900].any()


def test_recorded_masks_of_a_grammar_are_those_of_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And a round of them masks rows; 151,936 ids, the size that is timed."""
    pytest.importorskip("llguidance", reason="the extra `grammar` is not installed")
    monkeypatch.syspath_prepend(str(BENCH))
    masks, cases = (
        importlib.import_module("grammar_masks"),
        importlib.import_module("processor_cases"),
    )
    shape = cases.Shape(2, 3, 100)
    own, logits = masks.recorded_round(shape), torch.zeros(shape.logits)
    assert process(logits, own.paths, own.plans, own.grammars) == {}
    is_masked = logits == -torch.inf
    assert (is_masked.sum(-1) > 30).all() and not is_masked[..., 300:151_000].any()
    assert masks.record()["masks"] == json.loads(masks.PATH.read_text())["masks"]
