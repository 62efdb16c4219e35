"""`fairdraft bench`: what speculation costs and brings here. One module a subcommand."""

from __future__ import annotations

import typer

from fairdraft.cli.bench import speculators

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds `bench` and its subcommands to an application."""
    bench = typer.Typer(
        name="bench",
        help="Measure speculators of a target against plain decoding.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    # one subcommand alone would take the group's place
    bench.callback()(lambda: None)
    speculators.register(bench)
    app.add_typer(bench)
