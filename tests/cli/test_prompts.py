"""Prompts from every source, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairdraft.cli.failure import UsageFault
from fairdraft.cli.prompts import DEFAULT_PROMPT, gather_prompts


def test_default_prompt_stands_in_where_nothing_is_given() -> None:
    assert gather_prompts([], []) == [DEFAULT_PROMPT]


def test_prompts_keep_their_order_and_spaces() -> None:
    assert gather_prompts([" a", "b "], []) == [" a", "b "]


def test_file_is_one_prompt_without_its_last_newline(tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes("One\nzwei \u00e9\n\n".encode())
    assert gather_prompts([], [file]) == ["One\nzwei \u00e9\n"]


def test_lines_are_prompts_and_blank_ones_are_not(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\n  \ntwo\n")
    assert gather_prompts([], [file], lines=True) == ["one", "two"]


def test_piped_standard_input_is_the_prompt(piped_stdin) -> None:
    piped_stdin(b"from a pipe\r\n")
    assert gather_prompts([], []) == ["from a pipe"]


def test_dash_is_standard_input(piped_stdin) -> None:
    piped_stdin(b"dash")
    assert gather_prompts([], [Path("-")]) == ["dash"]


def test_prompt_option_wins_over_standard_input(piped_stdin) -> None:
    piped_stdin(b"unread")
    assert gather_prompts(["given"], []) == ["given"]


def test_empty_standard_input_is_refused(piped_stdin) -> None:
    piped_stdin(b"")
    with pytest.raises(UsageFault, match="standard input is empty"):
        gather_prompts([], [])


def test_bad_sources_are_refused_by_name(tmp_path: Path) -> None:
    binary, blank = tmp_path / "binary", tmp_path / "blank"
    binary.write_bytes(b"ok\xff")
    blank.write_text("\n\n")
    for texts, files, lines, message in (
        ([""], [], False, "--prompt is empty"),
        (["a\udcff"], [], False, "--prompt holds bytes that are not UTF-8"),
        (["a"], [binary], False, "leave one out"),
        ([], [binary], False, "not UTF-8 at byte 2"),
        ([], [blank], True, "no line that is not blank"),
        ([], [tmp_path / "missing"], False, "No such file"),
        ([], [tmp_path], False, "Is a directory"),
    ):
        with pytest.raises(UsageFault, match=message):
            gather_prompts(texts, files, lines=lines)
