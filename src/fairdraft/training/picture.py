"""The curves of a training as a picture."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from fairdraft.training.loop import Point


def check_plot_library() -> None:
    """Refuses early what could not be drawn at the end.

    Raises:
        ValueError: If matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise ValueError(
            "the curves are drawn with matplotlib, which is not installed: "
            "pip install 'fairdraft[train]'"
        )


def draw_curves(points: list[Point], path: Path, title: str) -> None:
    """Draws training loss and held-out acceptance against steps.

    Args:
        points: Of a training.
        path: A .png file.
        title: Above both.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    steps = [point.step for point in points]
    left.plot(steps, [point.loss for point in points], color="tab:gray")
    left.set_title("training loss", fontsize=10)
    drafts = len(points[-1].acceptance) if points else 0
    for draft in range(drafts):
        values = [point.acceptance[draft] for point in points]
        right.plot(steps, values, label=f"draft {draft + 1}", alpha=1 - 0.7 * draft / drafts)
    right.set_title("held-out acceptance at temperature 1, if reached", fontsize=10)
    for axis in (left, right):
        axis.set_xlabel("steps")
        axis.grid(alpha=0.3)
    if drafts:
        right.legend(fontsize=8)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=110)
