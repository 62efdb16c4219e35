"""`fairdraft info`: what will run here, and why."""

from __future__ import annotations

import sys
from dataclasses import asdict

import typer

from fairdraft.cli import options
from fairdraft.cli.failure import guarded


@guarded
def info(json: options.Json = False) -> int:
    """Show versions, devices, backends and models, and what will run and why."""
    from fairdraft.cli.inventory import SECTIONS

    if json:
        from fairdraft.cli.document import dumps

        value = {title: [asdict(entry) for entry in find()] for title, find in SECTIONS.items()}
        sys.stdout.write(dumps(value) + "\n")
        return 0
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False, markup=False)
    for title, find in SECTIONS.items():
        console.print(title, style="bold")
        for entry in find():
            mark = Text("yes" if entry.ready else "no ", style="green" if entry.ready else "yellow")
            line = Text(f"  {entry.name:<13} ") + mark + Text(f"  {entry.reason}")
            console.print(line, soft_wrap=True)
    return 0


def register(app: typer.Typer) -> None:
    """Adds the command to an application."""
    app.command(name="info")(info)
