"""Which exit code each ending has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer

import fairdraft
from fairdraft.cli.failure import UsageFault, exit_code


def fail(error: BaseException) -> int:
    raise error


def refuse_temperature() -> int:
    from fairdraft.engine import SamplingParams

    SamplingParams(temperature=-1.0)
    return 0


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (lambda: 0, 0, ""),
        (lambda: 1, 1, ""),
        (lambda: fail(UsageFault("give less")), 2, "error: give less"),
        (lambda: fail(FileNotFoundError(2, "No such file", "x")), 2, "error: x: No such file"),
        (lambda: fail(OSError(28, "No space left")), 2, "error: No space left"),
        (lambda: fail(OSError("said by a library")), 2, "error: said by a library"),
        (refuse_temperature, 2, "error: temperature=-1.0"),
        (lambda: fail(typer.Exit(3)), 3, ""),
        (lambda: fail(KeyboardInterrupt()), 130, "interrupted"),
        (lambda: fail(ValueError("from a library")), 70, "please report"),
        (lambda: fail(RuntimeError("shapes")), 70, "RuntimeError: shapes"),
        (lambda: fail(AssertionError("ours")), 70, "internal error"),
    ],
)
def test_ending_has_its_code_and_message(body, code: int, message: str, capsys) -> None:
    assert exit_code(body) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err if message else err == ""


#: runs the command line with the shell's redirections, and Ctrl-C where typer is imported if asked
START = """
import sys
sys.path.insert(0, {src!r})
sys.argv = ["fairdraft", *sys.argv[1:]]
class Interrupting:
    def find_spec(name, path, target=None):
        if name == "typer":
            raise KeyboardInterrupt
if sys.argv[1] == "interrupted":
    sys.meta_path.insert(0, Interrupting)
from fairdraft.cli import main
main()
"""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("info >&-", 2, "error: standard output is closed"),
        ("--help > /dev/full", 2, "error: No space left on device"),
        ("convert none out 2>&-", 2, ""),
        ("interrupted", 130, "interrupted"),
    ],
)
def test_streams_that_cannot_be_written_and_an_early_interruption(
    arguments: str, code: int, message: str
) -> None:
    start = START.format(src=str(Path(fairdraft.__file__).resolve().parent.parent))
    shell = ["sh", "-c", f'"$0" -c "$1" {arguments}', sys.executable, start]
    result = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (code, "")
    lines = result.stderr.splitlines()
    assert [line.startswith(message) for line in lines] == [True] * bool(message)


def test_a_folder_that_cannot_be_made_is_refused_before_the_corpus_is_written(cli) -> None:
    result = cli("train", "mtp", "--data", "self", "-o", f"{__file__}/head")
    assert result.code == 2 and result.err.endswith("Not a directory\n")
    assert "sampled" not in result.err
