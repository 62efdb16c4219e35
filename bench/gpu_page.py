"""What `gpu_ops.py` measured, as a table, as a picture and as blocks of `docs/gpu.md`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blocks import fill, markdown_table, rewrite
from conditions import ROOT

PAGE = ROOT / "docs" / "gpu.md"
#: median microseconds at B = 1, 8, 64, 256; one earlier run of each library's own kernels on the
#: same kind of card (H200, V = 151,936, K = 5), not repeated when ours are timed
PEER_BATCHES = (1, 8, 64, 256)
PEERS: dict[str, dict[str, tuple[float, ...]]] = {
    "sample": {
        "SGLang 0.5.23": (4.5, 10, 44, 162),
        "FlashInfer 0.7.4": (30, 31, 32, 60),
    },
    "sample bf16": {
        "vLLM 0.33": (16, 20, 48, 163),
        "SGLang 0.5.23": (4.6, 9.1, 44, 164),
    },
    "token": {
        "vLLM 0.33": (20, 31, 145, 529),
        "SGLang 0.5.23": (14, 32, 158, 586),
        "FlashInfer 0.7.4": (80, 130, 497, 1542),
    },
    "block": {"vLLM 0.33": (28, 44, 210, 766)},
    "point mass": {"vLLM 0.33": (14, 24, 100, 350), "SGLang 0.5.23": (10, 21, 95, 347)},
}
#: panels of the picture, and what each line is called there
PANELS: dict[str, dict[str, str]] = {
    "sample, float32": {
        "sample": "race",
        "sample gumbel": "flat Gumbel",
        "sample top-k 50 top-p 0.9": "race, top-k 50 and top-p 0.9",
    },
    "sample, bfloat16": {"sample bf16": "race", "sample bf16 portable": "race, portable"},
    "verify, rule token": {
        "token": "drafts near p",
        "token, p = q": "all accepted",
        "token, no statistics": "near p, no statistics of q",
    },
    "verify, rule block": {"block": "drafts near p", "block, p = q": "all accepted"},
    "verify, point-mass drafts": {"point mass": "drafts of P = 0.83"},
}
OURS = ("tab:blue", "tab:cyan", "navy")
PEER_MARKS = {
    "vLLM 0.33": ("s", "tab:red"),
    "SGLang 0.5.23": ("D", "tab:orange"),
    "FlashInfer 0.7.4": ("^", "tab:green"),
}


def describe(document: dict[str, Any]) -> str:
    """One line that says what the figures depend on."""
    state = document["conditions"]
    return (
        f"{state['device']}, {state['memory_gib']} GiB, L2 {state['l2_mib']} MiB; Python "
        f"{state['python']}, torch {state['torch']}, CUDA {state['cuda']}, Triton "
        f"{state['triton']}; commit {state['commit']}; V\u00a0=\u00a0{document['vocab_size']:,}, "
        f"K\u00a0=\u00a0{document['num_drafts']}, medians of {document['replays']} replays"
    )


def table(document: dict[str, Any]) -> str:
    """One line a case and batch, in Markdown."""
    names = list(dict.fromkeys(result["case"] for result in document["results"]))
    chosen = sorted(
        document["results"], key=lambda result: (names.index(result["case"]), result["batch"])
    )
    columns = ("case", "B", "accepted", "us", "least to most", "floor, us", "over floor", "MB")
    return markdown_table((*columns, "others, us"), [_cells(result) for result in chosen])


def _cells(result: dict[str, Any]) -> tuple[str, ...]:
    times, accepted = result["microseconds"], result["accepted"]
    return (
        result["case"],
        f"{result['batch']}{'' if result['is_cold'] else ' (cached)'}",
        "" if accepted is None else f"{accepted:.2f}",
        f"{times['median']:.1f}",
        f"{times['min']:.1f} to {times['max']:.1f}",
        f"{result['floor']['median']:.1f}",
        f"{result['over_floor']:.2f}",
        f"{result['bytes'] / 1e6:.1f}",
        _others(result["case"], result["batch"]),
    )


def _others(case: str, batch: int) -> str:
    if batch not in PEER_BATCHES:
        return ""
    at = PEER_BATCHES.index(batch)
    peers = PEERS.get(case, {})
    return ", ".join(f"{name.split()[0]} {times[at]:g}" for name, times in peers.items())


def fill_page(document: dict[str, Any]) -> None:
    """Writes conditions, picture and table into `docs/gpu.md`, and the picture beside it."""
    draw(document, PAGE.with_suffix(".svg"))
    rewrite(PAGE, lambda page: filled(page, document))


def filled(page: str, document: dict[str, Any]) -> str:
    """The page with each block written anew."""
    blocks = {
        "gpu-conditions": describe(document) + ".\n",
        "gpu-picture": "![Microseconds a call against batch, ours and others'](gpu.svg)\n",
        "gpu-table": table(document),
    }
    return fill(page, blocks, PAGE.name)


def draw(document: dict[str, Any], path: Path) -> None:
    """Microseconds against batch, a panel for each op."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "fairdraft"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(12.5, 7.6), sharex=True)
    panels = axes.flat
    for axis, (title, lines) in zip(panels, PANELS.items(), strict=False):
        _draw_panel(axis, title, lines, document)
    # the sixth place holds the legend of what all panels share
    _draw_legend(panels[-1], describe(document))
    figure.tight_layout(w_pad=1.6, h_pad=1.6)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
    plt.close(figure)


