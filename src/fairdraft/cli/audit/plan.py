"""`fairdraft audit plan`: how many tokens a verdict needs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairdraft.cli import options
from fairdraft.cli.failure import guarded

if TYPE_CHECKING:
    from rich.table import Table

    from fairdraft.stats import TokenPlan

__all__ = ["plan", "register"]

SCHEMA = "fairdraft.audit.plan/1"
#: deviations that are planned for unless told otherwise
DEVIATIONS = (0.0, 0.005, 0.01, 0.02, 0.05)

Eps = Annotated[
    float, typer.Option(help="Largest total variation over a family's cells that is let pass.")
]
Alpha = Annotated[float, typer.Option(help="Probability of a false FAIL.")]
Delta = Annotated[float, typer.Option(help="Probability of a false PASS.")]
Cells = Annotated[
    list[int] | None,
    typer.Option(help="Cells of a family; may be repeated. All families unless told otherwise."),
]
Deviation = Annotated[
    list[float] | None,
    typer.Option("--tv", help="True total variation over the cells; may be repeated."),
]


@guarded
def plan(
    eps: Eps = 0.01,
    alpha: Alpha = 1e-3,
    delta: Delta = 0.01,
    cells: Cells = None,
    tv: Deviation = None,
    json: options.Json = False,
) -> int:
    """Print how many tokens PASS and FAIL need, by size of family and deviation."""
    from fairdraft.stats import FAMILIES, plan_tokens

    declared = [family for family in FAMILIES if not family.is_diagnostic]
    widths = sorted(set(cells or (family.num_cells for family in declared)))
    deviations = sorted(set(tv or DEVIATIONS))
    plans = [
        (
            deviation,
            plan_tokens(eps=eps, alpha=alpha, delta=delta, num_cells=width, tv=deviation),
        )
        for width in widths
        for deviation in deviations
    ]
    names = {
        width: [family.name for family in declared if family.num_cells == width] for width in widths
    }
    if json:
        from fairdraft.cli.document import dumps

        asked = {"eps": eps, "alpha": alpha, "delta": delta}
        sys.stdout.write(dumps({"schema": SCHEMA, **asked, "plans": _rows(plans, names)}) + "\n")
        return 0
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    console.print(
        f"Tokens until a verdict at eps={eps:g}, alpha={alpha:g}, delta={delta:g}, counting those "
        "that a family can speak about:",
        soft_wrap=True,
    )
    console.print(_table(plans, names, eps))
    console.print(
        "PASS waits for the slowest family; FAIL comes with the fastest, or sooner where a known "
        "bug's law fits.",
        soft_wrap=True,
    )
    return 0


def register(app: typer.Typer) -> None:
    """Adds the command to an application."""
    app.command(name="plan")(plan)


def _rows(
    plans: list[tuple[float, TokenPlan]], names: dict[int, list[str]]
) -> list[dict[str, Any]]:
    return [
        {
            "num_cells": found.num_cells,
            "families": names[found.num_cells],
            "tv": deviation,
            "tokens_to_pass": found.to_pass,
            "tokens_to_fail": found.to_fail,
        }
        for deviation, found in plans
    ]


def _table(plans: list[tuple[float, TokenPlan]], names: dict[int, list[str]], eps: float) -> Table:
    from rich.box import ROUNDED
    from rich.table import Table

    table = Table(box=ROUNDED)
    table.add_column("cells", justify="right")
    table.add_column("families")
    table.add_column("true deviation", justify="right")
    table.add_column(f"PASS (eps={eps:g})", justify="right")
    table.add_column("FAIL", justify="right")
    width = None
    for deviation, found in plans:
        is_new = found.num_cells != width
        if is_new and width is not None:
            table.add_section()
        width = found.num_cells
        label = (str(width), ", ".join(names[width])) if is_new else ("", "")
        table.add_row(*label, f"{deviation:g}", _count(found.to_pass), _count(found.to_fail))
    return table


def _count(tokens: int | None) -> str:
    return "-" if tokens is None else f"{tokens:,}"
