"""How a command ends: messages on stderr and the exit code that goes with each."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130

_PACKAGE = Path(__file__).resolve().parent.parent


class UsageFault(Exception):
    """The caller asked for something that cannot be done; the message says what to do instead."""


def say(message: str) -> None:
    """Prints one line on stderr."""
    typer.echo(message, err=True)


def raised_by_us(error: BaseException) -> bool:
    """Whether the innermost frame is this package's, which raises ValueError only for callers."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and _PACKAGE in Path(frames[-1].filename).resolve().parents


def guarded(command: Callable[..., int]) -> Callable[..., None]:
    """Turns a command that returns its exit code into one that ends the process with it."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        raise typer.Exit(exit_code(lambda: command(*args, **kwargs)))

    return run


def exit_code(body: Callable[[], int]) -> int:
    """Runs a command's body and returns its exit code, whatever happens in it."""
    try:
        return body()
    except UsageFault as fault:
        say(f"error: {fault}")
        return EXIT_USAGE
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        if isinstance(error, OSError):
            say(f"error: {_without_number(error)}")
            return EXIT_USAGE
        if raised_by_us(error):
            say(f"error: {error}")
            return EXIT_USAGE
        return _internal(error)
    except KeyboardInterrupt:
        say("interrupted")
        return EXIT_INTERRUPTED
    except typer.Exit as ending:
        return ending.exit_code
    except Exception as error:
        return _internal(error)


def _without_number(error: OSError) -> str:
    if error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def _internal(error: BaseException) -> int:
    say("".join(traceback.format_exception(error)).rstrip())
    say("internal error: this is a fault of fairdraft, please report it with the lines above")
    return EXIT_INTERNAL
