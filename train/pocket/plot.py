"""Draws the loss curves and the costs of the shapes.

python -m train.pocket.plot train/pocket/results docs/img
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot


def draw_curves(results: Path, images: Path) -> None:
    """Held-out and training loss of both models against steps."""
    target, draft = json.loads((results / "curves.json").read_text(encoding="utf-8"))
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.8))
    for axis, record, title in (
        (axes[0], target, "target: next-token loss, nats a token"),
        (axes[1], draft, "draft: KL + weighted TV (train), next-token loss (held out)"),
    ):
        steps = [p[0] for p in record["points"]]
        axis.plot(steps, [p[2] for p in record["points"]], label="train", color="tab:gray")
        axis.plot(steps, [p[3] for p in record["points"]], label="held out", color="tab:blue")
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("steps")
        axis.grid(alpha=0.3)
        axis.legend()
    low = min(p[3] for p in target["points"])
    axes[0].set_ylim(low - 0.3, low + 2.5)
    axes[1].set_ylim(0, min(p[3] for p in draft["points"]) + 1.5)
    figure.tight_layout()
    figure.savefig(images / "pocket-loss.png", dpi=110)


def draw_shapes(results: Path, images: Path) -> None:
    """Held-out loss of the short runs against the cost of plain decoding."""
    sweep = json.loads((results / "sweep.json").read_text(encoding="utf-8"))
    timing = json.loads((results / "timing.json").read_text(encoding="utf-8"))["threads_1"]
    figure, axis = pyplot.subplots(figsize=(5.5, 3.8))
    for record in sweep:
        x, y = timing[record["name"]]["min_ms"], record["points"][-1][3]
        axis.plot(x, y, "o")
        axis.annotate(record["name"], (x, y), xytext=(5, 5), textcoords="offset points")
    axis.set_xlabel("plain decoding, ms a token (CPU, 1 thread, fp32)")
    axis.set_ylabel("held-out loss of a short run, nats")
    axis.margins(0.2)
    axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(images / "pocket-shapes.png", dpi=110)


if __name__ == "__main__":
    draw_curves(Path(sys.argv[1]), Path(sys.argv[2]))
    draw_shapes(Path(sys.argv[1]), Path(sys.argv[2]))
