"""`fairdraft audit faults`: plants known mistakes one by one, and the audit must find each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from fairdraft.cli import options
from fairdraft.cli.audit import rows
from fairdraft.cli.compiling import compiling_is_said
from fairdraft.cli.failure import UsageFault, guarded

if TYPE_CHECKING:
    from rich.console import Console

    from fairdraft.audit.faults.case import Case
    from fairdraft.audit.faults.run import Catalogue
    from fairdraft.audit.faults.trial import Outcome

__all__ = ["faults", "register"]

Only = Annotated[
    list[str] | None,
    typer.Option(help="Run this row alone; may be given again.", metavar="NAME"),
]
List = Annotated[bool, typer.Option("--list", help="Print the catalogue, and run nothing.")]
Seed = Annotated[int, typer.Option(help="Another integer gives other texts.")]


@guarded
def faults(
    only: Only = None,
    list_: List = False,
    seed: Seed = 0,
    jobs: rows.Jobs = None,
    json: options.Json = False,
) -> int:
    """Plant known mistakes one by one; the audit must find each within its planned tokens.

    A fault is an override of one function of the production path. Clean rows,
    with nothing planted, must not fail. The table goes to stdout, progress to
    stderr. Exit codes: 0 if every row came to what was expected of it, else 1.
    """
    from rich.console import Console

    from fairdraft.audit.faults import find_cases
    from fairdraft.audit.faults.document import case_document, document
    from fairdraft.audit.faults.table import MIN_WIDTH, case_view, catalogue_view
    from fairdraft.cli.document import dumps, library_versions

    try:
        cases = find_cases(only or ())
    except ValueError as error:
        raise UsageFault(f"--only: {error}") from None
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = MIN_WIDTH
    if list_:
        if json:
            sys.stdout.write(dumps(case_document(cases)) + "\n")
        else:
            console.print(case_view(cases))
        return 0
    found = _run(rows.opened(), cases, seed, min(rows.settled(jobs), len(cases)))
    if json:
        sys.stdout.write(dumps({**document(found), "versions": library_versions()}) + "\n")
    else:
        console.print(catalogue_view(found))
    return found.exit_code


@compiling_is_said()
def _run(notes: Console, cases: Sequence[Case], seed: int, jobs: int) -> Catalogue:
    from fairdraft.audit.faults import run_catalogue

    with rows.shown(notes, len(cases), jobs, _said, transient=True) as on_progress:
        return run_catalogue(cases, seed=seed, jobs=jobs, on_progress=on_progress)


def register(app: typer.Typer) -> None:
    """Adds the command to an application."""
    app.command(name="faults")(faults)


def _said(outcome: Outcome) -> str:
    mark = "NOT AS EXPECTED: " if outcome.surprises else ""
    clauses = "; ".join(outcome.surprises) or str(outcome.verdict.state)
    return f"{outcome.case.name}: {mark}{clauses}"
