"""Runs the command line inside the test's process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Result:
    """How a command ended: exit code, stdout, stderr."""

    code: int
    out: str
    err: str


Cli = Callable[..., Result]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`cli("generate", "-k", "2")` runs `fairdraft generate -k 2`."""
    from fairdraft.cli import main

    def run(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["fairdraft", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ending:
            main()
        out, err = capsys.readouterr()
        code = ending.value.code
        assert code is None or isinstance(code, int)
        return Result(code or 0, out, err)

    return run


@pytest.fixture
def piped_stdin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[[bytes], None]]:
    """`piped_stdin(b"text")` makes bytes arrive on standard input."""
    opened = []

    def give(data: bytes) -> None:
        path = tmp_path / "stdin"
        path.write_bytes(data)
        opened.append(path.open(encoding="utf-8"))
        monkeypatch.setattr(sys, "stdin", opened[-1])

    yield give
    for file in opened:
        file.close()