def _draw_panel(axis: Any, title: str, lines: dict[str, str], document: dict[str, Any]) -> None:
    results = [result for result in document["results"] if result["case"] in lines]
    first = next(iter(lines))
    for name, times in PEERS.get(first, {}).items():
        mark, color = PEER_MARKS[name]
        axis.plot(PEER_BATCHES, times, mark, color=color, **_mark_style(mark))
    floors = sorted({(r["batch"], r["floor"]["median"]) for r in results})
    if floors:
        axis.plot(*zip(*floors, strict=True), color="black", linestyle=":", linewidth=1.4)
    for (case, label), color in zip(lines.items(), OURS, strict=False):
        chosen = sorted((r for r in results if r["case"] == case), key=lambda r: r["batch"])
        medians = [r["microseconds"]["median"] for r in chosen]
        batches = [r["batch"] for r in chosen]
        axis.plot(batches, medians, "o-", color=color, markersize=4, linewidth=1.8, label=label)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(PEER_BATCHES, [str(batch) for batch in PEER_BATCHES])
    axis.minorticks_off()
    low, high = axis.get_ylim()
    high *= 2 if len(lines) > 1 else 1  # room for the legend
    axis.set_ylim(low, high)
    ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000) if low <= t <= high]
    axis.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.tick_params(labelbottom=True)
    axis.grid(color="0.9")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title(title, fontsize=11)
    axis.set_xlabel("rows" if first.startswith("sample") else "requests of 5 drafts")
    axis.set_ylabel("microseconds a call")
    axis.legend(fontsize=8.5, frameon=False, loc="upper left", title="ours", title_fontsize=8.5)


def _mark_style(mark: str) -> dict[str, Any]:
    """Squares are large and hollow, so that a mark at the same place shows."""
    return {"fillstyle": "none", "markersize": 9} if mark == "s" else {"markersize": 5.5}


def _draw_legend(axis: Any, caption: str) -> None:
    from textwrap import fill as wrap

    axis.axis("off")
    axis.plot([], [], "o-", color=OURS[0], markersize=4, label="ours, fast unless it says portable")
    axis.plot([], [], color="black", linestyle=":", label="floor: reading the rows of p once")
    for name, (mark, color) in PEER_MARKS.items():
        label = f"{name}, an earlier run"
        axis.plot([], [], mark, color=color, **_mark_style(mark), label=label)
    axis.legend(fontsize=10, frameon=False, loc="upper left", borderaxespad=0)
    axis.text(
        0.02, 0.08, wrap(caption, 52), fontsize=8.5, color="dimgray", transform=axis.transAxes
    )
