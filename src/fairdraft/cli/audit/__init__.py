"""`fairdraft audit`: does a decoder sample from its target? One module a subcommand."""

from __future__ import annotations

from importlib import import_module

import typer

__all__ = ["SUBCOMMANDS", "register"]

#: modules of this package in the order of the help; each has `register(app)` and imports no more
#: than typer until its command runs
SUBCOMMANDS = ("kernels", "faults", "engine", "hf", "endpoint", "trace", "plan", "report")


def register(app: typer.Typer) -> None:
    """Adds `audit` and its subcommands to an application."""
    audit = typer.Typer(
        name="audit",
        help="Decide whether a speculative decoder samples from its target, and name the bug.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in SUBCOMMANDS:
        import_module(f"{__name__}.{name}").register(audit)
    app.add_typer(audit)
