"""What a benchmark says: tables for a person, then one line of JSON for a program."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn


@dataclass(frozen=True)
class Target:
    """A figure that was promised: `value` has to be at least, or at most, `bound`."""

    name: str
    value: float
    bound: float
    at_least: bool = True

    @property
    def is_met(self) -> bool:
        """Whether the figure keeps the promise."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound


class CheckError(Exception):
    """A result that is timed must be right first, and it is not."""


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table; the first column is text, the others are figures."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else 200
    Console(width=width, highlight=False).print(table)


def show_targets(targets: Sequence[Target]) -> None:
    """Prints the promised figures and whether they are kept."""
    rows = [
        (
            target.name,
            f"{target.value:.3g}",
            f"{'>=' if target.at_least else '<='} {target.bound:g}",
            "yes" if target.is_met else "NO",
        )
        for target in targets
    ]
    show_table("Targets", ("target", "measured", "wanted", "met"), rows)


def targets_json(targets: Sequence[Target]) -> list[dict[str, Any]]:
    """The targets as data."""
    return [{**asdict(target), "is_met": target.is_met} for target in targets]


def refuse(benchmark: str, error: CheckError) -> NoReturn:
    """Ends without figures: what is wrong is not timed."""
    print(f"{benchmark}: not timed, {error}", file=sys.stderr)
    print(json.dumps({"benchmark": benchmark, "is_correct": False, "error": str(error)}))
    raise SystemExit(1)


def finish(document: dict[str, Any], raw: dict[str, Any], path: Path | None) -> None:
    """Writes document and raw samples to `path`, and the document as the last line of stdout."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**document, "raw": raw}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document), flush=True)
