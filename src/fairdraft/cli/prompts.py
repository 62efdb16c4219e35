"""Where prompts come from: --prompt, --file, standard input, or the default."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from fairdraft.cli.failure import UsageFault

DEFAULT_PROMPT = "Once upon a time"
DEFAULT_QUESTION = "Tell me a story about a fox and a lighthouse."


def gather_prompts(
    texts: Sequence[str],
    files: Sequence[Path],
    *,
    lines: bool = False,
    default: str = DEFAULT_PROMPT,
) -> list[str]:
    """Returns the prompts of a call, at least one and none of them empty.

    Args:
        texts: From --prompt.
        files: From --file; one prompt each, "-" is standard input.
        lines: Every line that is not blank is a prompt of its own.
        default: What stands in where nothing is given.

    Raises:
        UsageFault: If a prompt is empty, a file cannot be read, or both sources are given.
    """
    if texts and files:
        raise UsageFault("--prompt and --file are both given; leave one out")
    if texts:
        named = [("--prompt", text) for text in texts]
    elif files:
        named = [(f"--file {file}", _read(file)) for file in files]
    elif stdin_is_given():
        named = [("standard input", _without_last_newline(_read_stdin()))]
    else:
        named = [("the default prompt", default)]
    if lines:
        named = [
            (f"{name}, line {number}", line)
            for name, text in named
            for number, line in enumerate(text.splitlines(), start=1)
            if line.strip()
        ]
        if not named:
            raise UsageFault("--lines found no line that is not blank; give at least one prompt")
    for name, text in named:
        if not text:
            raise UsageFault(f"{name} is empty; give at least one character to continue")
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise UsageFault(f"{name} holds bytes that are not UTF-8; convert it first")
    return [text for _, text in named]


def stdin_is_given() -> bool:
    """Whether standard input is a pipe, a file or a socket; not a terminal, not the null device."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _read(file: Path) -> str:
    if str(file) == "-":
        return _without_last_newline(_read_stdin())
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageFault(f"--file {file}: {error.strerror}; give a file that exists") from error
    return _without_last_newline(_decode(data, f"--file {file}"))


def _read_stdin() -> str:
    return _decode(sys.stdin.buffer.read(), "standard input")


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageFault(f"{name} is not UTF-8 at byte {error.start}; convert it first") from error


def _without_last_newline(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")
