"""Which exit code each ending has."""

from __future__ import annotations

import pytest
import typer

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
