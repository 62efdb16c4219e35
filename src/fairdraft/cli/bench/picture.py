"""The picture of a measurement: tokens a round, tokens a second, and where a round's time goes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_PARTS = {"draft_ms": "draft", "verify_ms": "target and verification", "other_ms": "other"}
_COLORS = ("tab:orange", "tab:blue", "lightgray")


def draw(found: dict[str, Any], path: Path) -> None:
    """Draws a measurement's document.

    Args:
        found: As `document` gives it.
        path: A .png or .svg file; its folder is made.
    """
    temperatures = list(dict.fromkeys(cell["temperature"] for cell in found["cells"]))
    names = list(dict.fromkeys(cell["speculator"] for cell in found["cells"]))
    with matplotlib.rc_context({"svg.hashsalt": "fairdraft", "font.size": 9}):
        figure = Figure(figsize=(13, 1.6 + 0.42 * len(names)), layout="constrained")
        FigureCanvasAgg(figure)
        lengths, speeds, times = figure.subplots(1, 3)
        height = 0.8 / len(temperatures)
        for place, temperature in enumerate(temperatures):
            cells = [cell for cell in found["cells"] if cell["temperature"] == temperature]
            at = [names.index(cell["speculator"]) + (place + 0.5) * height - 0.4 for cell in cells]
            shade = {"color": f"C{place}", "height": 0.9 * height, "label": f"T = {temperature:g}"}
            lengths.barh(at, [c["acceptance_length"] for c in cells], xerr=_lengths(cells), **shade)
            middle = [cell["tokens_per_second"]["median"] for cell in cells]
            speeds.barh(at, middle, xerr=_quartiles(cells), **shade)
        _draw_times(times, [c for c in found["cells"] if c["temperature"] == temperatures[-1]])
        lengths.set_xlabel("tokens a round (95% over prompts)")
        speeds.set_xlabel("tokens/s (median, quartiles)")
        times.set_xlabel(f"ms a round at T = {temperatures[-1]:g} (medians)")
        for axis in (lengths, speeds, times):
            axis.set_yticks(range(len(names)), names if axis is lengths else [""] * len(names))
            axis.invert_yaxis()
            axis.grid(axis="x", alpha=0.3)
            axis.legend(fontsize=7)
        target = found["target"]
        figure.suptitle(
            f"{target['name']} on {found['device_name']}, {target['dtype']}, threads "
            f"{found['threads']}, commit {found['conditions']['commit']}",
            fontsize=10,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_times(axis: Any, cells: list[dict[str, Any]]) -> None:
    left = [0.0] * len(cells)
    for (part, label), color in zip(_PARTS.items(), _COLORS, strict=True):
        widths = [0.0 if cell[part] is None else cell[part]["median"] for cell in cells]
        axis.barh(range(len(cells)), widths, left=left, height=0.7, color=color, label=label)
        left = [begin + width for begin, width in zip(left, widths, strict=True)]


def _lengths(cells: list[dict[str, Any]]) -> list[list[float]]:
    middle = [cell["acceptance_length"] for cell in cells]
    # no whisker where there is no interval: one of length 0 would say that it is certain
    ends = [cell["interval"] or (math.nan, math.nan) for cell in cells]
    return [
        [m - low for m, (low, _) in zip(middle, ends, strict=True)],
        [high - m for m, (_, high) in zip(middle, ends, strict=True)],
    ]


def _quartiles(cells: list[dict[str, Any]]) -> list[list[float]]:
    speeds = [cell["tokens_per_second"] for cell in cells]
    return [
        [s["median"] - s["p25"] for s in speeds],
        [s["p75"] - s["median"] for s in speeds],
    ]
