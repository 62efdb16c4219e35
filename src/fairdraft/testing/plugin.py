"""The pytest plugin: the fixture `assert_lossless` and its options."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

__all__ = ["assert_lossless", "pytest_addoption"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options; each is a default that an argument in a test takes precedence over."""
    group = parser.getgroup("fairdraft", "lossless sampling (fairdraft)")
    group.addoption(
        "--lossless-eps",
        type=float,
        metavar="EPS",
        help="largest deviation that passes, where a test does not say; 0.01",
    )
    group.addoption(
        "--lossless-alpha",
        type=float,
        metavar="ALPHA",
        help="most probability of a false alarm, where a test does not say; 1e-6",
    )
    group.addoption(
        "--lossless-reports",
        metavar="DIR",
        help="folder for the report of each failure, JSON and, with matplotlib, a page; without "
        "it the JSON is in the test's temporary folder",
    )


@pytest.fixture
def assert_lossless(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`fairdraft.testing.assert_lossless` with the options as defaults and a report file."""
    config = request.config
    options = {"eps": "--lossless-eps", "alpha": "--lossless-alpha"}
    defaults: dict[str, Any] = {
        name: config.getoption(option)
        for name, option in options.items()
        if config.getoption(option) is not None
    }
    folder: str | None = config.getoption("--lossless-reports")
    name = re.sub(r"[^\w.-]+", "_", request.node.nodeid).strip("_")
    count = 0

    def check(subject: Any, **arguments: Any) -> Any:
        nonlocal count
        from fairdraft.testing import assertion

        count += 1
        suffix = f"-{count}" if count > 1 else ""
        if "report_path" not in arguments:
            where = request.getfixturevalue("tmp_path") if folder is None else Path(folder)
            arguments["report_path"] = where / f"{name}{suffix}.json"
        try:
            return assertion.assert_lossless(subject, **(defaults | arguments))
        except assertion.NotLossless as error:
            if folder is not None and error.path is not None:
                _write_page(error.report, error.path.with_suffix(".html"))
            raise

    return check


def _write_page(report: Any, path: Path) -> None:
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        return
    from fairdraft.audit.report.html import write_html

    write_html(report, path)
