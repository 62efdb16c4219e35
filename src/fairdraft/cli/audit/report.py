"""`fairdraft audit report`: shows a report that was saved before, or draws its page anew."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fairdraft.cli.failure import guarded, say

__all__ = ["register", "report"]

File = Annotated[Path, typer.Argument(metavar="FILE", help="JSON report of an audit.")]
Html = Annotated[
    Path | None, typer.Option(metavar="PATH", help="Write the page with plots to this file, too.")
]


@guarded
def report(file: File, html: Html = None) -> int:
    """Show a saved report, with the exit code that its audit ended with."""
    from rich.console import Console

    from fairdraft.audit.report import Report
    from fairdraft.audit.report.table import print_report

    found = Report.read(file)
    print_report(found, Console(file=sys.stdout, highlight=False))
    if html is not None:
        from fairdraft.audit.report.html import write_html

        write_html(found, html)
        say(f"wrote {html}")
    return found.exit_code


def register(app: typer.Typer) -> None:
    """Adds the command to an application."""
    app.command(name="report")(report)
