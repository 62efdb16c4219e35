"""Options of every command that audits a subject to a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LIMITS = "Verdict"
BUDGET = "Budget"
OUTPUT = "Output"

Eps = Annotated[
    float,
    typer.Option(
        help="Largest deviation that passes: averaged total variation over a family's cells.",
        rich_help_panel=LIMITS,
    ),
]
Alpha = Annotated[
    float,
    typer.Option(
        help="Most probability of FAIL for a right sampler, whenever one stops.",
        rich_help_panel=LIMITS,
    ),
]
Delta = Annotated[
    float,
    typer.Option(
        help="Most probability of PASS for a sampler that is off by more than eps.",
        rich_help_panel=LIMITS,
    ),
]
Eps0 = Annotated[
    float | None,
    typer.Option(
        help="Numeric tolerance a token; the way of scoring sets it unless told otherwise.",
        rich_help_panel=LIMITS,
    ),
]
MaxTokens = Annotated[
    int,
    typer.Option(help="End without a verdict after so many tokens.", rich_help_panel=BUDGET),
]
MaxMinutes = Annotated[
    float | None,
    typer.Option(help="End without a verdict after so many minutes.", rich_help_panel=BUDGET),
]
State = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Keep the audit in this file, saved after every batch; go on from it if it exists.",
        rich_help_panel=OUTPUT,
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write the report with plots as one page.",
        rich_help_panel=OUTPUT,
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print the report as one JSON document and nothing else.",
        rich_help_panel=OUTPUT,
    ),
]
FirstSeed = Annotated[
    int, typer.Option("--seed", help="Seed of the first text; they count up from it.")
]
NumTokens = Annotated[int, typer.Option("--text-tokens", help="Tokens a text.", min=1)]


def texts(prompts: list[str] | None, files: list[Path] | None, lines: bool) -> list[str] | None:
    """The caller's prompts, or None for the built-in ones; standard input is read if it is named.

    Raises:
        UsageFault: As `gather_prompts`.
    """
    if not prompts and not files:
        return None
    from fairdraft.cli.prompts import gather_prompts

    return gather_prompts(prompts or [], files or [], lines=lines)
