"""The plugin: its fixture, its options, what it writes, and what it does not import."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

# loaded once, not anew in every session within
import fairdraft.testing.assertion  # noqa: F401
import tests.testing.samplers  # noqa: F401
from fairdraft.audit.report import Report

pytest_plugins = "pytester"

ROOT = Path(__file__).resolve().parent.parent.parent
PLUGIN = "fairdraft.testing.plugin"
HEAVY = {"numpy", "torch", "rich", "typer", "matplotlib", "transformers"}
TESTS = """
from tests.testing.samplers import P, subject

def test_right(assert_lossless):
    assert_lossless(subject(), max_tokens=20_000)

def test_wrong(assert_lossless):
    assert_lossless(subject(P), eps=0.05)
"""


@pytest.fixture
def arguments() -> list[str]:
    """Loads the plugin where it is not installed as an entry point."""
    installed = {point.value for point in entry_points(group="pytest11")}
    return [] if PLUGIN in installed else ["-p", PLUGIN]


def test_the_example_in_the_documentation_passes(
    pytester: pytest.Pytester, arguments: list[str]
) -> None:
    example = (ROOT / "examples" / "test_lossless.py").read_text(encoding="utf-8")
    pytester.makepyfile(test_lossless=example)
    result = pytester.runpytest_inprocess(*arguments)
    result.assert_outcomes(passed=2)


def test_options_are_defaults_and_a_failure_leaves_its_report(
    pytester: pytest.Pytester, arguments: list[str]
) -> None:
    pytester.makepyfile(TESTS)
    options = ["--lossless-eps", "0.1", "--lossless-alpha", "1e-9", "--lossless-reports", "out"]
    result = pytester.runpytest_inprocess(*arguments, *options)
    # at eps .01 it would take a hundred times as many tokens as are allowed
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*NotLossless: FAIL: *", "*the bug: rejected drafts*"])
    (report,) = (pytester.path / "out").glob("*.json")
    assert "test_wrong" in report.name
    settings = Report.read(report).settings
    assert settings["alpha"] == 1e-9 and settings["eps"] == 0.05


def test_without_a_folder_the_report_is_in_the_temporary_one(
    pytester: pytest.Pytester, arguments: list[str]
) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_inprocess(*arguments, "-k", "wrong", "--basetemp", "base")
    result.assert_outcomes(failed=1)
    assert len(list((pytester.path / "base").rglob("*test_wrong.json"))) == 1


def test_the_plugin_imports_nothing_heavy() -> None:
    code = f"import sys, {PLUGIN}; print(*sorted(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert HEAVY.isdisjoint(found.stdout.split())
    loaded = {name for name in found.stdout.split() if name.startswith("fairdraft")}
    assert loaded == {"fairdraft", "fairdraft.testing", PLUGIN}


def test_it_is_an_entry_point_of_pytest() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'[project.entry-points.pytest11]\nfairdraft = "{PLUGIN}"' in text
