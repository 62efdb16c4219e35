"""Text on a terminal: colors by origin, breaks between words, nothing else added."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from fairdraft.cli.paint import STYLES, Painter, legend

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def painted(pieces: list[tuple[str, str]], *, width: int = 20, terminal: bool = True) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=width, color_system="standard")
    painter = Painter(console)
    for text, source in pieces:
        painter.write(text, STYLES[source])
    painter.close()
    return file.getvalue()


def test_text_passes_unchanged_where_there_is_no_terminal() -> None:
    pieces = [("a  b\n", "draft"), ("c" * 50, "bonus"), ("\x1b[31m", "residual")]
    assert painted(pieces, terminal=False) == "a  b\n" + "c" * 50 + "\x1b[31m\n"


def test_each_origin_has_its_color() -> None:
    shown = painted([("one", "draft"), (" two", "residual"), (" six", "bonus"), (" t", "target")])
    assert "\x1b[32mone" in shown and "\x1b[1;31mtwo" in shown and "\x1b[36msix" in shown
    assert ANSI.sub("", shown) == "one two six t\n"


def test_word_of_two_origins_keeps_both_colors_and_one_line() -> None:
    shown = painted([("aaaa bbbb cccc dd", "draft"), ("eeee", "residual")], width=20)
    assert ANSI.sub("", shown) == "aaaa bbbb cccc\nddeeee\n"
    assert "\x1b[32mdd" in shown and "\x1b[1;31meeee" in shown


@pytest.mark.parametrize("width", [10, 17, 30])
def test_lines_break_between_words_only(width: int) -> None:
    text = "the quick brown fox jumps over the lazy dog and is gone"
    pieces = [(text[i : i + 3], "draft") for i in range(0, len(text), 3)]
    lines = ANSI.sub("", painted(pieces, width=width)).splitlines()
    assert " ".join(lines) == text
    assert max(len(line) for line in lines) <= width


def test_newlines_and_indents_stay() -> None:
    assert ANSI.sub("", painted([("a\n\n  b ", "draft"), ("c", "draft")])) == "a\n\n  b c\n"


def test_wide_characters_count_twice() -> None:
    shown = ANSI.sub("", painted([("\u4f60\u597d \u4e16\u754c", "draft")], width=8))
    assert shown == "\u4f60\u597d\n\u4e16\u754c\n"


def test_control_characters_of_a_model_do_not_reach_the_terminal() -> None:
    shown = ANSI.sub("", painted([("a\x1b[2Jb\x07", "draft")]))
    assert shown == "a\ufffd[2Jb\ufffd\n"


def test_long_word_does_not_wait_for_its_end() -> None:
    file = io.StringIO()
    painter = Painter(Console(file=file, force_terminal=True, width=80))
    painter.write("x" * 30, "")
    painter.flush()
    assert "x" * 30 in file.getvalue()


def test_legend_names_every_origin() -> None:
    assert legend().plain.count("\u00b7") == len(STYLES) - 1
