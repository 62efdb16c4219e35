"""The table of a measurement, by temperature."""

from __future__ import annotations

import sys
from typing import Any

from rich.box import ROUNDED
from rich.console import Console
from rich.table import Table

from fairdraft.engine.measuring import MIN_PROMPTS

#: width where there is no terminal to ask
WIDTH = 200
FIGURES = (
    *("K", "parameters", "tokens a round", "tokens/s", "quartiles", "/ plain"),
    *("rounds", "draft ms", "verify ms", "other ms"),
)


def show_table(found: dict[str, Any]) -> None:
    """Prints a measurement's document on stdout."""
    console = Console(
        file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else WIDTH
    )
    target = found["target"]
    console.print(
        f"{target['name']}, {target['parameters']:,} parameters, {target['dtype']} on "
        f"{found['device_name']}, {_count(found['threads'], 'thread')}; "
        f"{_count(found['samples'] * found['batch'], 'request')} a cell of {_length(found)}, "
        f"{_count(found['num_prompts'], 'prompt')}{_batch(found)}",
        soft_wrap=True,
    )
    console.print(speculator_table(found))
    console.print(
        f"tokens a round: interval at 95% over prompts, of which it takes {MIN_PROMPTS}; tokens/s, "
        "ratio and ms a round: medians, quartiles of the speed; verify: target and verification, "
        "prompts apart",
        style="dim",
        soft_wrap=True,
    )


def speculator_table(found: dict[str, Any]) -> Table:
    """The cells of a document, a section for each temperature."""
    table = Table(box=ROUNDED)
    table.add_column("T", no_wrap=True)
    table.add_column("speculator", overflow="fold", max_width=32)
    for name in FIGURES:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("greedy text", no_wrap=True)
    is_batch = found["batch"] > 1
    if is_batch:
        table.add_column("as alone", no_wrap=True)
    temperature = None
    for cell in found["cells"]:
        is_new = cell["temperature"] != temperature
        if is_new and temperature is not None:
            table.add_section()
        temperature = cell["temperature"]
        alone = [f"{cell['num_same_alone']} of {found['batch']}"] if is_batch else []
        table.add_row(f"{temperature:g}" if is_new else "", *_row(cell), *alone)
    return table


def _batch(found: dict[str, Any]) -> str:
    if found["batch"] == 1:
        return ""
    low, high = found["prompt_tokens"]
    return f" of {low} to {high} tokens, {found['batch']} requests at a time"


def _length(found: dict[str, Any]) -> str:
    """Tokens of a request, those that the context ended early included."""
    asked = found["num_tokens"]
    num_requests = found["samples"] * found["batch"]
    fewest = min(cell["tokens"] for cell in found["cells"]) / num_requests
    if fewest == asked:
        return _count(asked, "token")
    return f"{fewest:.4g} of {asked} tokens, where the context ended"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("s" if number != 1 else "")


def length_text(cell: dict[str, Any]) -> str:
    """A cell's acceptance length with its interval, or what an interval takes."""
    text = f"{cell['acceptance_length']:.2f}"
    if not cell["num_drafts"]:
        return text
    if cell["interval"] is None:
        return f"{text} (interval: at least {MIN_PROMPTS} prompts)"
    low, high = cell["interval"]
    return f"{text} [{low:.2f}, {high:.2f}]"


def _row(cell: dict[str, Any]) -> tuple[str, ...]:
    speed, draft = cell["tokens_per_second"], cell["draft_ms"]
    same = {True: "same", False: "DIFFERS", None: ""}[cell["same_text"]]
    return (
        cell["speculator"],
        str(cell["num_drafts"]),
        f"{cell['parameters']:,}",
        length_text(cell),
        f"{speed['median']:.1f}",
        f"{speed['p25']:.1f} to {speed['p75']:.1f}",
        f"{cell['over_plain']['median']:.2f}",
        str(cell["rounds"]),
        "in verify" if draft is None else f"{draft['median']:.2f}",
        f"{cell['verify_ms']['median']:.2f}",
        f"{cell['other_ms']['median']:.2f}",
        same,
    )
