"""The recorded run of the equivalence matrix, kept cell by cell."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matrix_cells
from conditions import conditions

__all__ = ["Record", "document"]

#: what names a cell
NAMES = ("parameter", "rule", "q", "fault")


def document(
    settings: dict[str, Any], runs: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Cells, and whether all are as expected.

    Args:
        settings: What they share.
        runs: Conditions, seconds, processes and number of cells of each run that they come from.
        found: Results of cells.
    """
    return {
        **settings,
        "is_correct": all(result["as_expected"] for result in found),
        "runs": list(runs),
        "texts": sum(result["num_trials"] for result in found),
        "cells": [result for result in found if result["fault"] is None],
        "faults": [result for result in found if result["fault"] is not None],
    }


class Record:
    """A file of cells, of which a later run may add some or take the place of some."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        """Takes the file, and what all of its cells must share."""
        self.path = path
        self.settings = settings
        self._found: dict[tuple[str, ...], dict[str, Any]] = {}
        self._runs: list[dict[str, Any]] = []

    def read(self) -> None:
        """Reads what is recorded, to go on from there.

        Raises:
            ValueError: If it was recorded with other settings.
        """
        if not self.path.exists():
            return
        recorded = json.loads(self.path.read_text(encoding="utf-8"))
        for name, value in self.settings.items():
            if recorded[name] != value:
                raise ValueError(
                    f"{self.path.name} has {name} {recorded[name]!r}, not {value!r}: ask for that, "
                    "or record all cells, without --only and --missing"
                )
        self._runs = recorded["runs"]
        self._found = {_name(cell): cell for cell in recorded["cells"] + recorded["faults"]}

    def has(self, cell: dict[str, Any]) -> bool:
        """Whether a cell is recorded."""
        return _name(cell) in self._found

    def keeper(self, jobs: int) -> Callable[[dict[str, Any], float], None]:
        """What keeps the results of one run: called with each, and the seconds so far."""
        run = {"conditions": conditions(), "seconds": 0.0, "jobs": jobs, "num_cells": 0}
        self._runs.append(run)

        def keep(result: dict[str, Any], seconds: float) -> None:
            self._found[_name(result)] = result
            run["num_cells"] += 1
            run["seconds"] = round(seconds, 1)
            self.path.write_text(_lines(self.whole()), encoding="utf-8")

        return keep

    def whole(self) -> dict[str, Any]:
        """All cells, in the order of the matrix."""
        order = [_name(vars(cell)) for cell in matrix_cells.cells(matrix_cells.PARAMETERS)]
        found = [self._found[name] for name in order if name in self._found]
        present = {result["parameter"] for result in found}
        left_out = {n: why for n, why in matrix_cells.left_out().items() if n not in present}
        return document(self.settings, self._runs, found) | {"left_out": left_out}


def _name(cell: dict[str, Any]) -> tuple[str, ...]:
    return tuple(cell[name] for name in NAMES)


def _lines(document: dict[str, Any]) -> str:
    """The document as JSON, a cell a line."""
    parts = []
    for name, value in document.items():
        text = json.dumps(value)
        if isinstance(value, list):
            text = "[\n" + ",\n".join(f"  {json.dumps(cell)}" for cell in value) + "\n ]"
        parts.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
