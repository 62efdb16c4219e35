"""Writes the tables of `docs/benchmarks.md` from the results beside this file.

    python bench/page.py

A table stands between `<!-- name -->` and `<!-- end -->`; everything else of the page is prose.
"""

from __future__ import annotations

import json
from typing import Any

from blocks import fill, markdown_table, rewrite
from conditions import ROOT, describe

PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "bench" / "results"


def main() -> None:
    """Fills in every block of the page."""
    rewrite(PAGE, filled)


def filled(page: str) -> str:
    """The page with each block written anew from the results."""
    decode, ops = (json.loads((RESULTS / f"{name}.json").read_text()) for name in ("decode", "ops"))
    blocks = {
        "decode-conditions": _conditions(decode),
        "decode-targets": _targets(decode),
        "decode": _decode(decode),
        "rounds": _rounds(decode),
        "ops-conditions": _conditions(ops),
        "ops-targets": _targets(ops),
        "sample": _ops(ops, "sample", ("race", "gumbel", "inverse CDF", "exponential_")),
        "verify": _ops(ops, "verify", ("verify_chain", "torch")),
    }
    return fill(page, blocks, PAGE.name)


def _conditions(document: dict[str, Any]) -> str:
    state = document["conditions"]
    return f"{describe(state)}; load after the run {document['load_average_after']}.\n"


def _targets(document: dict[str, Any]) -> str:
    rows = [
        (
            target["name"],
            f"{target['value']:.3g}",
            f"{'at least' if target['at_least'] else 'at most'} {target['bound']:.3g}",
            "yes" if target["is_met"] else "**no**",
        )
        for target in document["targets"]
    ]
    return markdown_table(("target", "measured", "wanted", "met"), rows)


def _decode(document: dict[str, Any]) -> str:
    rows = []
    for result in document["results"]:
        for name, speed in result["tokens_per_second"].items():
            length = result["acceptance_length"].get(name)
            against = result["ratios"].get(f"{name} / plain")
            rows.append(
                (
                    name,
                    *(f"{result[field]:g}" for field in ("batch", "temperature", "threads")),
                    f"{speed['median']:.0f}",
                    f"{speed['p25']:.0f} to {speed['p75']:.0f}",
                    "" if length is None else f"{length:.2f}",
                    "" if against is None else f"{against['median']:.2f}",
                )
            )
    columns = ("decoder", "batch", "T", "threads", "tokens/s", "quartiles", "tokens a round")
    return markdown_table((*columns, "over plain"), rows)


def _rounds(document: dict[str, Any]) -> str:
    rows = [
        (
            cost["mode"],
            str(cost["batch"]),
            str(cost["threads"]),
            *(f"{cost[part]['median']:.2f}" for part in ("round_ms", "forward_ms", "own_ms")),
        )
        for cost in document["round_costs"]
    ]
    columns = ("mode", "batch", "threads", "round, ms", "in the networks, ms", "own, ms")
    return markdown_table(columns, rows)


def _ops(document: dict[str, Any], op: str, names: tuple[str, ...]) -> str:
    rows = []
    for result in document["results"]:
        if result["op"] != op:
            continue
        times = {n: result["microseconds"][n]["median"] for n in (*names, "read")}
        ratios = [result["ratios"][r]["median"] for r in result["ratios"] if r.endswith(names[0])]
        mark = "" if result["dtype"] == "float32" else f" {result['dtype']}"
        rows.append(
            (
                f"{result['num_rows']} x {result['vocab_size']}{mark}",
                str(result["threads"]),
                *(f"{time:,.0f}" for time in times.values()),
                f"{min(ratios):.2f}",
            )
        )
    return markdown_table(
        ("B x V", "torch threads", *names, "read floor", "best torch over ours"), rows
    )


if __name__ == "__main__":
    main()
