"""Text on a terminal as it is generated: colored by origin, broken between words."""

from __future__ import annotations

import re
import unicodedata

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

STYLES = {"draft": "green", "residual": "bold red", "bonus": "cyan", "target": ""}
LEGEND = (
    ("draft", "accepted draft"),
    ("residual", "replacement after a rejection"),
    ("bonus", "bonus"),
    ("target", "target, no draft"),
)
PROMPT_STYLE = "dim"

_LONGEST_HELD_WORD = 24


def legend() -> Text:
    """Returns one line that names the color of each origin."""
    names = [Text(name, style=STYLES[source]) for source, name in LEGEND]
    return Text("  ·  ", style="dim").join(names)


def printable(text: str) -> str:
    """Returns the text with control characters, which could drive the terminal, made visible."""
    return "".join(
        "\ufffd" if unicodedata.category(char) == "Cc" and char not in "\n\t" else char
        for char in text
    )


class Painter:
    """Writes pieces of text to a console.

    On a terminal each piece gets the color of its origin and a word is held until it is complete,
    so that lines break between words. Anywhere else the pieces pass through unchanged.

    Args:
        console: Where to write; its width is read at every line break.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._ready = Text()
        self._word: list[tuple[str, str]] = []
        self._column = 0
        self._space = ""

    def write(self, text: str, style: str = "") -> None:
        """Takes in a piece; it shows at the next `flush`, the last word of it perhaps later."""
        if not self._console.is_terminal:
            self._console.file.write(text)
            return
        for part in re.findall(r"\n|[^\S\n]+|\S+", printable(text)):
            if part == "\n":
                self._flush_word()
                self._emit("\n", "")
                self._column, self._space = 0, ""
            elif part.isspace():
                self._flush_word()
                self._space += " " * len(part)
            else:
                self._word.append((part, style))
                if self._word_cells() > _LONGEST_HELD_WORD:
                    self._flush_word()

    def flush(self) -> None:
        """Shows what is complete, in one write."""
        if self._ready:
            self._console.print(self._ready, end="", soft_wrap=True)
            self._ready = Text()
        self._console.file.flush()

    def close(self) -> None:
        """Shows all that is held and ends the line."""
        if not self._console.is_terminal:
            self._console.file.write("\n")
        self._flush_word()
        if self._column:
            self._emit("\n", "")
        self._column, self._space = 0, ""
        self.flush()

    def _word_cells(self) -> int:
        return sum(cell_len(text) for text, _ in self._word)

    def _flush_word(self) -> None:
        if not self._word:
            return
        cells = self._word_cells()
        if self._column and self._column + len(self._space) + cells > self._console.width:
            self._emit("\n", "")
            self._column = 0
        else:
            self._emit(self._space, "")
            self._column += len(self._space)
        for text, style in self._word:
            self._emit(text, style)
        self._column += cells
        self._word, self._space = [], ""

    def _emit(self, text: str, style: str) -> None:
        self._ready.append(text, style=style)
