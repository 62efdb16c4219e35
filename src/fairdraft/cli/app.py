"""The typer application. Everything heavy is imported inside the commands."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

import fairdraft
from fairdraft.cli import audit, bench, convert, generate, info, train
from fairdraft.cli.failure import UsageFault, exit_code

app = typer.Typer(
    name="fairdraft",
    help="Exact speculative decoding for PyTorch, with proof.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
generate.register(app)
audit.register(app)
bench.register(app)
train.register(app)
convert.register(app)
info.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fairdraft {fairdraft.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Exact speculative decoding for PyTorch, with proof."""


def run() -> int:
    """Runs the command line and returns its exit code; messages to a closed stderr are dropped."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    return exit_code(_run)


def _run() -> int:
    if sys.stdout is None:
        raise UsageFault("standard output is closed; to see nothing, send it to /dev/null")
    try:
        app(prog_name="fairdraft")
    except SystemExit as ending:
        return int(ending.code or 0)
    return 0
