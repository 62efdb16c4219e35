"""Charts of the figures, for the documentation; the only part that needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402

OURS, THEIRS = "tab:blue", "tab:gray"


def draw_decode(results: list[dict[str, Any]], caption: str, path: Path) -> None:
    """Tokens a second by decoder, a panel for each batch size at temperature 1."""
    threads = results[0]["threads"]
    chosen = [r for r in results if r["threads"] == threads and r["temperature"] == 1.0]
    figure, axes = plt.subplots(1, len(chosen), figsize=(4 * len(chosen), 4.2), squeeze=False)
    for axis, result in zip(axes[0], chosen, strict=True):
        speeds = result["tokens_per_second"]
        names = list(speeds)
        middle = [speeds[name]["median"] for name in names]
        below = [speeds[name]["median"] - speeds[name]["p25"] for name in names]
        above = [speeds[name]["p75"] - speeds[name]["median"] for name in names]
        colors = [THEIRS if name.startswith("hf") else OURS for name in names]
        axis.barh(names, middle, xerr=[below, above], color=colors)
        axis.invert_yaxis()
        axis.set_xlabel("tokens/s (median, quartiles)")
        axis.set_title(f"batch {result['batch']}, T = 1, threads {threads}")
    _save(figure, caption, path)


def draw_ops(results: list[dict[str, Any]], caption: str, path: Path) -> None:
    """Time over the read floor against size, for both ops."""
    threads = results[0]["threads"]
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4))
    for axis, op in zip(axes, ("sample", "verify"), strict=True):
        chosen = sorted(
            (r for r in results if (r["op"], r["threads"], r["dtype"]) == (op, threads, "float32")),
            key=lambda r: (r["num_rows"] * r["vocab_size"], r["vocab_size"]),
        )
        labels = [f"{r['num_rows']}x{r['vocab_size']}" for r in chosen]
        for name in chosen[0]["microseconds"]:
            times = [r["microseconds"][name]["median"] for r in chosen]
            axis.plot(labels, times, marker="o", label=name)
        axis.set_yscale("log")
        axis.set_title(f"{op}, threads {threads}")
        axis.set_ylabel("microseconds a call")
        axis.tick_params(axis="x", rotation=40)
        axis.legend()
    _save(figure, caption, path)


def draw_rules(results: list[dict[str, Any]], caption: str, path: Path) -> None:
    """Share of rounds whose first i drafts all stand, by rule, a panel for each temperature."""
    temperatures = list(dict.fromkeys(result["temperature"] for result in results))
    figure, axes = plt.subplots(1, len(temperatures), figsize=(11, 4.4), sharey=True)
    colors = {"token": OURS, "block": "tab:orange", "common_noise": "tab:green"}
    for axis, temperature in zip(axes, temperatures, strict=True):
        for k, result in enumerate(r for r in results if r["temperature"] == temperature):
            mean, error = result["at_least"]
            # side by side, so that no interval hides another
            places = [i + 1 + 0.12 * (k - 1) for i in range(len(mean))]
            color, name = colors[result["rule"]], result["rule"]
            bars = [1.96 * each for each in error]
            axis.errorbar(places, mean, bars, fmt="o", color=color, capsize=3, label=name)
            axis.plot(places, result["theory"][0], "_", color=color, markersize=16)
            if name == "common_noise":
                axis.plot(places, result["bound"], ":", color=color, label="(1 - TV) / (1 + TV)")
            elif name == "token":
                axis.plot(places, result["bound"], ":", color="dimgray", label="most of any rule")
        axis.set_title(f"pocket pair, T = {temperature:g}")
        axis.set_xlabel("i")
        axis.set_xticks(range(1, len(mean) + 1))
        axis.set_ylim(0, 1)
    axes[0].set_ylabel("rounds whose first i drafts stand (dash: theory)")
    axes[0].legend()
    _save(figure, caption, path)


def _save(figure: Any, caption: str, path: Path) -> None:
    figure.text(0.01, 0.01, fill(caption, 150), fontsize=7, color="dimgray")
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
