"""Blocks of a page that a script fills in; everything else of the page is prose.

A block stands between `<!-- name -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

__all__ = ["fill", "markdown_table", "rewrite"]


def fill(page: str, blocks: Mapping[str, str], name: str) -> str:
    """The page with each block written anew.

    Raises:
        ValueError: If a block is not there exactly once; `name` is the page's, for the message.
    """
    for block, text in blocks.items():
        pattern = re.compile(rf"(<!-- {block} -->\n).*?(<!-- end -->)", re.DOTALL)
        page, count = pattern.subn(lambda match, text=text: match[1] + text + match[2], page)
        if count != 1:
            raise ValueError(f"{name} has {count} blocks named {block}; it needs one")
    return page


def rewrite(path: Path, filled: Callable[[str], str]) -> None:
    """Writes a page anew: its text as `filled` gives it."""
    path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")


def markdown_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, are_numbers: bool = True
) -> str:
    """A table in Markdown; columns of numbers, all but the first, are set to the right."""
    rule = ["---", *["---:" if are_numbers else "---"] * (len(columns) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in [columns, rule, *rows])
