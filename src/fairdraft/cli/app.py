"""The typer application. Everything heavy is imported inside the commands."""

from __future__ import annotations

import typer

import fairdraft

app = typer.Typer(
    name="fairdraft",
    help="Exact speculative decoding for PyTorch, with proof.",
    no_args_is_help=True,
    add_completion=False,
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"fairdraft {fairdraft.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Exact speculative decoding for PyTorch, with proof."""


def main() -> None:
    """Runs the command line."""
    app()
